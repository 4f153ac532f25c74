"""Connections: late or endless heads are cut off, half-closed clients get their answer."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import uuid
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from aerie.server.logs import facts
from aerie.server.problems import ApiError

LOG = logging.getLogger("aerie.server")
MOST_HEAD_BYTES = 64 * 1024
LOOK_SECONDS = 0.1
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"


# What is answered before there is a request.
NOT_HTTP = ApiError(400, "this is not HTTP that can be read")
TOO_LARGE = ApiError(431, f"the head of a request has at most {MOST_HEAD_BYTES} bytes")


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's own, with a limit on the time and the size of a head; it has neither."""

    head_seconds = 30.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0  # that came while a head is expected,
        self._parsed_bytes = 0  # and of a head that came at once
        self._late: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection begins with a head."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
        self._has_head()
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of a head, or of what follows it."""
        super().data_received(data)
        self._head_bytes += len(data)
        if self._late is not None and self._head_bytes > MOST_HEAD_BYTES:
            self._answer(TOO_LARGE)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client that has sent everything may still read; one that left cannot.

        Both look the same until something is sent to them: one that left answers with a reset.
        """
        cycle: Any = self.cycle  # None before the first request
        is_asking = cycle is not None and not cycle.more_body and not cycle.response_started
        if not is_asking or self.parser.get_http_version() != "1.1":
            return None
        cycle.keep_alive = False
        self.transport.write(PROBE)
        self._look = self.loop.call_later(LOOK_SECONDS, self._look_again)
        return True

    def on_message_begin(self) -> None:
        """The parser's call: another request on this connection."""
        self._expect_head()
        self._parsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """The parser's call: a part of the first line."""
        super().on_url(url)
        self._parse(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's call: another line of the head."""
        super().on_header(name, value)
        self._parse(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """The parser's call: from here on the guard limits the body."""
        self._has_head()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's call: what came is not HTTP, or `_parse` has had enough."""
        is_long = self._parsed_bytes > MOST_HEAD_BYTES
        self._answer(TOO_LARGE if is_long else NOT_HTTP)

    def _parse(self, n_bytes: int) -> None:
        self._parsed_bytes += n_bytes
        if self._parsed_bytes > MOST_HEAD_BYTES:
            raise ValueError("the head is too large")  # which ends the parser

    def _answer(self, refusal: ApiError) -> None:
        """Say what is wrong and close; an answer that has begun is only closed."""
        if self.transport.is_closing():
            return
        request_id = uuid.uuid4().hex
        address = self.client[0] if self.client else "?"
        own = facts(request_id=request_id, status=refusal.status, address=address)
        said = (request_id, refusal.status, address, refusal)
        LOG.info("request %s: %d, %s, %s", *said, extra=own)
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = json.dumps(refusal.body()).encode()
            lines = [
                *self.server_state.default_headers,
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                (b"x-request-id", request_id.encode()),
            ]
            head = b"".join(name + b": " + value + b"\r\n" for name, value in lines)
            self.transport.write(STATUS_LINE[refusal.status] + head + b"\r\n" + body)
        self.transport.close()

    def _look_again(self) -> None:
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        elif not self.transport.is_closing():
            self._look = self.loop.call_later(LOOK_SECONDS, self._look_again)

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
