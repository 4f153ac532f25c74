"""Kernels on a GPU machine: parity with capture, times inside graphs, tuned products.

Run it from the repository root: `scripts/gpu_kernels.sh reports`. The last line is the verdict; the
exit status is 0 if every case of every kernel passes.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from aerie.bench.provenance import COMMIT_VARIABLE, device_facts, provenance
from aerie.bench.record import write_json
from scripts import ROOT

BACKENDS = ("pytorch", "triton")
STAGES = ("parity", "gemm", "times")
POINTS = ((1, 64), (32, 8))


def main() -> int:
    """Run the stages asked for; write their records; say whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports/raw", help="folder of records")
    parser.add_argument("--commit", help=f"commit under test, else {COMMIT_VARIABLE}, else git's")
    parser.add_argument("--stages", default=",".join(STAGES), help="some of " + ",".join(STAGES))
    parser.add_argument("--seconds", type=float, default=40.0, help="time for tuning products")
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1))
    options = parser.parse_args()
    if options.commit:
        os.environ[COMMIT_VARIABLE] = options.commit
    import torch

    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device; nothing was run", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    origin = {**provenance("cuda"), "driver": device_facts("cuda")["driver"]}
    say(f"{origin['device']}, torch {origin['torch']}, commit {origin['commit']}")
    is_ok = True
    for stage in options.stages.split(","):
        start = time.perf_counter()
        is_ok &= {"parity": parity, "gemm": gemm, "times": times}[stage](options, origin)
        say(f"-- {stage}: {time.perf_counter() - start:.1f} s")
    say("ok" if is_ok else "FAILED")
    return 0 if is_ok else 1


def say(line: str) -> None:
    """A line for whoever watches."""
    print(line, flush=True)


def parity(options: argparse.Namespace, origin: dict[str, Any]) -> bool:
    """Every case of every kernel on both backends: eager without waiting, captured, replayed."""
    from aerie.kernels import catalogue

    jobs = [(backend, name) for backend in BACKENDS for name in catalogue()]
    say(
        f"{'backend':<9}{'kernel':<40}{'cases':>6}{'refused':>9}{'captured':>10}{'replays':>9}"
        f"{'ulps':>6}{'s':>7}  ok"
    )
    rows = []
    # A process per kernel: they compile side by side, and a crash names its kernel.
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for row in pool.map(check_kernel, jobs):
            rows.append(row)
            say(
                f"{row['backend']:<9}{row['kernel']:<40}{row['cases']:>6}"
                f"{row['refused_on_host']:>9}{row['captured']:>10}{row['replays']:>9}"
                f"{row['max_ulps']:>6}{row['seconds']:>7}  {'yes' if row['ok'] else 'NO'}"
            )
            for failure in row["failures"][:8]:
                say(f"  FAILED {failure[:600]}")
    totals = Counter[str]()
    for row in rows:
        totals.update({key: row[key] for key in ("cases", "captured", "replays")})
    is_ok = all(row["ok"] for row in rows)
    record = {"provenance": origin, "ok": is_ok, **totals, "kernels": rows}
    write_json(options.out / "triton_parity_h200.json", record)
    return is_ok


def check_kernel(job: tuple[str, str]) -> dict[str, Any]:
    """All cases of one kernel of one backend, in a process of their own."""
    from aerie.kernels import load
    from aerie.kernels.cases import cases_for
    from tests.gpu.capture import DEVICE, run_case

    backend, name = job
    start = time.perf_counter()
    kernels = load(backend, DEVICE, data_errors="status")
    reference = load("reference", data_errors="status")
    outcomes = [run_case(kernels, reference, case) for case in cases_for(name)]
    failures = [f"{outcome.case}: {outcome.reason}" for outcome in outcomes if outcome.reason]
    n_captured = sum(outcome.is_captured for outcome in outcomes)
    return {
        "backend": backend,
        "kernel": name,
        "cases": len(outcomes),
        "refused_on_host": sum(outcome.is_refused_on_host for outcome in outcomes),
        "captured": n_captured,
        "replays": sum(outcome.n_replays for outcome in outcomes),
        "max_ulps": max(outcome.ulps for outcome in outcomes),
        "seconds": round(time.perf_counter() - start, 1),
        "failures": failures,
        "ok": not failures and n_captured > 0,
    }


def gemm(options: argparse.Namespace, origin: dict[str, Any]) -> bool:
    """Tune products of few rows; write the table and what was measured for it."""
    from aerie.bench.ceilings import copy_bandwidth
    from aerie.bench.kernels.gemm import SHAPES, compile_all, tune_all
    from aerie.bench.kernels.gemm_stack import refine_all
    from aerie.kernels.triton_gpu.gemm_plan import ROW_BUCKETS, table_record

    say(f"compiled in {compile_all(SHAPES, ROW_BUCKETS, options.workers):.1f} s")
    ceiling = copy_bandwidth("cuda")["gbps"]
    alone = tune_all(SHAPES, ROW_BUCKETS, "cuda", options.seconds, say)
    say(f"copy {ceiling:.0f} GB/s; buckets done {sorted({t.key.rows for t in alone})}")
    tuned, stack = refine_all(SHAPES, alone, ceiling, say)
    provenance_of_table = {**origin, "copy_gbps": round(ceiling, 1), "dtype": "bfloat16"}
    chosen = [(t.key, t.plan, {"us": t.us, "cublas_us": t.cublas_us}) for t in tuned]
    write_json(options.out / "gemm_h200.json", table_record(chosen, provenance_of_table))
    record = {
        "provenance": provenance_of_table,
        "shapes": [asdict(shape) for shape in SHAPES],
        "products": [asdict(replace(entry, others=())) for entry in tuned],
        "stack": [asdict(entry) for entry in stack],
    }
    write_json(options.out / "gemm_tuning_h200.json", record)
    return bool(tuned) and max(entry.error for entry in tuned) < 4e-3


def times(options: argparse.Namespace, origin: dict[str, Any]) -> bool:
    """Device time of kernels and fused operations, PyTorch beside Triton."""
    from aerie.bench.kernels.times import time_kernels, time_operations

    def rows() -> Any:
        yield from time_kernels(BACKENDS, POINTS)
        yield from time_operations((1, 8, 64))

    path = options.out / "triton_kernel_times_h200.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("".join(f"# {name}: {value}\n" for name, value in origin.items()))
        writer: csv.DictWriter[str] | None = None
        for entry in rows():
            row = {k: round(v, 2) if isinstance(v, float) else v for k, v in asdict(entry).items()}
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)
            what = f"{entry.what:<40}{entry.variant:<9}{entry.batch:>4}{entry.rows:>5}"
            say(f"{what}{entry.us:>10.2f} us")
    return True


if __name__ == "__main__":
    sys.exit(main())
