"""Planned rounds at an H200's prices, on a CPU: writes reports/planner_simulation.json.

    PYTHONPATH=src python scripts/simulate_planned_rounds.py [--points 32x1024,8x8192] [--turns 6]

Prices are those of the cost table that was measured on the device. First they are held against the
rounds that fixed policies took there (reports/h200_baseline_raw.csv.xz): a table that does not
describe real rounds makes bad plans. Then points of evidence/contracts/h200_planner.toml run on the
CPU, on the same prompts, with the built-in pair, whose drafts are those of its inflation, and every
graph that a round launches is priced. All results are modelled: they say whether the planner's rule
is sound at such prices, not how fast a device is. A point of 32 x 8K takes six minutes, one of 8 x
32K ten, one of 1K one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from aerie.bench.bed import (  # noqa: E402
    Bed,
    PromptBook,
    Run,
)
from aerie.bench.contract import Contract, PolicyTerms, Scenario, read_contract  # noqa: E402
from aerie.bench.provenance import provenance  # noqa: E402
from aerie.bench.round.setup import RoundSetup  # noqa: E402
from aerie.bench.rows import read_rows  # noqa: E402
from aerie.config import GraphConfig  # noqa: E402
from aerie.costs.table import CostTable, Prices, load_costs  # noqa: E402
from aerie.engine.graphs import smallest  # noqa: E402
from aerie.models.inflate.embed import LargePair  # noqa: E402
from aerie.requests.events import TokenEvent  # noqa: E402

REPORTS = ROOT / "reports"
CONTRACT = ROOT / "evidence/contracts/h200_planner.toml"
TABLE = REPORTS / "costs_h200.json"
PLANNER, CHAIN = "planner", "chain-7"
CHAINS = (7, 12, 16)  # levels of the rivals: deep ones win where a text repeats itself
SPARE = 2_000  # positions beyond a context
MOST_ROWS, MOST_WIDTH = 64, 8


def against_rounds(table: CostTable) -> list[dict[str, Any]]:
    """What the table says of fixed policies' rounds, beside what they took."""
    shapes = tomllib.loads(CONTRACT.read_text(encoding="utf-8"))["policies"]
    taken: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for row in read_rows(REPORTS / "h200_baseline_raw.csv.xz"):
        is_fixed = row.scenario.startswith("planner") and shapes[row.policy]["method"] == "fixed"
        if is_fixed and row.commit == table.provenance["commit"]:  # the same code
            spent = 1e3 * float(row.seconds) / int(row.rounds)
            taken[int(row.batch), int(row.context), row.policy].append(spent)
    found = []
    for (batch, context, policy), times in sorted(taken.items()):
        shape = shapes[policy]
        prices = table.prices(batch, context, batch * MOST_ROWS, MOST_WIDTH)
        n_rows = smallest(GraphConfig().rows, batch * shape["verify_num"])
        levels = (shape["tree_depth"] - 1) * float(prices.draft[shape["node_top_k"]])
        modelled = 1e3 * (float(prices.verify[n_rows]) + prices.extend + levels)
        measured = statistics.median(times)
        found.append(
            {
                "point": f"{batch}x{context}",
                "policy": policy,
                "rows": n_rows,
                "modelled_ms": round(modelled, 3),
                "measured_ms": round(measured, 3),
                "ratio": round(modelled / measured, 3),
            }
        )
    return found


class PricedBed(Bed):
    """Counts the graphs of the rounds that are timed."""

    def __init__(self, contract: Contract, setup: RoundSetup, pair: LargePair) -> None:
        super().__init__(contract, setup, pair)
        self.launched: Counter[Any] = Counter()

    def _count(self, run: Run, events: list[TokenEvent], last: dict[int, float]) -> None:
        super()._count(run, events, last)
        if run.rounds == 1:
            self.launched.clear()  # of the lead-in

    def modelled(
        self, name: str, prompts: list[tuple[int, ...]], n_new: int, prices: Prices
    ) -> Any:
        """Tokens per second of one run, by the table; what a round was, on average."""
        launcher = self.take(name)
        launcher.record = lambda *sizes: None  # type: ignore[attr-defined]
        launcher.graphs.watch = lambda key: self.launched.update([key])
        run = self.run(name, prompts, n_new)
        launcher.graphs.watch = lambda key: None
        verified, drafted = _priced(self.launched, prices)
        seconds = run.rounds * (verified + drafted)
        return {
            "tokens_per_second": round(run.tokens / seconds, 1),
            "tokens_per_round": round(run.tokens / run.rounds / len(prompts), 3),
            "ms_per_round": round(1e3 * (verified + drafted), 3),
            "graphs": _named(self.launched),
        }


