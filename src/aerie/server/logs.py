"""The log: to standard error, from a thread of its own, so that nobody waits for who reads it."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FORMAT = "%(asctime)s %(levelname)s %(message)s"
NAMES = ("aerie", "uvicorn.error")
MOST_WAITING = 10_000  # lines; what comes beyond them is dropped
END_SECONDS = 2.0


class Writer(logging.Handler):
    """Takes lines in without waiting; a thread writes them, a full disk loses them."""

    def __init__(self) -> None:
        super().__init__()
        self.n_dropped = 0
        self._target = logging.StreamHandler(sys.stderr)
        self._target.setFormatter(logging.Formatter(FORMAT))
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line to the thread, or drop it."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self.n_dropped += 1

    def end(self) -> None:
        """Write what waits, if that is possible soon."""
        try:
            self._lines.put(None, timeout=END_SECONDS)
        except queue.Full:
            return
        self._thread.join(END_SECONDS)

    def _write(self) -> None:
        while (record := self._lines.get()) is not None:
            self._target.handle(record)


@contextmanager
def logging_to_stderr(level: str) -> Iterator[None]:
    """The server's own lines from that level on, and errors of what it stands on."""
    writer = Writer()
    kept = {}
    for name in NAMES:
        logger = logging.getLogger(name)
        kept[name] = (logger.level, logger.propagate)
        logger.addHandler(writer)
        logger.propagate = False
    logging.getLogger("aerie").setLevel(level.upper())
    # Its warnings tell of single clients, without their address; the protocol tells them itself.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, (old_level, propagates) in kept.items():
            logger = logging.getLogger(name)
            logger.removeHandler(writer)
            logger.setLevel(old_level)
            logger.propagate = propagates
        writer.end()
