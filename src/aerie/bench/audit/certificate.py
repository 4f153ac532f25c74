"""The rows of an audit, one JSON line for each finished cell, and the certificate made of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.bench.audit.cells import Cell, Plan, TextKey
from aerie.bench.record import append_row, read_rows, shown
from aerie.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]
MOST_LINES = 8  # of differences that are printed
MADE = ("aerie", "commit", "source_sha256", "torch", "device")
KEPT = ("texts", "compared", "differing", "first_difference", "seeds", "is_void",
        "texts_sha256", "prompts_sha256", "acceptance_length", "seconds")  # fmt: skip


@dataclass
class Rows:
    """What is known so far: cells that are done, and the plain text of every prompt."""

    terms: Mapping[str, Any]
    path: Path | None = None  # None: in memory alone
    done: list[Row] = field(default_factory=list)
    plain: dict[TextKey, list[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, terms: Mapping[str, Any] | None, path: Path | None) -> Rows:
        """Go on with a file; one whose rows were made under other terms is refused.

        Without terms those of its first row are meant.
        """
        known = read_record(path)
        if terms is None and not known:
            raise UsageError(
                "--no-run certifies rows that are there: name their file with --record"
            )
        rows = cls(known[0]["terms"] if terms is None else terms, path)
        for row in known:
            rows._check(row)
            if not rows.has(Cell(**row["cell"])):  # files of several runs may have been joined
                rows._take(row)
        return rows

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
            self.plain[cell.key(int(number))] = tokens
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


def certify(rows: Rows, n_left: int) -> dict[str, Any]:
    """All rows as one JSON value: `ok` says that no text differs."""
    differing, void = _sum(rows.done, "differing"), _sum(rows.done, "is_void")
    return {
        "ok": not differing,
        "is_complete": not n_left and not void,
        "cells_left": n_left,
        "texts": _sum(rows.done, "texts"),
        "compared": _sum(rows.done, "compared"),
        "differing": differing,
        "void_cells": void,
        "terms": dict(rows.terms),
        "policies": {row["cell"]["policy"]: row["policy"] for row in rows.done},
        "plain_texts_sha256": digest(
            dict(enumerate(rows.plain[key] for key in sorted(rows.plain)))
        ),
        "cells": [
            {
                **row["cell"],
                "met": {name: n for name, n in row["met"].items() if n},
                **{name: row[name] for name in KEPT},
            }
            for row in rows.done
        ],
        "kind": "measured",
        "provenance": {
            **{name: rows.terms[name] for name in MADE},
            "dates": sorted({row["date"] for row in rows.done}),
        },
    }


def _sum(rows: Sequence[Row], name: str) -> int:
    return sum(int(row[name]) for row in rows)


def statement(found: Mapping[str, Any]) -> str:
    """One sentence: what was compared, and how many differ."""
    terms, n_cells = found["terms"], len(found["cells"])
    geometry = f" inflated to {terms['geometry']}" if terms["geometry"] else ""
    said = (
        f"{found['differing']} of {found['compared']:,} texts differ from plain decoding"
        f" ({found['texts']:,} texts, {n_cells} cells; {terms['model']}{geometry},"
        f" {terms['dtype']}, {terms['numerics']} numerics, {terms['device']})"
    )
    if found["void_cells"]:
        said += f"; {found['void_cells']} cells did not meet what they are named after"
    if found["cells_left"]:
        said += f"; {found['cells_left']} cells are left to run"
    return said


def table_of(found: Mapping[str, Any]) -> Table:
    """A line for each policy and scene; batch sizes, chunks and samplings are taken together."""
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for cell in found["cells"]:
        lines[cell["policy"], cell["scene"]].append(cell)
    rows = []
    for cells in lines.values():
        differing, lengths = _sum(cells, "differing"), [c["acceptance_length"] for c in cells]
        void = " [red](not met)[/]" if _sum(cells, "is_void") else ""
        known = [length for length in lengths if length]
        axes = {
            name: " ".join(str(value) for value in dict.fromkeys(cell[name] for cell in cells))
            for name in ("policy", "scene", "batch", "chunk", "sampling")
        }
        counts = {"texts": _sum(cells, "texts"), "differ": f"{red(differing)}{void}"}
        mean = f"{sum(known) / len(known):.2f}" if known else "-"
        rows.append({**axes, **counts, "accepted": mean})
    return shown({name: f"{{{name}}}" for name in rows[0]}, rows)


def red(n: int) -> str:
    """A number that should be none."""
    return f"[red]{n}[/]" if n else "0"


def differences(found: Mapping[str, Any]) -> list[str]:
    """The first divergence of each cell that has one, as far as there is room for them."""
    lines = []
    for cell in found["cells"]:
        first = cell["first_difference"]
        if first is not None:
            own = Cell(**{name: cell[name] for name in Cell.__annotations__})
            lines.append(
                f"{own.name}: prompt {first['prompt']} (seed {first['seed']}) parts at token"
                f" {first['index']}, {first['words']['plain']!r} ({first['plain']}) by plain"
                f" decoding, {first['words']['other']!r} ({first['other']}) here, logit gap"
                f" {first['logit_gap']:.2e}"
            )
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"and {more} more cells that differ"] if more > 0 else [])]
