"""Tunes products of few rows on a GPU: every plan against cuBLAS, timed inside CUDA graphs.

A weight that fits in the cache would be read from there, so each timed graph walks over copies
that together are several times the cache. Before each product stands a gate, as in a layer: a plan
that fetches its weight meanwhile is to be seen doing so, and the time is of both. cuBLAS is chosen
where no plan is faster.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aerie.bench.ceilings import copy_bandwidth
from aerie.bench.kernels.gemm_stack import SHAPES, Shape, Timed, Tuned, plans_for, refine_all
from aerie.bench.provenance import provenance
from aerie.bench.record import read_json
from aerie.bench.turns import device_seconds, recorded
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
    results: list[Tuned] = field(default_factory=list)

    def copies(self, n_out: int, n_in: int) -> list[Tensor]:
        """Enough weights of a shape, side by side, to overflow the cache."""
        size = n_out * n_in
        n_copies = max(1, min(self.weights.numel() // size, -(-WALKED_BYTES // (2 * size))))
        flat = self.weights[: n_copies * size].view(n_copies, n_out, n_in)
        return list(flat.unbind())

    def time(self, plan: Plan, x: Tensor, weights: list[Tensor], replays: int) -> float:
        """Microseconds of a gate and its product, the median of a graph's replays."""
        from aerie.kernels.triton_gpu.fused import gate

        call, up = self._call(plan), torch.ones_like(x)

        def walk() -> None:
            for weight in weights:
                call(gate(x, up), weight)

        (spans,) = device_seconds([recorded(walk).replay], replays)
        return 1e6 * statistics.median(spans) / len(weights)

    def run(self, plan: Plan, x: Tensor, weight: Tensor) -> Tensor:
        """One product."""
        return self._call(plan)(x, weight)

    def _call(self, plan: Plan) -> Callable[[Tensor, Tensor], Tensor]:
        from torch.nn import functional

        from aerie.kernels.triton_gpu.gemm import product

        if plan.kind == "cublas":
            return functional.linear
        return lambda x, weight: product(x, weight, None, plan, self.scratch)


def make_tuner(shapes: Iterable[Shape], device: str) -> Tuner:
    """Random weights for the largest shape or the walked bytes, whichever is more."""
    from aerie.kernels.triton_gpu.gemm import gemm_scratch

    size = max(WALKED_BYTES, *(2 * WALKED_BYTES + shape.bytes for shape in shapes)) // 2
    weights = torch.empty(size, dtype=torch.bfloat16, device=device).normal_(std=0.02)
    widest = max(shape.n_in for shape in shapes)
    rows = torch.randn(128, widest, device=device).bfloat16()
    return Tuner(weights, rows, gemm_scratch(device))


def tune_shape(tuner: Tuner, shape: Shape, rows: int) -> Tuned:
    """Measure cuBLAS and every plan; the fastest that computes the product well enough."""
    from aerie.chips import record_of
    from aerie.kernels.triton_gpu.gemm_plan import CUBLAS, Key

    x = tuner.rows[:rows, : shape.n_in].contiguous()
    weights = tuner.copies(shape.n_out, shape.n_in)
    plans = plans_for(shape.n_out, shape.n_in, rows, record_of(x.device))
    quick = {plan: tuner.time(plan, x, weights, QUICK_REPLAYS) for plan in plans}
    finalists = sorted(quick, key=lambda plan: quick[plan])[:FINALISTS]
    final = {p: tuner.time(p, x, weights, FINAL_REPLAYS) for p in (CUBLAS, *finalists)}
    # cuBLAS again at the end: a drift of the clocks would otherwise favour one side.
    final[CUBLAS] = min(final[CUBLAS], tuner.time(CUBLAS, x, weights, FINAL_REPLAYS))
    expected = x.float() @ weights[0].float().T
    cublas_error = _error(tuner.run(CUBLAS, x, weights[0]), expected)
    best, error = CUBLAS, cublas_error
    for plan in sorted(finalists, key=lambda p: final[p]):
        found = _error(tuner.run(plan, x, weights[0]), expected)
        if final[plan] < final[CUBLAS] and found <= MOST_ERROR:
            best, error = plan, found
            break
    return Tuned(
        Key(shape.n_out, shape.n_in, rows),
        best,
        round(final[best], 3),
        round(final[CUBLAS], 3),
        error,
        cublas_error,
        round(shape.bytes / final[best] / 1e3, 1),
        len(plans),
        tuple(Timed(plan, round(us, 3)) for plan, us in final.items() if plan != best),
    )


