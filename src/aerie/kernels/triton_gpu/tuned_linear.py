"""Linear layers that take their product from a tuned table: `DenseFormat(make=tuned.make)`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from aerie.chips import record_of
from aerie.errors import UsageError
from aerie.kernels.triton_gpu.fused import gate
from aerie.kernels.triton_gpu.gemm import GemmScratch, gemm_scratch, product
from aerie.kernels.triton_gpu.gemm_plan import CUBLAS, GemmTable, Key, Plan, Usage, row_bucket


@dataclass(frozen=True, eq=False)
class TunedLinears:
    """The table, its scratch and what was asked of it, shared by all layers of a stream.

    In `perf_mode` a product the table does not hold is an error; otherwise the library computes
    it and `usage.misses` counts it. Launches of one stream only: they share counters.
    """

    table: GemmTable
    scratch: GemmScratch
    perf_mode: bool = False
    usage: Usage = field(default_factory=Usage)

    def make(self, weight: Tensor, bias: Tensor | None) -> TunedLinear:
        """A layer over a stored weight: what `DenseFormat` and a fused projection ask for."""
        return TunedLinear(weight, bias, self)

    def plan(self, n_out: int, n_in: int, n_rows: int) -> Plan:
        """The plan of a product; counts it, and refuses a miss in perf mode."""
        bucket = row_bucket(n_rows)
        if bucket is None:
            return CUBLAS
        found = self.table.find(n_out, n_in, n_rows)
        key = Key(n_out, n_in, bucket)
        if found is not None:
            self.usage.hits[key] += 1
            return found
        if self.perf_mode:
            raise UsageError(
                f"no tuned product for {n_rows} rows of {n_in} to {n_out} (bucket {bucket});"
                " run `aerie tune gemm`, or leave perf mode"
            )
        self.usage.misses[key] += 1
        return CUBLAS


@dataclass(frozen=True, eq=False)
class TunedLinear:
    """A dense layer whose product depends on its shape and the number of rows."""

    weight: Tensor  # [n_out, n_in]
    bias: Tensor | None  # [n_out]
    tuned: TunedLinears

    def __call__(self, x: Tensor) -> Tensor:
        """x times the weight's transpose, plus the bias. [rows, n_in] to [rows, n_out]"""
        return self._product(x, is_gated=False)

    def gated(self, x: Tensor) -> Tensor:
        """Of two weights, one above the other: silu(first) times second. [rows, n_out / 2]"""
        return self._product(x, is_gated=True)

    def _product(self, x: Tensor, is_gated: bool) -> Tensor:
        n_out, n_in = self.weight.shape
        plan = self.tuned.plan(n_out, n_in, x.shape[0]) if x.shape[0] else CUBLAS
        if plan.kind == "cublas":
            whole = functional.linear(x, self.weight, self.bias)
            return gate(*whole.tensor_split(2, dim=1)) if is_gated else whole
        return product(x, self.weight, self.bias, plan, self.tuned.scratch, is_gated)


def tuned_linears(
    table: GemmTable, device: torch.device | str, perf_mode: bool = False
) -> TunedLinears:
    """Ready for the layers of one model or of a pair that runs on one stream."""
    fitted = table.fitted(record_of(torch.device(device)))
    return TunedLinears(fitted, gemm_scratch(device), perf_mode)
