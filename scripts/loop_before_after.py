"""Two checkouts' engines on a CPU, in turns: what a step of each costs at the same batch and context.

    python scripts/loop_before_after.py --old ../aerie-before --new . --out reports/loop_cpu.json

Each turn is a process of each checkout, on the same requests, whose prompts are taken as read; the
order changes from turn to turn. Tokens must be the same. A ratio is old seconds over new seconds of
one turn: above 1, the new one is faster. Processor time is kept beside wall time: on a busy machine
it is the one to read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

POINTS = [(batch, context) for context in (512, 8192) for batch in (1, 4, 16)]
STEPS = {512: 24, 8192: 8}  # timed at each point
WARM = 3
POLICIES = {
    "tree": {"policy": "fixed"},
    "plain": {"method": "none"},
}
BOOTSTRAPS = 2000


def measure(policy: str) -> list[dict[str, Any]]:
    """Every point in this process, by the checkout that is on the path."""
    from aerie import Engine, SamplingParams

    settings: dict[str, Any] = {
        "speculation": POLICIES[policy],
        "device": "cpu",
        "scheduler": {"max_batch": 16},
        "cache": {"n_pages": 16 * (8192 + 1024) // 16, "page_size": 16, "prefix_reuse": False},
    }
    core = Engine.load(**settings).core
    rows = []
    for batch, context in POINTS:
        params = SamplingParams(max_tokens=900, ignore_eos=True)
        prompts = [
            [(7 * place + 31 * index) % 4096 for place in range(context)] for index in range(batch)
        ]
        ids = [core.submit(prompt, params) for prompt in prompts]
        core.assume_read()
        for _ in range(WARM):
            core.step()
        wall, ran = time.perf_counter(), time.process_time()
        for _ in range(STEPS[context]):
            core.step()
        row = {"wall": time.perf_counter() - wall, "ran": time.process_time() - ran}
        texts = [list(core.request(request_id).output) for request_id in ids]
        rows.append({"batch": batch, "context": context, **row, "texts": hash(str(texts))})
        for request_id in ids:
            core.discard(request_id)
        core.step()
    return rows


def run(checkout: Path, policy: str) -> list[dict[str, Any]]:
    """One process of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
    command = [sys.executable, __file__, "--measure", policy]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr[-2000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def interval(ratios: list[float]) -> list[float]:
    """Ninety-five percent of the medians of resampled turns."""
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAPS)
    )
    return [round(medians[int(BOOTSTRAPS * share)], 4) for share in (0.025, 0.975)]


def compare(turns: list[dict[str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Ratios of every point over the turns."""
    found = []
    for index, (batch, context) in enumerate(POINTS):
        pairs = [(turn["old"][index], turn["new"][index]) for turn in turns]
        assert all(old["texts"] == new["texts"] for old, new in pairs), "texts differ"
        row: dict[str, Any] = {"batch": batch, "context": context}
        for clock in ("wall", "ran"):
            ratios = [old[clock] / new[clock] for old, new in pairs]
            row[clock] = {
                "median": round(statistics.median(ratios), 4),
                "interval": interval(ratios),
                "turns": [round(ratio, 4) for ratio in ratios],
            }
            row[f"new_{clock}_ms_a_step"] = round(
                1e3 * statistics.median(new[clock] for _, new in pairs) / STEPS[context], 3
            )
        found.append(row)
    return found


def main() -> int:
    """Exit status 1 where a median is below 0.97 or an interval wholly below 0.95."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--new", type=Path, default=Path())
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--clock", choices=("wall", "ran"), default="wall")
    parser.add_argument("--measure", choices=POLICIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return 0
    checkouts = {"old": options.old.resolve(), "new": options.new.resolve()}
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "clock": options.clock,
        "commits": {
            name: subprocess.run(
                ["git", "-C", str(where), "rev-parse", "HEAD"],
                capture_output=True, text=True, check=True,
            ).stdout.strip()
            for name, where in checkouts.items()
        },
    }  # fmt: skip
    is_ok = True
    for policy in POLICIES:
        turns = []
        for turn in range(options.turns):
            names = ("old", "new") if turn % 2 else ("new", "old")
            turns.append({name: run(checkouts[name], policy) for name in names})
            print(f"{policy}: turn {turn + 1} of {options.turns}", file=sys.stderr)
        report[policy] = compare(turns)
        for row in report[policy]:
            own = row[options.clock]
            is_ok &= own["median"] >= 0.97 and own["interval"][1] >= 0.95
            print(policy, row["batch"], row["context"], own["median"], own["interval"])
    report["ok"] = is_ok
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
