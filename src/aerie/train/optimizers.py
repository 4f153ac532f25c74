"""Optimisers: Muon for matrices inside layers, AdamW for embeddings, heads and norms.

Muon (momentum, then the nearest orthogonal matrix by Newton-Schulz iterations) reaches a given
loss in fewer steps than AdamW alone at these sizes; its step is cheap here because matrices of
one shape are treated as one batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Coefficients of the quintic iteration that inflates small singular values fastest.
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


@dataclass(frozen=True)
class OptimizerSettings:
    """Peak learning rates and decay; all rates follow one schedule."""

    matrix_rate: float = 0.02
    other_rate: float = 4e-3
    momentum: float = 0.95
    matrix_decay: float = 0.01
    clip: float = 1.0


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrix of each of [n, rows, columns], roughly."""
    a, b, c = QUINTIC
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    # bf16 is enough for an approximation, and runs on the matrix units.
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    x = x / (x.norm(dim=(1, 2), keepdim=True) * 1.02 + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if is_tall else x).to(matrices.dtype)
    return result


class Muon:
    """Momentum and orthogonal updates of matrices, one batch per shape."""

    def __init__(self, params: Sequence[nn.Parameter], settings: OptimizerSettings) -> None:
        by_shape: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for param in params:
            by_shape[param.shape[0], param.shape[1]].append(param)
        self.groups = list(by_shape.values())
        self.momenta = [torch.zeros_like(torch.stack(list(group))) for group in self.groups]
        self.settings = settings

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update at `factor` of the peak rate."""
        settings = self.settings
        rate = settings.matrix_rate * factor
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            grads = torch.stack([_grad(param) for param in group])
            momentum.lerp_(grads, 1 - settings.momentum)
            update = orthogonalise(grads.lerp(momentum, settings.momentum))
            rows, columns = update.shape[1:]
            # A tall matrix needs a larger step for the same change of its outputs.
            update *= max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(group, 1 - rate * settings.matrix_decay)
            torch._foreach_add_(group, list(update.unbind()), alpha=-rate)


class Optimizers:
    """Both optimisers behind one step; their state is a flat list of tensors."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings) -> None:
        named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        self.params = [param for _, param in named]
        matrices = [param for name, param in named if _is_inner_matrix(name, param)]
        others = [param for name, param in named if not _is_inner_matrix(name, param)]
        self.settings = settings
        self.muon = Muon(matrices, settings)
        self.adam = torch.optim.AdamW(
            others, lr=settings.other_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
        )

    def step(self, factor: float) -> None:
        """Clip, update everything at `factor` of the peak rates, forget the gradients."""
        torch.nn.utils.clip_grad_norm_(self.params, self.settings.clip)
        self.muon.step(factor)
        for group in self.adam.param_groups:
            group["lr"] = self.settings.other_rate * factor
        self.adam.step()
        for param in self.params:
            param.grad = None

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed run needs besides the parameters."""
        tensors = {f"muon.{i}": tensor for i, tensor in enumerate(self.muon.momenta)}
        for i, entry in enumerate(self.adam.state.values()):
            tensors |= {f"adam.{i}.{name}": entry[name] for name in ("exp_avg", "exp_avg_sq")}
            tensors[f"adam.{i}.step"] = entry["step"].reshape(1)
        return tensors

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from `state`."""
        for i, momentum in enumerate(self.muon.momenta):
            momentum.copy_(tensors[f"muon.{i}"])
        for i, param in enumerate(self.adam.param_groups[0]["params"]):
            self.adam.state[param] = {
                "step": tensors[f"adam.{i}.step"].reshape(()).clone().cpu(),
                "exp_avg": tensors[f"adam.{i}.exp_avg"].to(param.device).clone(),
                "exp_avg_sq": tensors[f"adam.{i}.exp_avg_sq"].to(param.device).clone(),
            }


def _is_inner_matrix(name: str, param: Tensor) -> bool:
    """Whether Muon takes it: a matrix, but not an embedding or an output layer."""
    return param.ndim == 2 and not any(part in name for part in ("embed_tokens", "lm_head"))


def count_parameters(params: Iterable[Tensor]) -> int:
    """Numbers in all of them."""
    return sum(param.numel() for param in params)


def _grad(param: Tensor) -> Tensor:
    assert param.grad is not None, "a parameter took no part in the loss"
    return param.grad
