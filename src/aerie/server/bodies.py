"""How many names a body and its objects may have, before each of them is complained about."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from aerie.server.problems import ApiError

MOST_NAMES = 2048  # of one object; 300,000 unknown fields cost four seconds of complaints
MOST_NAMES_IN_ALL = 64 * 1024  # 4,096 messages of sixteen fields


class BoundedRoute(APIRoute):
    """A path whose JSON is looked at before it is validated."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's own handler, behind the check."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def bounded(request: Request) -> Response:
            _refuse_many_names_in_all(await request.body())
            try:
                body = await request.json()  # kept by the request, not parsed twice
            except (ValueError, RecursionError):
                return await handle(request)  # which says what is wrong with it
            _refuse_many_names(body)
            return await handle(request)

        return bounded


def _refuse_many_names_in_all(content: bytes) -> None:
    """Raise if a body has too many names to be parsed in no time; those within texts do not count.

    A quote that ends a name is followed by a colon, and within a text it has a backslash before it.
    """
    n_names = content.count(b'":') - content.count(b'\\":')
    if n_names > MOST_NAMES_IN_ALL:
        raise ApiError(400, f"body: at most {MOST_NAMES_IN_ALL} names, not {n_names}")


def _refuse_many_names(body: object) -> None:
    """Raise if the body, or a field of it, is an object of too many names."""
    if not isinstance(body, dict):
        return
    for name, value in (("body", body), *body.items()):
        if isinstance(value, dict) and len(value) > MOST_NAMES:
            shown = f"{name:.60}"
            message = f"{shown}: at most {MOST_NAMES} names, not {len(value)}"
            raise ApiError(400, message, None if name == "body" else shown)
