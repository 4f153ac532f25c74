"""Connections whose request heads are late or endless are cut off."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 * 1024


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's own, with a limit on the time and the size of a head; it has neither."""

    head_seconds = 30.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Whoever connects has something to say."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._has_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of a head, or of what follows it."""
        super().data_received(data)
        self._head_bytes += len(data)
        if self._late is not None and self._head_bytes > MOST_HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """The parser's call: another request on this connection."""
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The parser's call: from here on the guard limits the body."""
        self._has_head()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._has_head()
        self._head_bytes = 0
        self._late = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _has_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def patient(seconds: float) -> type[PatientProtocol]:
    """A class, for uvicorn makes the connections itself."""
    return type("PatientProtocol", (PatientProtocol,), {"head_seconds": seconds})
