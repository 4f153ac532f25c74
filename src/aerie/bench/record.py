"""Files of what was measured: JSON, CSV and JSON lines with their origin, tables and intervals."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import lzma
import operator
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from aerie.bench.provenance import device_facts, installed, provenance

if TYPE_CHECKING:
    from rich.table import Table

PACKED = ".xz"  # many rows say nearly the same: packed they are twenty times smaller
# Columns of its origin that a raw row repeats; the JSON beside it has everything.
COLUMNS = ("contract", "commit", "source_sha256", "device", "driver", "torch", "triton", "sm_mhz",
           "memory_mhz", "date")  # fmt: skip
RESAMPLES = 2000
# What a figure is held against: the sign that pages write, and whether it holds.
BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "at_least": ("≥", operator.ge),
    "at_most": ("≤", operator.le),
    "equals": ("=", operator.eq),
}
PAGES = Path(__file__).parent / "pages"

Row = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Interval:
    """A median with the 5th and 95th percentile of resampled medians."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def interval(values: Sequence[float]) -> Interval:
    """Median and 90 % interval; deterministic."""
    return _interval(tuple(values))


@lru_cache(maxsize=1024)
def _interval(values: tuple[float, ...]) -> Interval:
    # Resampling is slow, and tables and gates ask for the same points again.
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    low, high = (medians[int(share * (RESAMPLES - 1))] for share in (0.05, 0.95))
    return Interval(statistics.median(values), low, high)


def percentiles(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The median and the 99th of a hundred; of few values that is the largest."""
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    return {"p50": round(statistics.median(ordered), digits), "p99": round(high, digits)}


def open_rows(path: Path, mode: str) -> TextIO:
    """A file of rows as text; what is appended to a packed one is packed by itself."""
    if path.suffix == PACKED:
        return cast(TextIO, lzma.open(path, mode, encoding="utf-8", newline=""))
    return cast(TextIO, path.open(mode, encoding="utf-8", newline=""))


def as_lines(values: Row) -> str:
    """JSON with a line for each row, not for each value: a third less of it."""
    return json.dumps(values, separators=(",", ":")).replace("},{", "},\n{") + "\n"


def write_json(path: Path, values: Row) -> None:
    """One report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_lines(values), encoding="utf-8")


def read_json(path: Path) -> Any:
    """A record."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_once(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """A reader that reads the same contents once; a file's time may not tell, within one tick."""

    @lru_cache(maxsize=1024)
    def kept(path: Path, digest: str) -> T:
        return read(path)

    return lambda path: kept(path, hashlib.sha256(path.read_bytes()).hexdigest())


def figures(values: Any, path: str) -> list[Any]:
    """Every value of a record that a path of names with dots leads to.

    `*` stands for all entries of a list or table, `key=text,…` for those with these values, a
    number for one entry of a list.
    """
    if not path:
        return [values]
    key, _, rest = path.partition(".")
    if key == "*" or "=" in key:
        entries = values.values() if isinstance(values, dict) else values
        wanted = [pair.split("=") for pair in key.split(",") if pair != "*"]
        chosen = [e for e in entries if all(str(e.get(name)) == text for name, text in wanted)]
        return [figure for entry in chosen for figure in figures(entry, rest)]
    if isinstance(values, list) and key.isdigit() and int(key) < len(values):
        return figures(values[int(key)], rest)
    return figures(values[key], rest) if isinstance(values, dict) and key in values else []


def append_row(path: Path, row: Row) -> None:
    """One more JSON line; a run that is broken off keeps what it has measured."""
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """All JSON lines of these files, packed or not."""
    found: list[Row] = []
    for path in paths:
        with open_rows(path, "rt") as lines:
            found += [json.loads(line) for line in lines]
    return found


def as_csv(rows: Sequence[Row], columns: Sequence[str] = ()) -> str:
    """Rows of equal fields."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns or rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write_csv(path: Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """The same as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_rows(path, "wt") as stream:
        stream.write(as_csv(rows, columns))


@dataclass(frozen=True)
class Origin:
    """Where a run's numbers come from."""

    options: Row  # all that is needed to run it again
    facts: Row

    @classmethod
    def of(cls, options: Row, device: str) -> Origin:
        """Read here and now."""
        text = json.dumps(options, sort_keys=True)
        facts = {
            **provenance(device),
            **device_facts(device),
            "triton": installed("triton"),
            "contract": hashlib.sha256(text.encode()).hexdigest(),
        }
        return cls(dict(options), facts)

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return {"options": dict(self.options), "provenance": dict(self.facts)}

    def write_csv(self, path: Path, rows: Sequence[Row]) -> None:
        """Rows with the columns of provenance behind their own."""
        own = {name: self.facts.get(name) for name in COLUMNS}
        columns = [*(rows[0] if rows else ()), *own]
        write_csv(path, [{**row, **own} for row in rows], columns)

    def lines(self) -> list[str]:
        """The same for the end of a page."""
        facts = self.facts
        versions = f"torch {facts['torch']}, triton {facts['triton']}, driver {facts['driver']}"
        return [
            f"{facts['device']}, {versions}; commit {facts['commit']}, {facts['date']}.",
            f"Options: `{json.dumps(self.options, sort_keys=True)}`.",
        ]


def line(cells: Iterable[Any]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def table(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Lines of a Markdown table."""
    return [line(header), "|" + "---|" * len(header), *(line(row) for row in rows)]


def cells(columns: Mapping[str, str], rows: Iterable[Row]) -> list[list[str]]:
    """Rows by the formats of their columns: `{"ms a round": "{ms:.3f}"}`."""
    return [[form.format_map(row) for form in columns.values()] for row in rows]


def formatted(columns: Mapping[str, str], rows: Iterable[Row]) -> list[str]:
    """Lines of a Markdown table of them."""
    # Two columns may have one heading: a space behind tells them apart.
    return table([name.rstrip() for name in columns], cells(columns, rows))


def shown(columns: Mapping[str, str], rows: Iterable[Row], title: str | None = None) -> Table:
    """The same for a terminal."""
    from rich.table import Table

    found = Table(*columns, title=title)
    for row in cells(columns, rows):
        found.add_row(*row)
    return found


def page(name: str, record: Row = MappingProxyType({}), /, **values: Any) -> str:
    """A page of `pages/`, its places filled from a record and by name; lists are lines."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    lines = {key: "\n".join(own) for key, own in values.items() if isinstance(own, list)}
    return text.format_map({**record, **values, **lines})
