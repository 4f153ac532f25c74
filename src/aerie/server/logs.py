"""The log: to standard error, from a thread of its own, so that no request waits for its reader."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from aerie.server.background import Background

FORMAT = "%(asctime)s %(levelname)s %(message)s"
FACTS = "facts"  # of a record: what its words say, for programs that read lines
NAMES = ("aerie", "uvicorn.error")
MOST_WAITING = 10_000  # lines; what comes beyond them is dropped
END_SECONDS = 2.0


def facts(**named: Any) -> dict[str, dict[str, Any]]:
    """What a line says, by name: `LOG.info(words, extra=facts(status=200))`."""
    return {FACTS: named}


class JsonFormatter(logging.Formatter):
    """A line is an object: when, how grave, in words, and what the words say by name."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback is one of its values."""
        when = datetime.fromtimestamp(record.created, UTC)
        told = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FACTS, {}),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


FORMATTERS = {"text": logging.Formatter(FORMAT), "json": JsonFormatter()}


class Writer(logging.Handler):
    """Takes lines in without waiting; a thread writes them, a full disk loses them."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._target = logging.StreamHandler(sys.stderr)
        self._target.setFormatter(FORMATTERS[form])
        self._lines = Background("log", self._target.handle, MOST_WAITING)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line to the thread, or drop it."""
        self._lines.put(record)

    def end(self) -> None:
        """Write what waits, if that is possible soon."""
        self._lines.end(END_SECONDS)


@contextmanager
def logging_to_stderr(level: str, form: str = "text") -> Iterator[None]:
    """The server's own lines from that level on, and errors of what it stands on."""
    writer = Writer(form)
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
