"""What a server refuses to be started with."""

from typing import Any

import pytest

from aerie.errors import UsageError
from aerie.server.settings import ServerSettings, Telling, is_loopback


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "0.0.0.0"}, "api-key"),
        ({"host": "::"}, "api-key"),
        ({"host": "example.org"}, "api-key"),
        ({"api_key": "short"}, "8 printable"),
        ({"api_key": "with\nline break"}, "8 printable"),
        ({"port": 70_000}, "port"),
        ({"allowed_hosts": ("*.example",)}, "no pattern"),
        ({"allowed_hosts": ("name:80",)}, "no port"),
        ({"allowed_hosts": ("",)}, "no host name"),
    ],
    ids=str,
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ServerSettings(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metrics_compat": "other"}, "vllm"),
        ({"log_level": "loud"}, "debug, info"),
        ({"log_format": "xml"}, "text, json"),
    ],
    ids=str,
)
def test_what_it_cannot_tell(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Telling(**options)


def test_a_public_server_has_a_key_or_was_asked_for() -> None:
    assert ServerSettings(host="0.0.0.0", api_key="long enough").hosts >= {"localhost", "0.0.0.0"}
    assert ServerSettings(host="::", is_public=True, allowed_hosts=("Name.example",)).hosts >= {
        "name.example"
    }


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
