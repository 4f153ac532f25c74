"""A server of this checkout for the scripts that try it: started, watched, ended."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADERS = {"content-type": "application/json"}
READY_SECONDS = 300
# For scripts that decode beside it, too: on a busy machine threads that await each other spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same tokens whoever else is served, and a tree that is drafted whatever was measured.
EXACT = (
    *("--device", "cpu", "--numerics", "exact", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "8"),
)


@dataclass(frozen=True)
class Server:
    """A process that answers at a port of this machine."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def connect(self, timeout: float = 120.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = self.connect()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), HEADERS)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        is_json = "json" in (answer.headers["content-type"] or "")
        return answer.status, json.loads(content) if is_json else content.decode()

    @property
    def engine_pid(self) -> int:
        """Of the process its engine runs in, the first that it starts."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def metric(self, name: str) -> float:
        lines = self.call("GET", "/metrics")[1].splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))

    def resident(self) -> float:
        """Megabytes of memory: of the server, its engine's process and its chats'."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(map(_megabytes, (pid, *children)))

    def settle(self, seconds: float = 60.0) -> None:
        """Until nothing runs and nothing waits."""
        until = time.monotonic() + seconds
        names = ("num_requests_running", "num_requests_waiting", "reading_characters")
        while any(self.metric(f"aerie_{name}") for name in names):
            if time.monotonic() > until:
                raise SystemExit("requests of clients that left still run")
            time.sleep(0.1)


def _megabytes(pid: int | str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@contextmanager
def serving(
    *options: str,
    port: int = 0,
    before: Path | None = None,
    module: str = "aerie serve --port {port}",
) -> Iterator[Server]:
    """From this checkout's sources, one thread; ended with the block.

    Port 0 is any free one; what is imported from the folder `before` wins.
    """
    path = os.pathsep.join(map(str, filter(None, (before, ROOT / "src"))))
    own = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *module.format(port=port).split(), *options]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as target:
            process = subprocess.Popen(command, env=own, cwd=ROOT, stderr=target)
        try:
            until = time.monotonic() + READY_SECONDS
            while "is served" not in (said := log.read_text()):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"the server did not start:\n{said}")
                time.sleep(0.05)
            port = int(said.split("127.0.0.1:")[1].split("/")[0])
            yield Server(process, port, log)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def origin() -> dict[str, Any]:
    """Where the numbers come from."""
    sys.path.insert(0, str(ROOT / "src"))
    from aerie.bench.provenance import provenance

    return provenance("cpu")
