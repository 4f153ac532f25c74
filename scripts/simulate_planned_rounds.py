"""Planned rounds at an H200's prices, on a CPU: writes reports/planner_simulation.json.

    PYTHONPATH=src python scripts/simulate_planned_rounds.py [--points 1x512,8x8192] [--tokens 96]

Prices are those of the cost table that was measured on the device. First they are held against the
rounds that fixed policies took there (reports/h200_baseline_raw.csv): a table that does not
describe real rounds makes bad plans. Captured rounds then run on the CPU with the built-in pair,
whose drafts are those of its inflation, and every graph they launch is priced. All results are
modelled: they say whether the planner's rule is sound at such prices, not how fast a device is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from aerie.bench.gpu.rows import read_rows  # noqa: E402
from aerie.bench.provenance import provenance  # noqa: E402
from aerie.bench.round.planner import PLANNER, RIVALS  # noqa: E402
from aerie.bench.round.setup import Room, RoundSetup, read_prompts, start  # noqa: E402
from aerie.config import GraphConfig  # noqa: E402
from aerie.engine.engine import EngineCore  # noqa: E402
from aerie.engine.graphs import smallest  # noqa: E402
from aerie.engine.measure import abandon  # noqa: E402
from aerie.speculation.costs import CostTable, Prices, load_costs  # noqa: E402
from aerie.speculation.policy import Situation  # noqa: E402

REPORTS = ROOT / "reports"
CONTRACT = ROOT / "contracts" / "h200_planner.toml"
PROMPT = 256  # tokens; the context that is priced is another matter
LEAD_IN = 3  # rounds that are not priced: newcomers verify their root
MOST_ROWS, MOST_WIDTH = 64, 8


def against_rounds(table: CostTable) -> list[dict[str, Any]]:
    """What the table says of fixed policies' rounds, beside what they took."""
    shapes = tomllib.loads(CONTRACT.read_text(encoding="utf-8"))["policies"]
    taken: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for row in read_rows(REPORTS / "h200_baseline_raw.csv"):
        if row.scenario.startswith("planner") and shapes[row.policy]["method"] == "fixed":
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


def price_of(key: Any, prices: Prices) -> float:
    """Seconds of one graph."""
    kind, bucket, *widths = key
    if kind in ("plain", "verify"):
        return float(prices.verify[bucket.rows])
    if kind in ("close", "publish"):
        return 0.0
    (fed,) = widths
    return prices.extend + sum(float(prices.draft[width]) for width in fed)


def simulate(
    core: EngineCore, prompts: list[list[int]], n_new: int, prices: Prices
) -> tuple[int, float]:
    """Tokens of a whole batch and its modelled seconds, until it has written so much on average."""
    assert core.rounds is not None, "captured rounds are priced"
    ids = start(core, prompts, 4 * n_new + 128)
    for _ in range(LEAD_IN):
        core.step()
    launched: Counter[Any] = Counter()
    core.rounds.graphs.watch = lambda key: launched.update([key])
    before = sum(len(core.request(i).output) for i in ids)
    n_tokens = 0
    while n_tokens < n_new * len(ids):
        core.step()
        n_tokens = sum(len(core.request(i).output) for i in ids) - before
    core.rounds.graphs.watch = lambda key: None
    abandon(core, ids)
    return n_tokens, sum(n * price_of(key, prices) for key, n in launched.items())


def main() -> None:
    """The table against measured rounds, then every policy on the same prompts at every point."""
    options = argparse.ArgumentParser()
    options.add_argument("--points", default="1x512,8x8192,32x512")
    options.add_argument("--groups", type=int, default=4)
    options.add_argument("--tokens", type=int, default=64)
    asked = options.parse_args()
    file = REPORTS / "costs_h200.json"
    table = load_costs(file)
    held = against_rounds(table)
    for line in held:
        print(line, flush=True)
    setup = RoundSetup("cpu", "float32", None, "numpy", costs=str(file))
    pair = setup.load()
    points: dict[str, dict[str, Any]] = {}
    for name in asked.points.split(","):
        batch, context = (int(part) for part in name.split("x"))
        prices = table.prices(batch, context, batch * MOST_ROWS, MOST_WIDTH)
        vocabulary = pair.target.geometry.vocab_size
        every = read_prompts(batch * asked.groups, PROMPT, vocabulary)
        groups = [every[at : at + batch] for at in range(0, len(every), batch)]
        point: dict[str, Any] = {}
        for rival, policy in RIVALS.items():
            core = setup.core(pair, policy, Room(batch, PROMPT + 5 * asked.tokens + 1024))
            if rival == PLANNER:
                _pretend(core, context)
                simulate(core, groups[0], asked.tokens, prices)  # as an engine in use has learnt
            found = [simulate(core, group, asked.tokens, prices) for group in groups]
            tokens, seconds = (sum(part) for part in zip(*found, strict=True))
            point[rival] = {
                "tokens_per_second": round(tokens / seconds, 1),
                "by_group": [round(n / spent, 1) for n, spent in found],
            }
            print(name, rival, point[rival], flush=True)
        points[name] = point
    record = {
        "kind": "modelled",
        "costs": {"commit": table.provenance["commit"], "device": table.provenance["device"]},
        "against_rounds": held,
        "new_tokens": asked.tokens,
        "points": points,
        "provenance": provenance("cpu"),
    }
    text = json.dumps(record, indent=1) + "\n"
    (REPORTS / "planner_simulation.json").write_text(text, encoding="utf-8")


def _pretend(core: EngineCore, context: int) -> None:
    """Let a planner pay for another context than its texts have."""
    assert core.rounds is not None
    planner = core.rounds.parts.policy.planner  # type: ignore[attr-defined]
    priced = planner.prices
    planner.prices = lambda situation: priced(Situation(situation.batch, context))


if __name__ == "__main__":
    main()
