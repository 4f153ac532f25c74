"""Work that needs no answer: a thread does it, in order; what is too much is dropped."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Background(Generic[Item]):
    """One thread and what waits for it."""

    def __init__(self, name: str, work: Callable[[Item], object], most_waiting: int) -> None:
        self.n_dropped = 0
        self._work = work
        self._waiting: queue.Queue[Item | None] = queue.Queue(most_waiting)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Hand it to the thread, or drop it."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self.n_dropped += 1

    def end(self, seconds: float) -> None:
        """Do what waits, if that is possible soon."""
        try:
            self._waiting.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            self._work(item)
