"""Planned rounds at an H200's prices, on a CPU: writes reports/planner_simulation.json.

    PYTHONPATH=src python scripts/simulate_planned_rounds.py [--prompts 8] [--tokens 192]

Prices are fitted to the rounds that fixed policies took on the device at batch 1
(reports/h200_baseline_raw.csv); captured rounds then run on the CPU with the built-in pair, whose
drafts are those of its inflation, and every graph they launch is priced. All results are modelled:
they say whether the planner's rule is sound at such prices, not how fast a device runs it.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from aerie.bench.provenance import provenance  # noqa: E402
from aerie.bench.round.planner import PLANNER, RIVALS  # noqa: E402
from aerie.bench.round.setup import Room, RoundSetup, read_prompts, start  # noqa: E402
from aerie.config import GraphConfig  # noqa: E402
from aerie.engine.engine import EngineCore  # noqa: E402
from aerie.engine.graphs import smallest  # noqa: E402
from aerie.speculation.costs import CostTable, Prices, Sample, Surface  # noqa: E402
from aerie.speculation.policy import Situation  # noqa: E402

RAW = ROOT / "reports" / "h200_baseline_raw.csv"
CONTRACT = ROOT / "contracts" / "h200.toml"
CONTEXTS = (1024, 32768)
PROMPT = 256  # tokens; the context that is priced is another matter


def measured_rounds() -> dict[tuple[int, str], float]:
    """Median milliseconds of a round at batch 1, by context and policy."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    with RAW.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if int(row["batch"]) == 1 and int(row["context"]) in CONTEXTS:
                spent = 1e3 * float(row["seconds"]) / int(row["rounds"])
                found[int(row["context"]), row["policy"]].append(spent)
    return {key: statistics.median(times) for key, times in found.items()}


def fit() -> tuple[CostTable, dict[str, Any]]:
    """Least squares: a row's price at each context, one of each level, one of all the rest."""
    rounds = measured_rounds()
    shapes = tomllib.loads(CONTRACT.read_text(encoding="utf-8"))["policies"]
    buckets = GraphConfig().rows
    rows, wanted, names = [], [], []
    for (context, policy), ms in sorted(rounds.items()):
        shape = shapes[policy]
        if shape["method"] != "fixed":
            continue
        n_rows = smallest(buckets, shape["verify_num"]) - 1
        n_levels = shape["tree_depth"] - 1
        of_context = [n_rows * (context == own) for own in CONTEXTS]
        of_width = [n_levels * (shape["node_top_k"] == width) for width in (1, 8)]
        rows.append([*of_context, *of_width, 1])
        wanted.append(ms - rounds[context, "plain"])
        names.append(f"{policy} at {context}")
    solved = np.linalg.lstsq(np.array(rows, float), np.array(wanted), rcond=None)[0]
    off = dict(zip(names, np.round(np.array(rows) @ solved - wanted, 3).tolist(), strict=True))
    *per_row, narrow, wide, extend = solved.tolist()
    verify = tuple(
        Sample(1, context, n, 1e-3 * (rounds[context, "plain"] + price * (n - 1)))
        for context, price in zip(CONTEXTS, per_row, strict=True)
        for n in buckets
        if n <= 64
    )
    levels = tuple(Sample(1, 1024, n, 1e-3 * ms) for n, ms in ((1, narrow), (8, wide)))
    made = {"kind": "modelled", "from": RAW.name}
    last = Surface((Sample(1, 1024, 1, 1e-3 * extend),))
    fitted = {"ms_per_row": per_row, "level_ms": [narrow, wide], "extend_ms": extend, "off_ms": off}
    return CostTable(Surface(verify), Surface(levels), last, made), fitted


def price_of(key: Any, prices: Prices) -> float:
    """Seconds of one graph."""
    kind, bucket, *widths = key
    if kind in ("plain", "verify"):
        return float(prices.verify[bucket.rows])
    if kind in ("close", "publish"):
        return 0.0
    (fed,) = widths
    return prices.extend + sum(float(prices.draft[width]) for width in fed)


def simulate(core: EngineCore, prompt: list[int], n_new: int, prices: Prices) -> tuple[int, float]:
    """Tokens of one text and its modelled seconds."""
    assert core.rounds is not None, "captured rounds are priced"
    (request_id,) = start(core, [prompt], n_new)
    launched: Counter[Any] = Counter()
    core.rounds.graphs.watch = lambda key: launched.update([key])
    before = len(core.request(request_id).output)
    while not core.is_idle:
        core.step()
    core.rounds.graphs.watch = lambda key: None
    n_tokens = len(core.forget(request_id).output) - before
    return n_tokens, sum(n * price_of(key, prices) for key, n in launched.items())


def main() -> None:
    """Every policy on the same prompts, at the prices of each context."""
    options = argparse.ArgumentParser()
    options.add_argument("--prompts", type=int, default=8)
    options.add_argument("--tokens", type=int, default=192)
    asked = options.parse_args()
    table, fitted = fit()
    file = ROOT / "build" / "costs_modelled.json"
    file.parent.mkdir(exist_ok=True)
    table.save(file)
    setup = RoundSetup("cpu", "float32", None, "numpy", costs=str(file))
    pair = setup.load()
    prompts = read_prompts(asked.prompts, PROMPT, pair.target.geometry.vocab_size)
    points: dict[str, dict[str, Any]] = {}
    for context in CONTEXTS:
        prices = table.prices(1, context, 64, 8)
        point: dict[str, Any] = {}
        for name, policy in RIVALS.items():
            core = setup.core(pair, policy, Room(1, PROMPT + asked.tokens + 512))
            if name == PLANNER:
                _pretend(core, context)
            found = [simulate(core, prompt, asked.tokens, prices) for prompt in prompts]
            tokens, seconds = (sum(part) for part in zip(*found, strict=True))
            point[name] = {
                "tokens_per_second": round(tokens / seconds, 1),
                "by_prompt": [round(n / spent, 1) for n, spent in found],
            }
            print(context, name, point[name], flush=True)
        points[str(context)] = point
    record = {
        "kind": "modelled",
        "prices": fitted,
        "new_tokens": asked.tokens,
        "points": points,
        "provenance": provenance("cpu"),
    }
    text = json.dumps(record, indent=1) + "\n"
    (ROOT / "reports" / "planner_simulation.json").write_text(text, encoding="utf-8")


def _pretend(core: EngineCore, context: int) -> None:
    """Let a planner pay for another context than its texts have."""
    assert core.rounds is not None
    planner = core.rounds.parts.policy.planner  # type: ignore[attr-defined]
    priced = planner.prices
    planner.prices = lambda situation: priced(Situation(situation.batch, context))


if __name__ == "__main__":
    main()
