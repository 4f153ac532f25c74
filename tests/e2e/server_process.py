"""A real `aerie serve` process for tests and scripts, and plain HTTP to talk to it."""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.laws.tree import ROOT

TREE = (
    "--speculative-num-steps",
    "3",
    "--speculative-eagle-topk",
    "2",
    "--speculative-num-draft-tokens",
    "8",
)
READY_SECONDS = 120
QUIET = ("num_requests_running", "num_requests_waiting", "reading_characters")


@dataclass
class Reply:
    """Status, headers and the body as JSON or text."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass
class Served:
    """A server that answers."""

    process: subprocess.Popen[str]
    port: int
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def children(self) -> list[int]:
        """Processes that it has started, its engine's first."""
        pid = self.process.pid
        return [int(own) for own in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @property
    def engine_pid(self) -> int:
        """Of the process its engine runs in."""
        return self.children[0]

    def resident(self) -> float:
        """Megabytes of memory: its own, its engine's, and those of what renders chats."""
        return sum(map(_megabytes, (self.process.pid, *self.children)))

    def connect(self, timeout: float = 60.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own; a body that is no bytes is sent as JSON."""
        connection = self.connect()
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", **(headers or {})}
        connection.request(method, path, sent, given)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = "json" in (answer.headers["content-type"] or "") and text
        return Reply(answer.status, answer.headers, json.loads(text) if is_json else text)

    @contextmanager
    def stream(self, body: Any) -> Iterator[http.client.HTTPResponse]:
        """A completion under way; its client leaves at the end of the block."""
        connection = self.connect()
        asked = json.dumps({**body, "stream": True})
        connection.request("POST", "/v1/completions", asked, {"content-type": "application/json"})
        answer = connection.getresponse()
        try:
            yield answer
        finally:
            answer.close()
            connection.close()

    def metric(self, name: str) -> float:
        page = self.call("GET", "/metrics").body
        (line,) = (line for line in page.splitlines() if line.startswith(name + " "))
        return float(line.split()[-1])

    def wait_for_nobody(self, seconds: float = 20.0) -> None:
        """Until nothing runs, waits or is read; requests whose clients left must end soon."""
        until = time.monotonic() + seconds
        while any(self.metric(f"aerie_{name}") for name in QUIET):
            assert time.monotonic() < until, "a request whose client left still runs"
            time.sleep(0.05)


def _megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@contextmanager
def served(*arguments: str, **how: str) -> Iterator[Served]:
    """Started by the project's own command, on a free port, ready to answer; `how` as below."""
    with started(*arguments, **how) as server:
        until = time.monotonic() + READY_SECONDS
        while server.call("GET", "/health").status != 200:
            is_up = time.monotonic() < until and server.process.poll() is None
            assert is_up, f"the server is not ready: {server.log}"
            time.sleep(0.05)
        yield server


@contextmanager
def started(
    *arguments: str,
    program: str = sys.executable,
    module: str = "aerie serve --port 0",
    **environment: str,
) -> Iterator[Served]:
    """As above, as soon as it listens; what it writes goes to a file, which never fills up."""
    own = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **environment}
    command = [program, "-m", *module.split(), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stderr"
        with path.open("w") as log:
            process = subprocess.Popen(command, env=own, cwd=ROOT, text=True, stderr=log)
        try:
            yield Served(process, _port(process, path), path)
        finally:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[str], log: Path) -> int:
    """The one it says it listens on."""
    until = time.monotonic() + READY_SECONDS
    while not (found := re.search(r"127\.0\.0\.1:(\d+)/", said := log.read_text("utf-8"))):
        assert time.monotonic() < until and process.poll() is None, said
        time.sleep(0.02)
    # Before anything is loaded; only replicas are spoken of when they are there.
    assert "loading" in said or "replicas" in said, said
    return int(found.group(1))
