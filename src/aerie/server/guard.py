"""The door in front of every path: host, key, size and pace of a request."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import uuid
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.server.logs import facts
from aerie.server.notes import KEY, Note
from aerie.server.problems import ApiError, ClientLeft, ClientStalled
from aerie.server.settings import ServerSettings
from aerie.server.view import FILES

LOG = logging.getLogger("aerie.server")
# Answered without a key: what a balancer asks for, and the page, which asks for the key itself.
OPEN_PATHS = frozenset({"/health", *FILES})
# Asked for every few seconds by monitors: the log need not tell.
QUIET_PATHS = OPEN_PATHS | {"/metrics", "/about"}
HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?")
# What a refused client may still send while it learns why: so long, and so much.
LINGER_SECONDS, LINGER_BYTES = 1.0, 16 * 1024 * 1024
# JSON of a megabyte is parsed and validated in up to 80 ms, and the interpreter does nothing else:
# large bodies are handed on one at a time, with a pause in which all others are served.
LARGE_BODY = 256 * 1024
PAUSE_SECONDS = 0.05


def _nobody(status: int) -> None:
    """Counts nothing."""


class Guard:
    """Pure ASGI, so that a path sees its client leave."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, count: Callable[[int], None] = _nobody
    ) -> None:
        self.app = app
        self.settings = settings
        self._count = count  # told the status of each answer that is an error
        self._large = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        note = scope[KEY] = Note(uuid.uuid4().hex)
        try:
            await self._serve(scope, receive, self._named(note, send))
        except ClientStalled:
            note.problem = "its client does not read: cut off"
            told = facts(request_id=note.request_id, problem=note.problem)
            LOG.warning("request %s: %s", note.request_id, note.problem, extra=told)
        except Exception:
            if not note.status:
                raise
            # Answered, and told to the log with all there is: the framework raises it again.
            note.problem = note.problem or "it failed while it was answered"
        finally:
            if note.status >= 400:
                self._count(note.status)
            note.write(scope, scope["path"] in QUIET_PATHS)

    def _named(self, note: Note, send: Send) -> Send:
        """Answers carry the request's id; a client that stops reading holds none for ever."""

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = (b"x-request-id", note.request_id.encode())
                message["headers"] = [*message["headers"], own]
                note.status = message["status"]
            try:
                async with asyncio.timeout(self.settings.request_seconds):
                    await send(message)
            except TimeoutError:
                raise ClientStalled from None

        return named

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
            taken = await self._take_body(scope, receive)
        except ClientLeft as left:
            scope[KEY].status = left.status
        except ApiError as error:
            scope[KEY].problem = str(error)
            await self._refuse(error, scope, receive, send)
        else:
            await self.app(scope, taken, send)

    def _check(self, scope: Scope) -> None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            raise ApiError(400, f"a request has one Host header, this one has {len(hosts)}")
        host = hosts[0].decode("latin-1").lower()
        if not self.settings.answers_to(_without_port(host)):
            raise ApiError(
                400, f"this server is not called {host[:100]!r}; start it with --allowed-host NAME"
            )
        key = self.settings.api_key
        if key is None or (scope["path"] in OPEN_PATHS and scope["method"] in ("GET", "HEAD")):
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, word = given.partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(word.strip(), key.encode()):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    async def _take_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the whole body within its limits; what comes after it is the client leaving."""
        limit, declared = self.settings.max_body, _declared(scope)
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.request_seconds):
                message: Message = {"more_body": True}
                while message.get("more_body", False) and max(declared, len(body)) <= limit:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    body += message.get("body", b"")
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time") from None
        if max(declared, len(body)) > limit:
            raise ApiError(413, f"the body has more than {limit} bytes")
        waiting = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            if not waiting:
                return await receive()
            if len(body) > LARGE_BODY:
                async with self._large:
                    await asyncio.sleep(PAUSE_SECONDS)
            return waiting.pop()

        return replay

    async def _refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a connection whose body was not read is closed, soon and in any case."""
        response = error.response()
        if not _has_body(scope):
            await response(scope, receive, send)
            return
        response.headers["connection"] = "close"
        start = {"type": "http.response.start", "status": error.status}
        await send({**start, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        # Closed at once, with bytes unread, the client's system would drop the answer unseen.
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await _discard(receive, LINGER_BYTES)
        except TimeoutError:
            scope[KEY].problem = f"{error}; its connection was cut"
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive, n_bytes: int) -> None:
    while n_bytes > 0:
        message = await receive()
        n_bytes -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def _declared(scope: Scope) -> int:
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else 0


def _has_body(scope: Scope) -> bool:
    return _declared(scope) > 0 or any(name == b"transfer-encoding" for name, _ in scope["headers"])


def _without_port(host: str) -> str:
    """`localhost:8000` is localhost, `[::1]:8000` is ::1; empty if it is no host at all."""
    found = HOST.fullmatch(host)
    return (found["address"] or found["name"]) if found else ""
