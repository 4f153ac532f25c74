"""The processes of the other ranks: started, watched and ended by the leader's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerie.errors import RankLostError, UsageError

READY, END = "ready", "end"
END_SECONDS = 5.0  # to end, once told to
BLAME_SECONDS = 1.0  # from the end of a rank's sockets to that of its process


@dataclass(frozen=True)
class Post:
    """What a follower must know to take its place."""

    rank: int
    meeting: str  # the file that ranks meet by
    threads: int
    model: dict[str, Any]  # what is loaded: known to what starts followers


class Followers:
    """The other ranks. One that ends on its own ends them all; `on_loss` is told first, once."""

    def __init__(
        self, module: str, size: int, meeting: Path, threads: int, model: dict[str, Any]
    ) -> None:
        self.lost: RankLostError | None = None
        self.on_loss: Callable[[RankLostError], None] = lambda error: None
        self._lock = threading.RLock()  # a collector may end what another frame is about to
        self._is_over, self._is_known = False, threading.Event()
        self.processes = [_start(module) for _ in range(1, size)]
        for rank, process in enumerate(self.processes, 1):
            _tell(process, json.dumps(asdict(Post(rank, str(meeting), threads, model))))

    def await_ready(self) -> None:
        """Until all have loaded their part; from here on they are watched."""
        for rank, process in enumerate(self.processes, 1):
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise UsageError(f"rank {rank} {_last_words(process)} before its part was loaded")
        for rank, process in enumerate(self.processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[str]) -> None:
        process.wait()
        self.lose(RankLostError(f"rank {rank} {_last_words(process)}; load the engine again"))

    def lose(self, error: RankLostError) -> None:
        """Nothing can be computed any more: all ranks end with the error."""
        with self._lock:
            if not self._is_over:
                self.lost = error
                self.on_loss(error)
                self._is_known.set()
                self._finish(str(error))

    def blame(self, error: RankLostError) -> RankLostError:
        """Why a meeting failed: sockets tell of an end before its process is over."""
        self._is_known.wait(BLAME_SECONDS)
        self.lose(error)
        return self.lost or error

    def end(self) -> None:
        """Their work is done; a second time does nothing."""
        with self._lock:
            if not self._is_over:
                self._finish(END)

    def _finish(self, word: str) -> None:
        self._is_over = True
        for process in self.processes:
            _tell(process, word.replace("\n", " "))
        deadline = time.monotonic() + END_SECONDS
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.0))
            process.kill()
            with suppress(OSError), process:  # closes its pipes
                pass


def _start(module: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,  # it ends with this process, and with that the follower
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the leader
    )


def _tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # that it is gone is told elsewhere
        print(word, file=process.stdin, flush=True)


def _last_words(process: subprocess.Popen[str]) -> str:
    status = process.wait(END_SECONDS)
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status} (standard error says why)"
