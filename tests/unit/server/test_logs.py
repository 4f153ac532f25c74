"""The log: no request waits for it, and what cannot be written is lost, not fatal."""

import io
import json
import logging
import sys
import threading
from datetime import datetime
from typing import Any

import pytest

from aerie.completion import Completion
from aerie.requests.request import Statistics
from aerie.server import logs
from aerie.server.describe import describe_load
from aerie.server.metrics import Standing, Totals
from aerie.server.notes import Note


def test_lines_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.StringIO()
    monkeypatch.setattr(sys, "stderr", target)
    with logs.logging_to_stderr("info"):
        for number in range(100):
            logging.getLogger("aerie.server").info("line %d", number)
        logging.getLogger("aerie.server").debug("quiet")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").error("worse")
    written = [line.split(" ", 3)[-1] for line in target.getvalue().splitlines()]
    assert written == [*(f"line {number}" for number in range(100)), "worse"]
    assert not logging.getLogger("aerie").handlers


def test_a_line_can_be_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.StringIO()
    monkeypatch.setattr(sys, "stderr", target)
    log = logging.getLogger("aerie.server")
    with logs.logging_to_stderr("info", "json"):
        note = Note("31f0b4", status=200)
        statistics = Statistics(num_drafts=5, num_accepted_tokens=11)
        note.end(12, [Completion("a\nb", tuple(range(16)), "stop", 0, statistics)])
        note.write({"client": ("127.0.0.1", 4), "method": "POST", "path": "/x\n"}, False)
        try:
            raise ValueError("two\nlines")
        except ValueError as error:
            log.error("request %s failed", "31f0b4", exc_info=error)
    request, failed = map(json.loads, target.getvalue().splitlines())
    assert request["request_id"] == "31f0b4" and request["path"] == "/x\\n"
    assert request["message"].startswith("request 31f0b4: 200, 127.0.0.1 POST /x")
    assert request["message"].endswith("prompt=12 completion=16 acceptance=3.20")
    assert (request["completion_tokens"], request["acceptance"]) == (16, 3.2)
    assert failed["level"] == "error" and "two\nlines" in failed["traceback"]
    assert datetime.fromisoformat(failed["time"]).tzinfo is not None


def test_nobody_waits_for_a_terminal_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    is_read = threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            is_read.wait(60)
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", Stuck())
    monkeypatch.setattr(logs, "END_SECONDS", 0.05)
    monkeypatch.setattr(logs, "MOST_WAITING", 10)
    with logs.logging_to_stderr("info"):
        for number in range(1000):
            logging.getLogger("aerie.server").info("line %d", number)
    is_read.set()


def test_how_it_goes_in_a_line() -> None:
    now = Standing(3, 2, 0.125, 0, 0, 0)
    added: Any = Totals(100, 420, 10, 25)
    words = describe_load(added, now, 10.0)
    assert words == ("42.0 tokens/s out, 10.0 in; running 3, waiting 2, KV 12.5 %, acceptance 3.50")
    assert describe_load(Totals(), Standing(0, 0, 0, 0, 0, 0), 10.0) is None
    plain = describe_load(Totals(1, 1), now, 10.0, "a draft costs 2 ms and gains 1")
    assert plain is not None and "acceptance none (a draft costs 2 ms" in plain
