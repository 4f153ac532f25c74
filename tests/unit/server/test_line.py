"""The line: to send never waits, both ends hear the end, exceptions arrive as what they are."""

import socket
import time
from typing import Any

import pytest

from aerie.errors import AerieError, KernelBoundsError, UnknownNameError, UsageError
from aerie.server import line as line_module
from aerie.server.engine_loop import _portable
from aerie.server.line import Line, LineEnded


def ends() -> tuple[Line, Line]:
    one, other = socket.socketpair()
    return Line(one), Line(other)


def received(end: Line) -> Any:
    """The next message, however many pieces it comes in."""
    while not (found := end.receive()):
        end.wait()
    (message,) = found
    return message


def test_messages_come_whole_and_in_order_and_then_the_end() -> None:
    one, other = ends()
    messages: list[Any] = [b"x" * 10_000_000, (1, "a"), {}]
    for message in messages:
        one.send(message)
    found: list[Any] = []
    while len(found) < len(messages):
        other.wait()
        found += other.receive()
    assert found == messages and other.receive() == []
    one.send("last")
    one.close()
    assert received(other) == "last"
    for end in (other, one):
        end.wait()
        with pytest.raises(LineEnded):
            end.receive()
    other.close()
    other.close()


def test_who_does_not_read_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "FLUSH_SECONDS", 0.05)
    one, other = ends()
    began = time.monotonic()
    for _ in range(100):
        one.send(b"x" * 1_000_000)
    one.close()
    assert time.monotonic() - began < 5
    other.close()


def test_what_cannot_be_sent_ends_the_line_for_both() -> None:
    one, other = ends()
    one.send(lambda: None)
    for end in (other, one):
        with pytest.raises(LineEnded):
            received(end)
        end.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("n is 0"), UsageError),
        (UnknownNameError("policy", "plan", ["planner"]), UsageError),
        (KernelBoundsError("too wide", value=object()), AerieError),
        (ZeroDivisionError("no luck"), RuntimeError),
    ],
)
def test_a_requests_own_error_arrives_with_type_and_text(
    error: Exception, kind: type[Exception]
) -> None:
    one, other = ends()
    try:
        raise error
    except Exception as caught:
        one.send(_portable(caught))
    found = received(other)
    assert type(found) is kind and str(error) in str(found)
    one.close()
    other.close()
