"""Rotary position embedding: the frequency rules, and the rotation itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.models.layer_ops import Turn, turn


@dataclass(frozen=True)
class RopeSettings:
    """A frequency rule and its numbers; fields a rule does not use keep their defaults."""

    kind: str  # one of RULES
    theta: float
    factor: float = 1.0
    original_positions: int = 0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # multiplies cosine and sine, so scores by its square


def inverse_frequencies(settings: RopeSettings, head_dim: int) -> Tensor:
    """Angle per position of each rotated pair: [head_dim / 2] f32."""
    # float32 throughout: checkpoints were trained with these very roundings.
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    base = 1.0 / (settings.theta**exponent)
    return RULES[settings.kind](settings, base)


def _unscaled(settings: RopeSettings, base: Tensor) -> Tensor:
    return base


def _linear(settings: RopeSettings, base: Tensor) -> Tensor:
    return base / settings.factor


def _llama3(settings: RopeSettings, base: Tensor) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, the rest blended."""
    turns = settings.original_positions * base / (2 * math.pi)  # over the trained context
    low, high = settings.low_frequency, settings.high_frequency
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * base / settings.factor + blend * base


def _yarn(settings: RopeSettings, base: Tensor) -> Tensor:
    """YaRN (arXiv 2309.00071): interpolate the slow pairs, keep the fast ones, ramp between."""
    n_pairs = base.shape[0]

    def pair_of(n_turns: float) -> float:
        # Index of the pair that makes n_turns over the trained context.
        ratio = settings.original_positions / (n_turns * 2 * math.pi)
        return n_pairs * math.log(ratio) / math.log(settings.theta)

    low, high = pair_of(settings.beta_fast), pair_of(settings.beta_slow)
    if settings.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * n_pairs - 1)
    high = high + 0.001 if high == low else high  # an empty ramp would divide by zero
    ramp = ((torch.arange(n_pairs, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return base / settings.factor * ramp + base * (1 - ramp)


RULES = {"default": _unscaled, "linear": _linear, "llama3": _llama3, "yarn": _yarn}


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature for a context stretched by `factor` (its equation 22)."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True, eq=False)
class Rotation:
    """Cosine and sine of a batch's rows, shared by all layers, as its layer operations take them.

    [rows, 1, head_dim / 2] f32 each, unless those operations make them wider.
    """

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, eq=False)
class Rotary:
    """Frequencies on a device. There is no table, so no position is too large."""

    frequencies: Tensor  # [head_dim / 2] f32
    attention_factor: float

    def at(self, positions: Tensor, turn: Turn = turn) -> Rotation:
        """The rotation of rows at `positions` [rows] i64."""
        return Rotation(*turn(positions, self.frequencies, self.attention_factor))

    def at_each(self, positions: Sequence[Tensor], turn: Turn = turn) -> list[Rotation]:
        """The same for several batches of rows, computed together."""
        if not positions:
            return []
        every = self.at(torch.cat([*positions]), turn)
        halves = (half.split([len(part) for part in positions]) for half in (every.cos, every.sin))
        return [Rotation(cos, sin) for cos, sin in zip(*halves, strict=True)]


def build_rotary(settings: RopeSettings, head_dim: int, device: torch.device | str) -> Rotary:
    """The rotary embedding of a model or of a draft head."""
    frequencies = inverse_frequencies(settings, head_dim).to(device)
    return Rotary(frequencies, settings.attention_factor)
