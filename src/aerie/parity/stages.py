"""Stage-by-stage numerics: where two runs of one model part, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.errors import UsageError

TOP_K = 10


@dataclass(frozen=True)
class Tolerance:
    """What a stage may differ by; `max_abs` is scaled by the reference's own size above 1."""

    min_cosine: float
    max_abs: float | None  # None where rounding alone exceeds any useful bound


# By the dtype of the run. bf16 has 8 bits of mantissa: over some thirty layers the direction of
# a state survives, single values do not.
TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(0.9999, 1e-4),
    torch.float32: Tolerance(0.9999, 1e-4),
    torch.float16: Tolerance(0.999, None),
    torch.bfloat16: Tolerance(0.98, None),
}


@dataclass(frozen=True)
class StageResult:
    """One stage of a comparison."""

    name: str
    mean_abs: float
    max_abs: float
    cosine: float  # of the worst row
    topk_overlap: float  # share of each row's ten largest entries that both have
    ok: bool


@dataclass(frozen=True)
class StageReport:
    """All stages, in the order a forward pass reaches them."""

    stages: tuple[StageResult, ...]

    @property
    def first_departure(self) -> str | None:
        """The first stage out of tolerance; what follows it is its consequence."""
        return next((stage.name for stage in self.stages if not stage.ok), None)

    @property
    def ok(self) -> bool:
        """Whether every stage is within tolerance, and there was one."""
        return bool(self.stages) and self.first_departure is None


def compare_stages(
    reference: Mapping[str, Tensor], ours: Mapping[str, Tensor], tolerance: Tolerance
) -> StageReport:
    """Compare the stages both runs have, in the order of ours."""
    shared = [name for name in ours if name in reference]
    if not shared:
        raise UsageError(
            f"no stage in common: the reference has {', '.join(reference) or 'none'}, "
            f"this run {', '.join(ours)}"
        )
    return StageReport(
        tuple(_compare(name, reference[name], ours[name], tolerance) for name in shared)
    )


def _compare(name: str, reference: Tensor, ours: Tensor, tolerance: Tolerance) -> StageResult:
    if reference.shape != ours.shape:
        raise UsageError(
            f"stage {name} has shape {list(ours.shape)} here and {list(reference.shape)} in the "
            "reference: not the same model, or not the same tokens"
        )
    want, got = (t.detach().cpu().double().flatten(1) for t in (reference, ours))
    difference = (got - want).abs()
    mean_abs, max_abs = float(difference.mean()), float(difference.max())
    cosine = _worst_cosine(want, got)
    size = max(1.0, float(want.square().mean().sqrt()))
    is_near = tolerance.max_abs is None or max_abs <= tolerance.max_abs * size
    # Written so that a NaN in any of the numbers fails the stage.
    ok = is_near and cosine >= tolerance.min_cosine
    return StageResult(name, mean_abs, max_abs, cosine, _topk_overlap(want, got), ok)


def _worst_cosine(want: Tensor, got: Tensor) -> float:
    """The smallest cosine between two rows of the same place; two zero rows agree."""
    products = (want * got).sum(-1)
    lengths = want.norm(dim=-1) * got.norm(dim=-1)
    both_zero = (want.norm(dim=-1) == 0) & (got.norm(dim=-1) == 0)
    cosines = torch.where(both_zero, 1.0, products / lengths.clamp(min=1e-300))
    return float(cosines.min())


def _topk_overlap(want: Tensor, got: Tensor) -> float:
    k = min(TOP_K, want.shape[-1])
    first, second = want.topk(k).indices, got.topk(k).indices
    shared = (first.unsqueeze(-1) == second.unsqueeze(-2)).any(-1)
    return float(shared.double().mean())