def _priced(launched: Counter[Any], prices: Prices) -> tuple[float, float]:
    """Mean seconds of a verification and of a draft."""
    verified, drafted = [], []
    for kind, bucket, *widths in launched.elements():
        if kind == "verify":
            verified.append(float(prices.verify[bucket.rows]))
        elif kind == "draft":
            (fed,) = widths
            drafted.append(prices.extend + sum(float(prices.draft[width]) for width in fed))
    # A draft runs ahead of the round it is for, so there may be one more or less of them.
    return statistics.mean(verified), statistics.mean(drafted or [0.0])


def _named(launched: Counter[Any]) -> dict[str, int]:
    """Rows of every verification, levels and width of every draft."""
    found: Counter[str] = Counter()
    for (kind, bucket, *widths), n_times in launched.items():
        if kind == "verify":
            found[f"{kind} {bucket.rows}"] += n_times
        elif kind == "draft":
            found[f"{kind} {len(widths[0])}x{max(widths[0], default=0)}"] += n_times
    return dict(sorted(found.items()))


def open_bed(contract: Contract, batch: int, context: int, n_prompts: int) -> PricedBed:
    """The contract's engine, small: room for one point on a CPU."""
    planner = replace(contract.policies[PLANNER], costs=str(TABLE))
    policies = {**contract.policies, **chains(contract), PLANNER: planner}
    n_tokens = n_prompts * (context + SPARE)
    memory = replace(contract.memory, kv_tokens=n_tokens, longest=context + SPARE, slots=(batch,))
    setup = RoundSetup("cpu", "float32", None, "numpy")
    pair: LargePair = setup.load()
    return PricedBed(replace(contract, memory=memory, policies=policies), setup, pair)


def simulate(contract: Contract, table: CostTable, point: str, n_turns: int) -> dict[str, Any]:
    """The planner beside chains, turn by turn; the first turn of each is not counted."""
    batch, context = (int(part) for part in point.split("x"))
    scenario: Scenario = next(
        s for s in contract.scenarios if batch in s.batches and context in s.contexts
    )
    n_prompts = scenario.groups * batch
    prompts = [prompt.tokens for prompt in PromptBook().choose(context, n_prompts)]
    groups = [prompts[at : at + batch] for at in range(0, n_prompts, batch)]
    prices = table.prices(batch, context, batch * MOST_ROWS, MOST_WIDTH)
    bed = open_bed(contract, batch, context, n_prompts)
    bed.read(prompts, CHAIN)
    found: dict[str, Any] = {}
    for name in (*chains(contract), PLANNER):
        # A fixed policy writes the same again; a planner has learnt from the turn before.
        turns = [
            bed.modelled(name, groups[turn % len(groups)], scenario.new_tokens, prices)
            for turn in range(n_turns + 1 if name == PLANNER else len(groups) + 1)
        ][1:]
        speed = statistics.median(turn["tokens_per_second"] for turn in turns)
        found[name] = {"tokens_per_second": speed, "turns": turns}
        print(point, name, speed, turns[-1], flush=True)
    best = max(own["tokens_per_second"] for name, own in found.items() if name != PLANNER)
    return {"ratio": round(found[PLANNER]["tokens_per_second"] / best, 3), **found}


def chains(contract: Contract) -> dict[str, PolicyTerms]:
    """The rivals by name."""
    terms = contract.policies[CHAIN]
    return {f"chain-{n}": replace(terms, tree_depth=n, verify_num=n + 1) for n in CHAINS}


def main() -> None:
    """The table against measured rounds, then the points."""
    options = argparse.ArgumentParser()
    options.add_argument("--points", default="1x1024,8x1024,32x1024")
    options.add_argument("--turns", type=int, default=9)
    options.add_argument("--out", type=Path, default=REPORTS / "planner_simulation.json")
    asked = options.parse_args()
    table = load_costs(TABLE)
    held = against_rounds(table)
    for line in held:
        print(line, flush=True)
    contract = read_contract(CONTRACT)
    points = {
        point: simulate(contract, table, point, asked.turns) for point in asked.points.split(",")
    }
    record = {
        "kind": "modelled",
        "costs": {"commit": table.provenance["commit"], "device": table.provenance["device"]},
        "against_rounds": held,
        "points": points,
        "provenance": provenance("cpu"),
    }
    text = json.dumps(record, indent=1) + "\n"
    asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
