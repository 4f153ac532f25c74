"""Cost tables: seconds of a round's parts by batch, context and rows, measured on one device."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.config.values import read_integer, read_number
from aerie.costs.waking import Waking, read_waking
from aerie.errors import UsageError

FORMAT = "aerie-costs"
VERSION = 1
MOST_SECONDS = 3600.0  # of one part of a round: more is no measurement


@dataclass(frozen=True)
class Sample:
    """One measured point: `rows` are the rows of all requests together."""

    batch: int
    context: int
    rows: int
    seconds: float
    experts: float = 0.0  # that a layer of a mixture touched meanwhile; dense: none


@dataclass(frozen=True)
class Surface:
    """Seconds over (batch, context, rows), linear between the measured points.

    Nothing is assumed about the shape in between: real cost is a staircase and may even fall.
    """

    samples: tuple[Sample, ...]

    def seconds(self, batch: int, context: float, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Seconds at every entry of `rows`."""
        total = self._between("seconds", batch, context, rows)
        # Beyond the measured points a straight line may cross zero; no pass costs nothing.
        return np.maximum(total, min(s.seconds for s in self.samples))

    def experts(self, batch: int, context: float, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Experts that a layer touched when these rows were measured."""
        return self._between("experts", batch, context, rows)

    def _between(
        self, name: str, batch: int, context: float, rows: NDArray[Any]
    ) -> NDArray[np.float64]:
        total = np.zeros(len(rows))
        batches = sorted({sample.batch for sample in self.samples})
        for near_batch, share in _blend(batches, batch):
            contexts = sorted({s.context for s in self.samples if s.batch == near_batch})
            for near_context, part in _blend(contexts, context):
                total += share * part * self._curve(name, near_batch, near_context, rows)
        return total

    def at(self, batch: int, context: float, rows: int) -> float:
        """Seconds at one point."""
        return float(self.seconds(batch, context, np.array([rows]))[0])

    def scaled(self, factor: float) -> Surface:
        """The same surface, so many times as dear."""
        return Surface(tuple(replace(s, seconds=s.seconds * factor) for s in self.samples))

    def _curve(
        self, name: str, batch: int, context: int, rows: NDArray[Any]
    ) -> NDArray[np.float64]:
        own = (s for s in self.samples if s.batch == batch and s.context == context)
        here = sorted((s.rows, getattr(s, name)) for s in own)
        x, y = np.array(here, dtype=np.float64).T
        inside: NDArray[np.float64] = np.interp(rows, x, y)
        if len(x) == 1:
            return inside
        slope = max(0.0, (y[-1] - y[-2]) / (x[-1] - x[-2]))
        beyond: NDArray[np.float64] = np.maximum(np.asarray(rows) - x[-1], 0.0)
        extended: NDArray[np.float64] = inside + slope * beyond
        return extended


def _blend(grid: Sequence[int], value: float) -> list[tuple[int, float]]:
    """Neighbours of a value with their shares; beyond the last two points a straight line."""
    if len(grid) == 1 or value <= grid[0]:
        return [(grid[0], 1.0)]
    high = min(int(np.searchsorted(grid, value)), len(grid) - 1)
    low, top = grid[high - 1], grid[high]
    share = (value - low) / (top - low)
    return [(top, share), (low, 1.0 - share)] if share != 1.0 else [(top, 1.0)]


@dataclass(frozen=True, eq=False)
class Prices:
    """The costs of one batch size and context, as arrays."""

    verify: NDArray[np.float64]  # [rows], index = rows of all requests; below the batch: its own
    draft: NDArray[np.float64]  # [width], index = nodes fed per request; 0 for none
    extend: float

    @property
    def plain(self) -> float:
        """Seconds of a round without drafts."""
        return float(self.verify[0])


@dataclass(frozen=True)
class CostTable:
    """What a round's parts cost: verify holds everything that is paid without drafting too."""

    verify: Surface  # target forward, layout, verdict, commit and the step around them
    draft: Surface  # one draft level: head, K1, K2, K3
    extend: Surface  # taking the target's features in; rows = requests
    provenance: Mapping[str, Any]
    waking: Waking | None = None  # of a mixture of experts

    def prices(self, batch: int, context: float, n_rows: int, n_widths: int) -> Prices:
        """Costs up to so many rows in all and nodes fed per request."""
        rows = np.maximum(np.arange(n_rows + 1), batch)
        widths = batch * np.arange(1, n_widths + 1)
        draft = self.draft.seconds(batch, context, widths)
        return Prices(
            verify=self._verify(batch, context, rows),
            draft=np.concatenate(([0.0], draft)),
            extend=self.extend.at(batch, context, batch),
        )

    def _verify(self, batch: int, context: float, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """As measured; where rows of real texts wake more experts than those did, that too."""
        seconds = self.verify.seconds(batch, context, rows)
        if self.waking is None:
            return seconds
        more = self.waking.touched(rows) - self.verify.experts(batch, context, rows)
        # Measured rows may have woken more than is expected of them; no pass costs nothing.
        priced: NDArray[np.float64] = seconds + self.waking.seconds * more
        return np.maximum(priced, float(seconds.min()))

    def save(self, path: Path) -> None:
        """Write the table as JSON; a reader of the file meanwhile finds the old one whole."""
        parts = {"verify": self.verify, "draft": self.draft, "extend": self.extend}
        rows: dict[str, Any] = {}
        for name, part in parts.items():
            rows[name] = [_row(sample) for sample in part.samples]
        if self.waking is not None:
            rows["waking"] = asdict(self.waking)
        head = {"format": FORMAT, "version": VERSION, "provenance": dict(self.provenance)}
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
        unfinished.write_text(json.dumps({**head, **rows}, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, path)


def load_costs(path: Path) -> CostTable:
    """Read a table; a file of another kind or version is refused by name."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"cost table {path} cannot be read: {error}; run aerie tune costs"
        ) from error
    known = values if isinstance(values, dict) else {}
    kind, provenance = (known.get("format"), known.get("version")), known.get("provenance", {})
    if kind != (FORMAT, VERSION) or not isinstance(provenance, dict):
        raise UsageError(
            f"{path} is {kind[0]!r:.40} version {kind[1]!r:.40}, not {FORMAT} version {VERSION}:"
            " run aerie tune costs again"
        )
    parts = {name: _surface(path, name, known.get(name)) for name in ("verify", "draft", "extend")}
    try:
        waking = read_waking(known.get("waking"))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return CostTable(**parts, provenance=provenance, waking=waking)


def _row(sample: Sample) -> dict[str, Any]:
    """A dense model's has no experts."""
    return {name: value for name, value in asdict(sample).items() if name != "experts" or value}


def _surface(path: Path, name: str, entries: Any) -> Surface:
    try:
        samples = tuple(_sample(**entry) for entry in entries)
    except (TypeError, UsageError) as error:
        raise UsageError(f"{path}: the samples of {name} are malformed: {error}") from error
    # Written so that NaN is wrong as well.
    wrong = [s for s in samples if not (0 < s.seconds < MOST_SECONDS and s.batch > 0 < s.rows)]
    if not samples or wrong:
        raise UsageError(f"{path}: {name} needs positive samples, got {wrong[:1] or 'none'}")
    return Surface(samples)


def _sample(batch: Any, context: Any, rows: Any, seconds: Any, experts: Any = 0.0) -> Sample:
    return Sample(
        read_integer("batch", batch),
        read_integer("context", context),
        read_integer("rows", rows),
        read_number("seconds", seconds),
        read_number("experts", experts),
    )
