"""Parity, synchronisation and graph capture of the PyTorch kernels on a GPU, as log and JSON.

Run it from the repository root with `src` on PYTHONPATH: `scripts/gpu_kernels.sh reports`. The
last line of the log is the verdict; the exit status is 0 if every kernel passes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
NAME = "pytorch_graph_capture"

# A bare machine has no installed package: the source and the shared test modules are beside us.
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from aerie.bench.provenance import COMMIT_VARIABLE, provenance  # noqa: E402
from aerie.kernels import catalogue, load  # noqa: E402
from aerie.kernels.cases import cases_for  # noqa: E402
from tests.gpu.capture import DEVICE, Outcome, run_case  # noqa: E402


def main() -> int:
    """Run every case of every kernel; write the log and the record; say whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports", help="folder of the reports")
    parser.add_argument("--commit", help=f"commit under test, else {COMMIT_VARIABLE}, else git's")
    options = parser.parse_args()
    if options.commit:
        os.environ[COMMIT_VARIABLE] = options.commit
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device; nothing was run", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"{NAME}.log").open("w", encoding="utf-8") as log:

        def say(line: str) -> None:
            print(line, flush=True)
            log.write(line + "\n")

        record = run_all(say)
    text = json.dumps(record, indent=2) + "\n"
    (options.out / f"{NAME}.json").write_text(text, encoding="utf-8")
    return 0 if record["ok"] else 1


def run_all(say: Callable[[str], None]) -> dict[str, Any]:
    """Every kernel in the order of its number; one line each, and one per case that fails."""
    origin = {**provenance(DEVICE), "driver": driver_version()}
    say("PyTorch kernels on a GPU: eager under sync-debug 'error', captured on zeros, replayed")
    for name, value in origin.items():
        say(f"  {name}: {value}")
    say(f"{'kernel':<40}{'cases':>6}{'refused':>9}{'captured':>10}{'replays':>9}{'ulps':>6}  ok")
    kernels = load("pytorch", DEVICE, data_errors="status")
    reference = load("reference", data_errors="status")
    rows = []
    for name in catalogue():
        start = time.perf_counter()
        outcomes = [run_case(kernels, reference, case) for case in cases_for(name)]
        row = summary(name, outcomes, time.perf_counter() - start)
        rows.append(row)
        say(
            f"{name:<40}{row['cases']:>6}{row['refused_on_host']:>9}{row['captured']:>10}"
            f"{row['replays']:>9}{row['max_ulps']:>6}  {'yes' if row['ok'] else 'NO'}"
        )
        for failure in row["failures"]:
            say(f"  FAILED {failure}")
    totals = Counter[str]()
    for row in rows:
        totals.update({key: row[key] for key in ("cases", "captured", "replays")})
    is_ok = all(row["ok"] for row in rows)
    say(
        f"{'ok' if is_ok else 'FAILED'}: {len(rows)} kernels, {totals['cases']} cases,"
        f" {totals['captured']} captured, {totals['replays']} replays"
    )
    return {"provenance": origin, "ok": is_ok, **totals, "kernels": rows}


def summary(kernel: str, outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """One row of the report."""
    failures = [f"{outcome.case}: {outcome.reason}" for outcome in outcomes if outcome.reason]
    n_captured = sum(outcome.is_captured for outcome in outcomes)
    return {
        "kernel": kernel,
        "cases": len(outcomes),
        "refused_on_host": sum(outcome.is_refused_on_host for outcome in outcomes),
        "captured": n_captured,
        "replays": sum(outcome.n_replays for outcome in outcomes),
        "max_ulps": max(outcome.ulps for outcome in outcomes),
        "seconds": round(seconds, 1),
        "failures": failures,
        "ok": not failures and n_captured > 0,
    }


def driver_version() -> str:
    """The driver's version as its own tool tells it, or unknown."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = asked.stdout.split()
    return lines[0] if lines else "unknown"


if __name__ == "__main__":
    sys.exit(main())
