"""The rows of an audit: one JSON line for each finished cell, of several runs of one commit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aerie.bench.audit.cells import Cell, Plan
from aerie.bench.record import append_row, read_rows
from aerie.errors import UsageError

Row = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class TextKey:
    """Whose text it is: a prompt's number means nothing without the others."""

    sampling: str
    context: int
    new_tokens: int
    number: int

    @classmethod
    def of(cls, cell: Cell, number: int) -> TextKey:
        """Of one of a cell's texts."""
        return cls(cell.sampling, cell.context, cell.new_tokens, number)


@dataclass
class Rows:
    """What is known so far: cells that are done, and the plain text of every prompt."""

    terms: Mapping[str, Any]
    path: Path | None = None  # None: in memory alone
    done: list[Row] = field(default_factory=list)
    plain: dict[TextKey, list[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, terms: Mapping[str, Any], path: Path | None) -> Rows:
        """Go on with a file; one whose rows were made under other terms is refused."""
        rows = cls(terms, path)
        for row in read_record(path):
            rows._check(row)
            if not rows.has(Cell(**row["cell"])):  # files of several runs may have been joined
                rows._take(row)
        return rows

    @classmethod
    def read(cls, path: Path) -> Rows:
        """A file by itself: the terms are those of its first row, and must be those of all."""
        rows = read_record(path)
        if not rows:
            raise UsageError(f"{path} has no rows: run cells with --record first")
        return cls.open(rows[0]["terms"], path)

    def has(self, cell: Cell) -> bool:
        """Whether a cell is done."""
        return any(row["cell"] == asdict(cell) for row in self.done)

    def left(self, plan: Plan) -> list[Cell]:
        """Cells of a plan that no row tells of."""
        return [cell for cell in plan.cells() if not self.has(cell)]

    def add(self, row: Row) -> None:
        """One more cell; written at once, so that a run that is broken off keeps it."""
        row = {"terms": dict(self.terms), **row}
        if self.path is not None:
            append_row(self.path, row)
        self._take(row)

    def _take(self, row: Row) -> None:
        cell = Cell(**row["cell"])
        for number, tokens in row["plain"].items():
            self.plain[TextKey.of(cell, int(number))] = tokens
        self.done.append(row)

    def _check(self, row: Row) -> None:
        theirs = row["terms"]
        for name in (*self.terms, *theirs):
            if theirs.get(name) != self.terms.get(name):
                raise UsageError(
                    f"{self.path} has rows of another {name} ({theirs.get(name)!r:.80}, here"
                    f" {self.terms.get(name)!r:.80}): give --record a new file"
                )


def read_record(path: Path | None) -> list[Row]:
    """All rows of a file; none where there is none yet. Anything else in it is an error."""
    if path is None or not path.exists():
        return []
    try:
        rows = read_rows([path])
        for row in rows:
            Rows(row["terms"])._take(row)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no record of an audit ({error}): name another file") from error
    return rows


def digest(texts: Mapping[int, Sequence[int]]) -> str:
    """SHA-256 over whole texts, in the order of their numbers."""
    lines = (f"{number} {' '.join(map(str, texts[number]))}\n" for number in sorted(texts))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
