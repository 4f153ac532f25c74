"""Tunes products of few rows on a GPU: every plan against cuBLAS, timed inside CUDA graphs.

A weight that fits in the cache would be read from there, so each timed graph walks over copies
that together are several times the cache. Before each product stands a gate, as in a layer: a plan
that fetches its weight meanwhile is to be seen doing so, and the time is of both. cuBLAS is chosen
where no plan is faster.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aerie.bench.ceilings import copy_bandwidth
from aerie.bench.kernels.gemm_stack import (
    SHAPES,
    Shape,
    Tuned,
    median_seconds,
    multiply,
    plans_for,
    refine_all,
)
from aerie.bench.provenance import provenance
from aerie.bench.record import read_json
from aerie.errors import UsageError

if TYPE_CHECKING:
    from aerie.kernels.triton_gpu.gemm_plan import Plan

# Several times the 60 MB of cache of the largest card this was run on.
WALKED_BYTES = 256 << 20
FINALISTS = 3
QUICK_REPLAYS, FINAL_REPLAYS = 2, 7
# Two bfloat16 roundings of the result apart; sums in float32 differ far less.
MOST_ERROR = 4e-3


@dataclass(frozen=True, eq=False)
class Tuner:
    """Buffers to time products with."""

    weights: Tensor  # flat bf16, random
    rows: Tensor  # [128, widest] bf16
    scratch: Any

    @classmethod
    def of(cls, shapes: Sequence[Shape], device: str) -> Tuner:
        """Random weights for the largest shape or the walked bytes, whichever is more."""
        from aerie.kernels.triton_gpu.gemm import gemm_scratch

        size = max(2 * WALKED_BYTES + shape.bytes for shape in shapes) // 2
        weights = torch.empty(size, dtype=torch.bfloat16, device=device).normal_(std=0.02)
        widest = max(shape.n_in for shape in shapes)
        rows = torch.randn(128, widest, device=device).bfloat16()
        return cls(weights, rows, gemm_scratch(device))

    def copies(self, shape: Shape) -> list[Tensor]:
        """Enough weights of a shape, side by side, to overflow the cache."""
        size = shape.n_out * shape.n_in
        n_copies = max(1, min(self.weights.numel() // size, -(-WALKED_BYTES // (2 * size))))
        flat = self.weights[: n_copies * size].view(n_copies, shape.n_out, shape.n_in)
        return list(flat.unbind())

    def times(
        self, plans: Sequence[Plan], x: Tensor, weights: Sequence[Tensor], replays: int
    ) -> dict[Plan, float]:
        """Microseconds of a gate and its product by each plan, in turns."""
        walks = [[(plan, x, weight) for weight in weights] for plan in plans]
        seconds = median_seconds(walks, self.scratch, replays)
        return {plan: 1e6 * s / len(weights) for plan, s in zip(plans, seconds, strict=True)}


def tune_shape(tuner: Tuner, shape: Shape, rows: int) -> Tuned:
    """Measure cuBLAS and every plan; the fastest that computes the product well enough."""
    from aerie.chips import record_of
    from aerie.kernels.triton_gpu.gemm_plan import CUBLAS, Key

    x, weights = tuner.rows[:rows, : shape.n_in].contiguous(), tuner.copies(shape)
    plans = plans_for(shape.n_out, shape.n_in, rows, record_of(x.device))
    # One by one: graphs of all plans together would hold more memory than they need.
    quick = {plan: tuner.times([plan], x, weights, QUICK_REPLAYS)[plan] for plan in plans}
    finalists = sorted(quick, key=lambda plan: quick[plan])[:FINALISTS]
    final = tuner.times([CUBLAS, *finalists], x, weights, FINAL_REPLAYS)
    expected = x.float() @ weights[0].float().T
    # Relative distances; NaN never passes a limit.
    error = {}
    for plan in final:
        found = multiply(plan, x, weights[0], tuner.scratch).float()
        error[plan] = float((found - expected).norm() / expected.norm())
    right = [plan for plan in finalists if error[plan] <= MOST_ERROR]
    best = min([CUBLAS, *right], key=lambda plan: final[plan])
    return Tuned(
        Key(shape.n_out, shape.n_in, rows),
        best,
        round(final[best], 3),
        round(final[CUBLAS], 3),
        error[best],
        error[CUBLAS],
        round(shape.bytes / final[best] / 1e3, 1),
        len(plans),
        tuple((plan, round(us, 3)) for plan, us in final.items() if plan != best),
    )


def tune_all(
    shapes: Sequence[Shape],
    buckets: Iterable[int],
    device: str,
    seconds: float,
    say: Callable[[str], None],
) -> list[Tuned]:
    """Every shape at every number of rows, few rows first, until the time is spent."""
    tuner, results = Tuner.of(shapes, device), list[Tuned]()
    deadline = time.perf_counter() + seconds
    for rows, shape in itertools.product(buckets, shapes):
        if time.perf_counter() > deadline:
            say(f"out of time before {shape.name} at {rows} rows")
            break
        found = tune_shape(tuner, shape, rows)
        results.append(found)
        say(
            f"{shape.name:>10} x{rows:<4}{found.us:9.2f} us  cublas {found.cublas_us:9.2f}"
            f"  {found.gbps:7.0f} GB/s  {found.plan}"
        )
    return results


def compile_all(shapes: Iterable[Shape], buckets: Iterable[int], workers: int) -> float:
    """Compile every plan's kernel in processes of their own; returns the seconds it took."""
    from aerie.chips import record_of

    start, device = time.perf_counter(), record_of(torch.device("cuda"))
    # One variant per tile: the number of parts is not compiled in, only whether there are any; and
    # of rows, whether a tile of them is full.
    unique = {}
    for shape, n in itertools.product(shapes, buckets):
        for plan in plans_for(shape.n_out, shape.n_in, n, device):
            is_whole = plan.kind != "gemv" and n % plan.block_m == 0
            rows = n if plan.kind == "gemv" else plan.block_m if is_whole else 1
            key = (plan.kind, plan.block_n, plan.block_k, rows, plan.warps, plan.stages)
            unique[key, plan.splits > 1] = (plan, rows)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile, unique.values(), chunksize=1))
    return time.perf_counter() - start


