"""A real browser without a window, driven over its own protocol: enough to click and to look."""

import base64
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
        """The value of an expression; a promise's when it is kept."""
        how = {"awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def dress(self, width: int, height: int, scheme: str) -> None:
        """A window of that size, light or dark, in which nothing moves by itself."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScrollbarsHidden", hidden=True)

    def picture(self, is_whole: bool = False) -> bytes:
        """A PNG of what is in the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        return base64.b64decode(shot["data"])

    def press(self, key: str, ctrl: bool = False) -> None:
        """A key, down and up, wherever the focus is."""
        what = {"key": key, "modifiers": 2 if ctrl else 0}
        typed = {"text": key} if len(key) == 1 and not ctrl else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **what, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

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
