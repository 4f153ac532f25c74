"""All linear layers of one forward in a row, each with its own weight: tuned against cuBLAS."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerie.bench.kernels.gemm_candidates import Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from aerie.kernels.triton_gpu.gemm_plan import GemmTable

REPLAYS = 9


@dataclass(frozen=True)
class StackTime:
    """Milliseconds of all products of one forward, and the share of copy bandwidth."""

    rows: int
    bytes: int
    cublas_ms: float
    tuned_ms: float
    cublas_share: float
    tuned_share: float


def time_stack(
    shapes: Sequence[Shape], buckets: Sequence[int], table: GemmTable, copy_gbps: float
) -> list[StackTime]:
    """Replay one graph per choice, interleaved; the weights are far larger than the cache."""
    import torch

    from aerie.kernels.triton_gpu.gemm_plan import CUBLAS, GemmTable, Key
    from aerie.kernels.triton_gpu.tuned_linear import tuned_linears

    order = [shape for shape in shapes for _ in range(shape.per_forward)]
    weights = [
        torch.empty(s.n_out, s.n_in, dtype=torch.bfloat16, device="cuda").normal_(std=0.02)
        for s in order
    ]
    n_bytes = sum(shape.bytes for shape in order)
    plain = GemmTable({Key(s.n_out, s.n_in, m): CUBLAS for s in shapes for m in buckets})
    found = []
    for rows in buckets:
        inputs = {s.n_in: torch.randn(rows, s.n_in, device="cuda").bfloat16() for s in shapes}
        graphs = []
        for chosen in (plain, table):
            tuned_by = tuned_linears(chosen, "cuda", perf_mode=True)
            layers = [tuned_by.make(weight, None) for weight in weights]
            graphs.append(_captured([(layer, inputs[layer.weight.shape[1]]) for layer in layers]))
        cublas, tuned = _times(graphs)
        shares = [n_bytes / ms / 1e6 / copy_gbps for ms in (cublas, tuned)]
        found.append(StackTime(rows, n_bytes, cublas, tuned, *shares))
    return found


def _captured(
    calls: Sequence[tuple[Callable[[Tensor], Tensor], Tensor]],
) -> torch.cuda.CUDAGraph:
    import torch

    for layer, x in calls:
        layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer, x in calls:
            layer(x)
    return graph


def _times(graphs: Sequence[torch.cuda.CUDAGraph]) -> list[float]:
    """Median milliseconds of each graph, replayed in turn."""
    import torch

    spans: list[list[float]] = [[] for _ in graphs]
    for _ in range(REPLAYS):
        for graph, own in zip(graphs, spans, strict=True):
            first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            second.record()
            second.synchronize()
            own.append(first.elapsed_time(second))
    return [statistics.median(own) for own in spans]
