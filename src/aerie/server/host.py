"""Where the engine runs: in a process of its own, or in a thread where one is at hand already."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from aerie.server.line import Line
from aerie.server.settings import Telling

if TYPE_CHECKING:
    from aerie.server.engine_loop import Loaded

STATUS_SECONDS = 1.0  # between the end of a process's line and its status


class ThreadHost:
    """A thread of this process: it shares Python's lock with all others."""

    def __init__(self, load: Callable[[], Loaded]) -> None:
        from aerie.server.engine_loop import run_engine

        own, other = socket.socketpair()
        self.line = Line(own)
        self._thread = threading.Thread(
            target=run_engine, args=(load, Line(other)), name="engine", daemon=True
        )
        self._thread.start()

    def end(self, seconds: float) -> None:
        """Let it end after the step it is in; one that takes longer is left to itself."""
        self.line.close()
        self._thread.join(seconds)

    def last_words(self) -> str:
        """It says what is wrong before it ends."""
        return "the engine's thread ended"


class ProcessHost:
    """The engine's process: it begins to load at once, and never outlives this one.

    `check` raises what is wrong before anything is said of loading. Both are called there, and
    so must pickle.
    """

    def __init__(
        self, check: Callable[[], object], load: Callable[[], Loaded], telling: Telling
    ) -> None:
        own, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "aerie.server.engine_process", str(other.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.PIPE,  # it ends with this process, and with that the engine
                pass_fds=(other.fileno(),),
                start_new_session=True,  # Ctrl-C is for the server, which lets requests finish
            )
        self.line = Line(own)
        self.line.send((check, load, (telling.log_level, telling.log_format)))

    def end(self, seconds: float) -> None:
        """Let it end after the step it is in; one that takes longer is killed."""
        self.line.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """Why its line ended, where it did not say so itself."""
        try:
            status = self._process.wait(STATUS_SECONDS)
        except subprocess.TimeoutExpired:
            return "the engine's process hung up"
        if status >= 0:
            return f"the engine's process ended with status {status}"
        hint = "; out of memory?" if -status == signal.SIGKILL else ""
        return f"the engine's process was killed by {signal.Signals(-status).name}{hint}"


Host = ThreadHost | ProcessHost
# Starts an engine with another target or head; None: the files that were named at the start.
Another = Callable[[str | None, str | None], Host]
