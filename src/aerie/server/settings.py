"""What a server is told when it starts; every number is bounded."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from aerie.config import require

ANY_HOST = "*"
HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
LEAST_KEY = 8  # characters of an API key


@dataclass(frozen=True)
class Telling:
    """What a server says of itself, and how."""

    metrics_compat: str | None = None  # "vllm": its names beside ours
    log_level: str = "info"
    log_format: str = "text"
    save_rounds: Path | None = None  # a file that the rounds of every sample are appended to

    def __post_init__(self) -> None:
        require(self.metrics_compat in (None, "vllm"), "metrics_compat is vllm or nothing")
        require(self.log_level in LOG_LEVELS, f"log_level is one of {', '.join(LOG_LEVELS)}")
        require(self.log_format in LOG_FORMATS, f"log_format is one of {', '.join(LOG_FORMATS)}")


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, whom it answers and how much it takes in."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str = "aerie-pair"  # what /v1/models calls the model
    api_key: str | None = None
    is_public: bool = False  # listen beyond this machine without a key
    allowed_hosts: tuple[str, ...] = ()  # names beside the loopback ones and `host`; "*": any
    max_body: int = 4 * 1024 * 1024
    max_pending_tokens: int = 1 << 20  # prompts and most outputs of everything unfinished
    request_seconds: float = 30.0  # to send a head, a body; to render a chat; to read a chunk
    drain_seconds: int = 30  # what SIGTERM leaves to running requests
    telling: Telling = Telling()

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, f"port is {self.port}, limit 0..65535")
        key = self.api_key
        require(
            key is None or (key.isascii() and key.isprintable() and len(key) >= LEAST_KEY),
            f"an API key is at least {LEAST_KEY} printable ASCII characters",
        )
        require(
            is_loopback(self.host) or key is not None or self.is_public,
            f"{self.host} can be reached from other machines: give --api-key KEY,"
            " or --public to answer everybody",
        )
        seconds = self.request_seconds
        require(0 < seconds <= 3600, f"request_seconds is {seconds}, limit 0..3600")
        for name in self.allowed_hosts:
            require(
                name == ANY_HOST or HOST_NAME.fullmatch(name) is not None,
                f"--allowed-host {name!r} is no host name: no port, no pattern; * alone is any",
            )

    @property
    def hosts(self) -> frozenset[str]:
        """Names a request may address this server by; a web page elsewhere has none of them."""
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, self.host, *self.allowed_hosts))

    def answers_to(self, host: str) -> bool:
        """Whether a request may be addressed so; `host` is in small letters, without its port.

        An address is no name: a page that makes a browser resolve its own name to this machine
        cannot make it send an address.
        """
        return host in self.hosts or _is_address(host) or (ANY_HOST in self.hosts and host != "")


def _is_address(host: str) -> bool:
    """Whether that is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if not _is_address(host):
        return host == "localhost"
    return ipaddress.ip_address(host).is_loopback
