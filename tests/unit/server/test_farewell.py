"""The proxy's last words: streams that their replica left open, and nothing else."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from aerie.server.farewell import middlewares

BODY = "http.response.body"
PART = {"type": BODY, "body": b"data: {}\n\n", "more_body": True}
END = {"type": BODY, "body": b"data: [DONE]\n\n", "more_body": False}


def start(kind: bytes) -> dict[str, Any]:
    headers = [(b"x-request-id", b"1"), (b"content-type", kind)]
    return {"type": "http.response.start", "status": 200, "headers": headers}


STREAM = start(b"text/event-stream; charset=utf-8")


@pytest.mark.parametrize(
    ("messages", "is_lost"),
    [
        ([STREAM, PART, END], False),
        ([STREAM, PART], True),
        ([STREAM], True),
        ([start(b"application/json"), PART], False),
        ([], False),
    ],
)
def test_what_was_left_open_is_ended(messages: Sequence[dict[str, Any]], is_lost: bool) -> None:
    async def replica(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    (own,) = middlewares()
    app: Any = own.cls(replica)
    asyncio.run(app({"type": "http"}, None, send))
    assert sent[: len(messages)] == list(messages) and len(sent) == len(messages) + is_lost
    if is_lost:
        told = json.loads(sent[-1]["body"].removeprefix(b"data: "))
        assert "gone" in told["error"]["message"] and not sent[-1].get("more_body", False)
