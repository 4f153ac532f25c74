"""Saved rounds: what a line says, and that neither a file nor a queue grows without end."""

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from aerie import SamplingParams
from aerie.completion import Completion
from aerie.errors import UsageError
from aerie.requests.request import Statistics
from aerie.server import keeping
from aerie.server.keeping import Keeper, Keeping
from aerie.server.samples import Ask, End, Round

TREE = {"nodes": [{"text": "a"}], "n_accepted": 0, "bonus": {"text": "b"}}
END = End(0, Completion("b", (2,), "stop", 0, Statistics()))


class Letters:
    """Spells ids as letters."""

    def decode(self, ids: Any, skip: bool) -> str:
        assert not skip
        return "".join(map(chr, ids))


def keep(keeper: Keeper, n_rounds: int) -> None:
    tokenizer: Any = Letters()
    own = Keeping(keeper, "31f0", [Ask((65, 66), SamplingParams(), 0)], tokenizer)
    for _ in range(n_rounds):
        own.take(Round(0, TREE))
    own.take(END)


def test_a_line_is_bounded_and_so_is_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeping, "MOST_ROUNDS", 3)
    monkeypatch.setattr(keeping, "MOST_BYTES", 1000)
    path = tmp_path / "rounds.jsonl"
    with caplog.at_level(logging.WARNING, "aerie.server"):
        for _ in range(2):  # a file that was there is gone on with
            keeper = Keeper(path, "a model")
            for _ in range(4):
                keep(keeper, 5)
            keeper.end()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.stat().st_size <= 1000 and len(lines) in (2, 3)
    assert lines[0]["prompt"] == "AB" and lines[0]["rounds"] == [TREE] * 3
    assert (lines[0]["n_rounds"], lines[0]["model"], lines[0]["tokens"]) == (5, "a model", 1)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("no more are saved" in words for words in said)


def test_nobody_waits_for_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeping, "MOST_WAITING", 2)
    is_written = threading.Event()
    monkeypatch.setattr(keeping.Sample, "line", lambda *_: is_written.wait(60) and b"{}\n")
    keeper = Keeper(tmp_path / "rounds.jsonl", "a model")
    for _ in range(9):
        keep(keeper, 1)
    is_written.set()
    with caplog.at_level(logging.WARNING, "aerie.server"):
        keeper.end()
    assert "too many" in caplog.text


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        Keeper(tmp_path, "a model")
