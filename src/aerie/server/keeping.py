"""Saved rounds: a line of JSON for each sample that ended, which the page can replay."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aerie.errors import UsageError
from aerie.server.background import Background
from aerie.server.samples import Ask, End, Round
from aerie.text.tokenizer import Tokenizer

LOG = logging.getLogger("aerie.server")
MOST_BYTES = 64 * 1024 * 1024  # of the file
MOST_ROUNDS = 4096  # of a sample
MOST_WAITING = 256  # samples that are not written yet
END_SECONDS = 5.0


@dataclass(frozen=True)
class Sample:
    """What became of one; written by a thread, for its prompt must be spelled."""

    request_id: str
    ask: Ask
    end: End
    rounds: Sequence[dict[str, Any]]
    n_rounds: int  # those that are not kept included
    tokenizer: Tokenizer

    def line(self, model: str) -> bytes:
        """As the page reads it."""
        completion = self.end.completion
        told = {
            "request_id": self.request_id,
            "index": self.end.index,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "model": model,
            "prompt": self.tokenizer.decode(self.ask.prompt, False),
            "text": completion.text,
            "tokens": len(completion.token_ids),
            "finish_reason": completion.finish_reason,
            "n_rounds": self.n_rounds,
            "rounds": self.rounds,
        }
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Keeper:
    """Appends samples to a file until it is full; no request waits for the disk."""

    def __init__(self, path: Path, model: str) -> None:
        self._model = model
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
        self._is_full = False
        self._writer = Background("rounds", self._write, MOST_WAITING)

    def put(self, sample: Sample) -> None:
        """Have it written, unless too many wait for that."""
        self._writer.put(sample)

    def end(self) -> None:
        """Write what waits."""
        self._writer.end(END_SECONDS)
        self._file.close()
        if self._writer.n_dropped:
            LOG.warning("%d samples' rounds were not saved: too many", self._writer.n_dropped)

    def _write(self, sample: Sample) -> None:
        if self._is_full:
            return
        try:
            line = sample.line(self._model)
            self._is_full = self._file.tell() + len(line) > MOST_BYTES
            if self._is_full:
                LOG.warning("the file of rounds has its %d bytes: no more are saved", MOST_BYTES)
                return
            self._file.write(line)
        except (OSError, ValueError) as error:  # a full disk; half a character
            LOG.warning("rounds of request %s are not saved: %s", sample.request_id, error)


@dataclass(eq=False)
class Keeping:
    """The rounds of one request under way."""

    keeper: Keeper
    request_id: str
    asks: Sequence[Ask]
    tokenizer: Tokenizer
    rounds: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def take(self, item: object) -> None:
        """A round is kept, an end has them written."""
        if isinstance(item, Round):
            own = self.rounds.setdefault(item.index, [])
            self.counts[item.index] = self.counts.get(item.index, 0) + 1
            if len(own) < MOST_ROUNDS:
                own.append(item.tree)
        elif isinstance(item, End):
            index = item.index
            rounds, count = self.rounds.pop(index, []), self.counts.pop(index, 0)
            ask = self.asks[index]
            sample = Sample(self.request_id, ask, item, rounds, count, self.tokenizer)
            self.keeper.put(sample)
