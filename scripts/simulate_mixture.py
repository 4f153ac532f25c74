"""Planned rounds of gpt-oss-120b's geometry at an H200's prices, on a CPU: is the rule sound there?

    python -m scripts.simulate_mixture [--points 1x1024,8x1024] [--turns 4] [--out FILE]

The price of a verification follows from the plain steps that were measured on the device
(reports/raw/gptoss_times_h200.json): so much for a step, for a row and for an expert that a layer
touches, rows routed independently of each other. Drafts cost what they cost a dense target of 4096
(src/aerie/costs/costs_h200_exact.json). Drafts and verdicts are those of the built-in pair, on
texts that do not loop; every graph that a captured round would launch is priced. So everything is
modelled but the tokens: this says how the planner decides, not how fast a device is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aerie.bench.bed import Bed, PromptBook, Run
from aerie.bench.contract import PLAIN, PLANNER, Contract, read_contract
from aerie.bench.provenance import provenance
from aerie.bench.record import Interval, interval, read_json, write_json
from aerie.bench.round.setup import RoundSetup
from aerie.costs.table import CostTable, Sample, Surface, load_costs
from aerie.costs.waking import Waking, expected_experts
from aerie.engine.captured import Captured
from aerie.models.inflate.embed import LargePair
from aerie.requests.events import TokenEvent
from aerie.text.loops import does_not_loop
from scripts import ROOT

CONTRACT = ROOT / "evidence/contracts/h200_planner.toml"
STEPS = ROOT / "reports/raw/gptoss_times_h200.json"
DRAFTS = ROOT / "src/aerie/costs/costs_h200_exact.json"
OUT = ROOT / "reports/planner_mixture.json"
EXPERTS, ACTIVE = 128, 4
BATCHES, PER_REQUEST = (1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
MOST_ROWS, MOST_WIDTH = 64, 8  # of a request, of a level
SPARE = 2_000  # positions beyond a context
FLOOR = 0.98


@dataclass(frozen=True)
class Fitted:
    """Milliseconds of a step, of a row, and of an expert in every layer; and how well they fit."""

    step: float
    row: float
    expert: float
    worst_error: float

    def seconds(self, rows: int) -> float:
        """Of a verification of rows that are routed independently."""
        touched = float(expected_experts(ACTIVE, EXPERTS, rows))
        return (self.step + self.row * rows + self.expert * touched) / 1e3


def fit_steps(record: dict[str, Any]) -> Fitted:
    """Of all measured plain steps, uniform and Zipf routing, by least squares."""
    steps = [one for name, own in record.items() if name.startswith("steps_of_") for one in own]
    taken = np.array([one["device_ms"]["verify"] for one in steps])
    terms = np.array([[1.0, one["batch"], one["experts_touched"]] for one in steps])
    found = np.linalg.lstsq(terms, taken, rcond=None)[0]
    worst = float(np.abs(terms @ found / taken - 1).max())
    step, row, expert = (max(0.0, float(value)) for value in found)
    return Fitted(step, row, expert, worst)


def table_of(fitted: Fitted) -> CostTable:
    """As `aerie tune costs` would write it where the fit is the truth."""
    drafts = load_costs(DRAFTS)
    samples = [
        Sample(
            batch,
            1024,
            batch * n,
            fitted.seconds(batch * n),
            float(expected_experts(ACTIVE, EXPERTS, batch * n)),
        )
        for batch in BATCHES
        for n in PER_REQUEST
    ]
    return replace(
        drafts,
        verify=Surface(tuple(samples)),
        provenance={"kind": "modelled"},
        waking=Waking(ACTIVE, EXPERTS, fitted.expert / 1e3),
    )


class PricedBed(Bed):
    """Counts the graphs of the rounds that count."""

    def __init__(self, contract: Contract, setup: RoundSetup, pair: LargePair) -> None:
        super().__init__(contract, setup, pair)
        self.launched: Counter[Any] = Counter()

    def _count(self, run: Run, events: list[TokenEvent], last: dict[int, float]) -> None:
        super()._count(run, events, last)
        if run.rounds == 1:
            self.launched.clear()  # of the lead-in

    def priced(
        self, name: str, prompts: Sequence[Sequence[int]], n_new: int, table: CostTable
    ) -> dict[str, Any]:
        """Tokens per second of one run by the table, and what its rounds were."""
        launcher = self.take(name)
        assert isinstance(launcher, Captured), "rounds of the captured launcher are priced"
        launcher.record = lambda *sizes: None  # type: ignore[method-assign]
        launcher.graphs.watch = lambda key: self.launched.update([key])
        run = self.run(name, prompts, n_new)
        launcher.graphs.watch = lambda key: None
        context = statistics.mean(map(len, prompts))
        prices = table.prices(len(prompts), context, len(prompts) * MOST_ROWS, MOST_WIDTH)
        verified, drafted, rows, shapes = [], [], [], Counter[str]()
        for kind, bucket, *widths in self.launched.elements():
            if kind == "verify":
                rows.append(bucket.rows)
                verified.append(float(prices.verify[bucket.rows]))
            elif kind == "draft":
                fed = widths[0]
                shapes[f"{len(fed)}x{max(fed, default=0)}"] += 1
                drafted.append(prices.extend + sum(float(prices.draft[width]) for width in fed))
        # A draft runs ahead of the round it is for, so there may be one more or less of them.
        share = min(1.0, len(drafted) / len(verified))
        seconds = statistics.mean(verified) + share * statistics.mean(drafted or [0.0])
        return {
            "tokens_per_second": run.tokens / run.rounds / seconds,
            "tokens_per_round": run.tokens / run.rounds / len(prompts),
            "rows": statistics.mean(rows),
            "drafts": shapes,
        }


def simulate(table: CostTable, path: Path, point: str, n_turns: int) -> dict[str, Any]:
    """All policies on the same groups of prompts; a planner has learnt from a first turn."""
    batch, context = (int(part) for part in point.split("x"))
    contract = read_contract(CONTRACT)
    planner = replace(contract.policies[PLANNER], costs=str(path))
    longest = context + SPARE
    kept = replace(contract.memory, kv_tokens=2 * batch * longest, longest=longest, slots=(batch,))
    contract = replace(contract, memory=kept, policies={**contract.policies, PLANNER: planner})
    setup = RoundSetup("cpu", "float32", None, "numpy")
    bed, book = PricedBed(contract, setup, setup.load()), PromptBook()
    names = [name for name in contract.policies if not name.startswith("tree-")]
    groups = chosen(bed, book, batch, context, n_turns + 1)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn, group in enumerate(groups):
        for name in names:
            own = bed.priced(name, group, 160, table)
            if turn:
                found[name].append(own)
                print(point, turn, name, own, flush=True)
    speeds = {n: [own["tokens_per_second"] for own in turns] for n, turns in found.items()}
    rivals = [name for name in names if name != PLANNER]
    best = max(rivals, key=lambda name: statistics.median(speeds[name]))
    ratio = interval([a / b for a, b in zip(speeds[PLANNER], speeds[best], strict=True)])
    plain = interval([a / b for a, b in zip(speeds[PLANNER], speeds[PLAIN], strict=True)])
    print(point, "best", best, ratio, "over plain", plain, flush=True)
    return {"best": best, "over_best": asdict(ratio), "over_plain": asdict(plain), "turns": found}


def chosen(
    bed: PricedBed, book: PromptBook, batch: int, context: int, n_groups: int
) -> list[list[tuple[int, ...]]]:
    """Groups of prompts whose texts do not loop."""
    kept: list[tuple[int, ...]] = []
    pieces = iter(book.pieces(context))
    while len(kept) < n_groups * batch:
        tried = [next(pieces).tokens for _ in range(batch)]
        bed.read(tried, "chain-7")
        texts = bed.run("chain-7", tried, 160).texts
        kept += [
            tokens
            for tokens, text in zip(tried, texts, strict=True)
            if does_not_loop(text, book.end_ids)
        ]
    return [kept[at : at + batch] for at in range(0, n_groups * batch, batch)]


def holds(found: dict[str, Any]) -> bool:
    """No interval lies wholly below the floor, over the best rival or over plain decoding."""
    return all(Interval(**found[name]).high >= FLOOR for name in ("over_best", "over_plain"))


def main() -> int:
    """Fit, simulate, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", default="1x1024,4x1024,8x1024,32x1024")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    fitted = fit_steps(read_json(STEPS))
    print(fitted, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.json"
        table_of(fitted).save(path)
        table = load_costs(path)
        points = {p: simulate(table, path, p, asked.turns) for p in asked.points.split(",")}
    is_ok = all(map(holds, points.values()))
    record = {"ok": is_ok, "kind": "modelled", "fitted": asdict(fitted), "points": points}
    write_json(asked.out, {**record, "provenance": provenance("cpu")})
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
