"""The last words of a stream whose replica is gone, said by the proxy in front of it."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.server.answers import event
from aerie.server.problems import ApiError

LOST = ApiError(503, "the replica that served this stream is gone: send the request again")


class Farewell:
    """Ends a stream of events that its application did not end, with an error event."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on; then say what is missing."""
        is_open = False  # a stream of events has begun, and not ended

        async def told(message: Message) -> None:
            nonlocal is_open
            if message["type"] == "http.response.start":
                kinds = [value for name, value in message["headers"] if name == b"content-type"]
                is_open = any(kind.startswith(b"text/event-stream") for kind in kinds)
            elif not message.get("more_body", False):
                is_open = False
            await send(message)

        await self.app(scope, receive, told)
        if is_open:
            await send({"type": "http.response.body", "body": event(LOST.body())})


def middlewares() -> list[Middleware]:
    """What Ray's proxy asks for."""
    return [Middleware(Farewell)]
