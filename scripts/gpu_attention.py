"""Checks, sweeps and times the Triton tree attention on a GPU; writes the reports.

Run it from the repository root: `scripts/gpu_attention.sh OUT COMMIT [stages] [seconds]`.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from aerie.attention.triton import TileTable, TritonAttention, load_tiles
from aerie.bench.ceilings import copy_bandwidth
from aerie.bench.kernels import attention, attention_sweep
from aerie.bench.kernels.attention import (
    N_LAYERS,
    PRODUCTION,
    Heads,
    random_storage,
    storage_elements,
)
from aerie.bench.provenance import provenance
from aerie.bench.record import write_json
from scripts import ROOT

DEVICE = "cuda"
STAGES = ("check", "sweep", "sweep64", "sweep32", "time")
PROCESSES = 14
HALF_DIM = Heads(64, 8, 64)


def main() -> int:
    """Run the stages asked for; the exit status is 0 if every check passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports/raw")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--seconds", type=float, default=25.0, help="most seconds of each sweep")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device; nothing was run", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    stages = options.stages.split(",")
    origin = provenance(DEVICE)
    is_ok = check(options.out, origin) if "check" in stages else True
    trials = sweep(stages, options.seconds)
    table = load_tiles()
    if trials:
        where = f"{origin['device']}, {origin['commit']}"
        # A sweep of one geometry leaves the entries of the others as they were.
        table = table.updated(attention_sweep.choose(trials, where))
        write_json(options.out / "attention_tiles.json", table.document())
        write_json(
            options.out / "attention_sweep_h200.json", attention_sweep.record(trials, origin)
        )
    if "time" in stages:
        measure(options.out, table, origin)
    return 0 if is_ok else 1


def check(out: Path, origin: dict[str, Any]) -> bool:
    """Every check in a process of its own: compiling is what takes the time."""
    from tests.gpu.attention_cases import checks, run_check

    start = time.monotonic()
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        outcomes = list(pool.map(run_check, checks()))
    is_ok = all(not reason for _, _, reason in outcomes)
    for name, error, reason in outcomes:
        print(f"  {name:<32}{error:10.2e}  {reason or 'ok'}"[:400], flush=True)
    print(f"checks {'ok' if is_ok else 'FAILED'} in {time.monotonic() - start:.1f} s", flush=True)
    rows = [{"check": n, "error": e, "failure": reason} for n, e, reason in outcomes]
    record = {"provenance": origin, "ok": is_ok, "checks": rows}
    write_json(out / "attention_checks_h200.json", record)
    return is_ok


def sweep(stages: list[str], seconds: float) -> list[attention_sweep.Trial]:
    """Time the candidates of every geometry asked for."""
    work = {
        "sweep": attention_sweep.sweep_points(PRODUCTION, torch.bfloat16),
        "sweep64": attention_sweep.sweep_points(HALF_DIM, torch.bfloat16),
        "sweep32": attention_sweep.exact_points(PRODUCTION),
    }
    asked = [work[stage] for stage in stages if stage in work]
    if not asked:
        return []
    start = time.monotonic()
    left, reasons = attention_sweep.compile_all(
        [item for items in asked for item in items], PROCESSES
    )
    print(f"compiled in {time.monotonic() - start:.1f} s", *reasons, sep="\n", flush=True)
    trials = []
    by_dtype = {(point.heads, point.dtype): [] for point, _ in left}
    for point, tiles in left:
        by_dtype[point.heads, point.dtype].append((point, tiles))
    for items in by_dtype.values():
        start = time.monotonic()
        points = [point for point, _ in items]
        storage = random_storage(
            storage_elements(points, attention_sweep.N_LAYERS), points[0].dtype, DEVICE
        )
        found = attention_sweep.sweep(items, storage, seconds)
        wanted = sum(len(tiles) for _, tiles in items)
        print(f"{len(found)} of {wanted} trials in {time.monotonic() - start:.1f} s", flush=True)
        trials += found
    return trials


def measure(out: Path, table: TileTable, origin: dict[str, Any]) -> None:
    """The published table: trees against their bytes."""
    bandwidth = 1e9 * copy_bandwidth(DEVICE)["gbps"]
    print(f"copy bandwidth {bandwidth / 1e12:.3f} TB/s (read + written)", flush=True)
    points = attention.tree_points()
    storage = random_storage(storage_elements(points, N_LAYERS), torch.bfloat16, DEVICE)
    backend = TritonAttention(table)
    trees = attention.measure(points, backend, storage, bandwidth)
    show(trees)
    record = {
        "provenance": origin,
        "copy_bytes_per_second": round(bandwidth),
        "geometry": vars(PRODUCTION),
        "trees": trees,
    }
    write_json(out / "attention_h200.json", record)


def show(rows: list[dict[str, Any]]) -> None:
    print("  ".join(rows[0]))
    for row in rows:
        print("  ".join(str(value) for value in row.values()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