def _error(found: Tensor, expected: Tensor) -> float:
    """Relative distance of two products; NaN never passes a limit."""
    return float((found.float() - expected).norm() / expected.norm())


def tune_all(
    shapes: Iterable[Shape], buckets: Iterable[int], device: str, seconds: float,
    say: Callable[[str], None],
) -> tuple[Tuner, list[Tuned]]:  # fmt: skip
    """Every shape at every number of rows, few rows first, until the time is spent."""
    shapes = tuple(shapes)
    tuner = make_tuner(shapes, device)
    deadline = time.perf_counter() + seconds
    for rows in buckets:
        for shape in shapes:
            if time.perf_counter() > deadline:
                say(f"out of time before {shape.name} at {rows} rows")
                return tuner, tuner.results
            found = tune_shape(tuner, shape, rows)
            tuner.results.append(found)
            say(
                f"{shape.name:>10} x{rows:<4}{found.us:9.2f} us  cublas {found.cublas_us:9.2f}"
                f"  {found.gbps:7.0f} GB/s  {found.plan}"
            )
    return tuner, tuner.results


def compile_all(shapes: Iterable[Shape], buckets: Iterable[int], workers: int) -> float:
    """Compile every plan's kernel in processes of their own; returns the seconds it took."""
    from aerie.chips import record_of

    start, device = time.perf_counter(), record_of(torch.device("cuda"))
    plans = {
        (plan, _compiled_rows(plan, rows), plan.splits > 1)
        for shape in shapes
        for rows in buckets
        for plan in plans_for(shape.n_out, shape.n_in, rows, device)
    }
    # One variant per tile: the number of parts is not compiled in, only whether there are any.
    unique = {
        (p.kind, p.block_n, p.block_k, rows, p.warps, p.stages, is_split): (p, rows)
        for p, rows, is_split in plans
    }
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile, unique.values(), chunksize=1))
    return time.perf_counter() - start


def _compiled_rows(plan: Plan, rows: int) -> int:
    """A number of rows with the same kernel: a tile of rows is full, or it is not."""
    if plan.kind == "gemv":
        return rows
    return 1 if rows % plan.block_m else plan.block_m


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
    _, tuned = tune_all(shapes, buckets, "cuda", seconds, say)
    ceiling = copy_bandwidth("cuda")["gbps"]
    tuned, _ = refine_all(shapes, tuned, ceiling, say)
    figures = [(t.key, t.plan, {"us": t.us, "cublas_us": t.cublas_us}) for t in tuned]
    origin = {**provenance("cuda"), "copy_gbps": ceiling, "dtype": "bfloat16"}
    out.write_text(json.dumps(table_record(figures, origin), indent=1) + "\n", encoding="utf-8")
    return len(tuned)


def read_shapes(path: Path) -> tuple[Shape, ...]:
    """Weights from the shapes a run has seen, each once."""
    seen = {(entry["n_out"], entry["n_in"]) for entry in read_json(path)}
    return tuple(Shape(f"{n_out}x{n_in}", n_out, n_in) for n_out, n_in in sorted(seen))


__all__ = [
    "SHAPES",
    "Tuned",
    "Tuner",
    "compile_all",
    "make_tuner",
    "tune_all",
    "tune_shape",
    "tune_to_file",
]