def _compile(job: tuple[Plan, int]) -> None:
    from aerie.kernels.triton_gpu.gemm import gemm_scratch, product

    plan, rows = job
    n_in = plan.block_k * 16
    x = torch.ones(rows, n_in, dtype=torch.bfloat16, device="cuda")
    weight = torch.ones(plan.block_n * 16, n_in, dtype=torch.bfloat16, device="cuda")
    product(x, weight, None, plan, gemm_scratch("cuda"))
    torch.cuda.synchronize()


def tune_to_file(
    out: Path,
    shapes_file: Path | None,
    buckets: list[int],
    seconds: float,
    workers: int,
    say: Callable[[str], None],
) -> int:
    """Compile, tune and write a table with its provenance; returns the number of entries."""
    from aerie.kernels.triton_gpu.gemm_plan import ROW_BUCKETS, table_record

    unknown = sorted(set(buckets) - set(ROW_BUCKETS))
    if unknown:
        raise UsageError(f"rows {unknown} are no bucket; the table has {list(ROW_BUCKETS)}")
    if not torch.cuda.is_available():
        raise UsageError("tuning products needs a GPU, and torch finds no CUDA device")
    shapes = SHAPES if shapes_file is None else read_shapes(shapes_file)
    say(f"compiled in {compile_all(shapes, buckets, workers):.1f} s")
    alone = tune_all(shapes, buckets, "cuda", seconds, say)
    ceiling = copy_bandwidth("cuda")["gbps"]
    tuned, _ = refine_all(shapes, alone, ceiling, say)
    figures = [(t.key, t.plan, {"us": t.us, "cublas_us": t.cublas_us}) for t in tuned]
    origin = {**provenance("cuda"), "copy_gbps": ceiling, "dtype": "bfloat16"}
    out.write_text(json.dumps(table_record(figures, origin), indent=1) + "\n", encoding="utf-8")
    return len(tuned)


def read_shapes(path: Path) -> tuple[Shape, ...]:
    """Weights from the shapes a run has seen, each once."""
    seen = {(entry["n_out"], entry["n_in"]) for entry in read_json(path)}
    return tuple(Shape(f"{n_out}x{n_in}", n_out, n_in) for n_out, n_in in sorted(seen))
