"""One session of `aerie bench engine`: every place, then the tables and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from aerie.bench.engine.contract import PLANNER, Contract
from aerie.bench.engine.place import (
    Note,
    head_of_report,
    open_setting,
    run_place,
)
from aerie.bench.engine.plot import draw, write_points, write_runs
from aerie.bench.engine.summary import Place, payload
from aerie.bench.engine.transformers_rival import against_transformers
from aerie.bench.record import as_lines
from aerie.config import PlannerConfig
from aerie.costs.table import CostTable

ORIGIN = ("commit", "source_sha256", "device", "torch", "threads", "date")


@dataclass(frozen=True)
class Session:
    """What a session found."""

    places: Sequence[Place]
    costs: CostTable
    payload: dict[str, Any]

    def table(self) -> Table:
        """Speed of every policy, one row a place; the planner's share of the best beside it."""
        names = [point.policy for point in self.places[0].points]
        shown = Table(title="tokens per second over plain decoding, medians")
        for heading in ("batch", "context", *names, "of best fixed", "regret"):
            shown.add_column(heading, justify="right")
        for place in self.places:
            speeds = [f"{point.ratio_to_plain:.2f}" for point in place.points]
            share = f"{place.to_best_fixed.median:.2f} {place.best_fixed}"
            shown.add_row(
                str(place.batch), str(place.context), *speeds, share, f"{place.regret:.1%}"
            )
        return shown

    def write(self, folder: Path, name: str) -> None:
        """Raw rows, result, cost table and picture."""
        folder.mkdir(parents=True, exist_ok=True)
        write_points(self.places, folder / f"{name}.csv")
        origin = {
            "contract": self.payload["contract"]["hash"],
            **{key: self.payload["provenance"][key] for key in ORIGIN},
        }
        write_runs(self.places, origin, folder / f"{name}_runs.csv.xz")
        (folder / f"{name}.json").write_text(as_lines(self.payload), encoding="utf-8")
        self.costs.save(folder / f"{name}_costs.json")
        draw(self.places, folder / f"{name}.png")


def run_session(
    contract: Contract, costs: PlannerConfig, with_transformers: bool, note: Note
) -> Session:
    """Run every place of a contract."""
    setting = open_setting(contract, costs, note)
    note(f"contract {contract.digest}; costs: {setting.costs.provenance.get('kind')}")
    to_transformers = against_transformers(setting) if with_transformers else None
    places = []
    for context in contract.contexts:
        for batch in contract.batches:
            place = run_place(setting, batch, context)
            note(
                f"batch {batch}, context {context}: {PLANNER} {place.to_plain.median:.2f} of plain,"
                f" {place.to_best_fixed.median:.2f} of {place.best_fixed}"
            )
            places.append(place)
    found = payload(places, head_of_report(setting), to_transformers)
    return Session(places, setting.costs, found)
