"""A real browser without a window, driven over its own protocol: enough to click and to look."""

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 60


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page; `problems` are errors its scripts or its policy reported."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = count(1)
        self.problems: list[Any] = []
        for domain in ("Runtime", "Page", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while (message := json.loads(self._connection.recv(timeout=60))).get("id") != number:
            if message["method"] in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(message["params"])
        return dict(message["result"])

    def look(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression)["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not self.look(expression):
            assert time.monotonic() < until, f"never true: {expression}; {self.problems}"
            time.sleep(0.05)


@contextmanager
def browsed(program: str, folder: Path) -> Iterator[Page]:
    """An empty page of a fresh profile."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    process = subprocess.Popen(
        [program, *options, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = _port(folder / "DevToolsActivePort")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            (target,) = (t for t in json.load(answer) if t["type"] == "page")
        with connect(target["webSocketDebuggerUrl"], max_size=None) as connection:
            yield Page(connection)
    finally:
        process.kill()
        process.wait()


def _port(file: Path) -> int:
    until = time.monotonic() + START_SECONDS
    while not file.exists() or "\n" not in file.read_text():
        assert time.monotonic() < until, "the browser did not start"
        time.sleep(0.05)
    return int(file.read_text().splitlines()[0])
