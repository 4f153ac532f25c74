"""The door in front of every path: host, key, size and pace of a request."""

from __future__ import annotations

import asyncio
import hmac
import logging
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.server.problems import ApiError, ClientStalled
from aerie.server.settings import ServerSettings
from aerie.server.view import FILES

LOG = logging.getLogger("aerie.server")
OPEN_PATHS = frozenset({"/health", *FILES})  # the page asks for the key itself


class Guard:
    """Pure ASGI, so that a client that leaves is seen by whoever serves it."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope["aerie_request_id"] = request_id

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            # A client that stops reading must not hold its request for ever.
            try:
                async with asyncio.timeout(self.settings.request_seconds):
                    await send(message)
            except TimeoutError:
                raise ClientStalled from None

        try:
            self._check(scope)
            taken = await self._take_body(scope, receive)
        except ApiError as error:
            await error.response()(scope, receive, named)
            return
        try:
            await self.app(scope, taken, named)
        except ClientStalled:
            LOG.warning("request %s: its client does not read, cut off", request_id)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if _without_port(host) not in self.settings.hosts:
            raise ApiError(
                400, f"this server is not called {host[:100]!r}; start it with --allowed-host NAME"
            )
        key = self.settings.api_key
        if key is None or scope["path"] in OPEN_PATHS:
            return
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), key.encode()):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    async def _take_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the whole body within its limits; what comes after it is the client leaving."""
        limit = self.settings.max_body
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        body = bytearray()
        size = int(declared) if declared.isdigit() else 0
        try:
            async with asyncio.timeout(self.settings.request_seconds):
                message: Message = {"more_body": True}
                while message.get("more_body", False) and max(size, len(body)) <= limit:
                    message = await receive()
                    body += message.get("body", b"")
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time") from None
        if max(size, len(body)) > limit:
            raise ApiError(413, f"the body has more than {limit} bytes")
        waiting = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        return replay


def _without_port(host: str) -> str:
    """`localhost:8000` is localhost, `[::1]:8000` is ::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
