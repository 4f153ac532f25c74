"""Rotary tables that older files carry: left out, once they are what the config implies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from aerie.models.rope import RopeSettings, inverse_frequencies
from aerie.models.tensors import FLOATS, Offence
from aerie.models.weights import Checkpoint

BUFFER = re.compile(r"(?:.*\.)?rotary_emb\.(?:inv_freq|cos_cached|sin_cached)")
TABLES = {"cos_cached": torch.cos, "sin_cached": torch.sin}

# What the powers and angles of two libraries may differ by in float32; sizes are relative for
# frequencies, and grow with the position for cosines.
ROUNDING, ROUNDING_PER_POSITION = 1e-5, 1e-6


def is_buffer(name: str) -> bool:
    """Whether a tensor is a table that is computed anyway, and holds nothing trained."""
    return BUFFER.fullmatch(name) is not None


def without_buffers(files: Checkpoint) -> Checkpoint:
    """The same checkpoint, the tables left out."""
    return Checkpoint({n: entry for n, entry in files.entries.items() if not is_buffer(n)})


def check_buffers(
    files: Checkpoint, names: Iterable[str], rope: RopeSettings, head_dim: int
) -> list[Offence]:
    """Tables that are not what the config implies: their writer rotated another way."""
    offences = []
    for name in names:
        entry = files.entries[name]
        if entry.dtype not in FLOATS:
            detail = f"{entry.dtype}, must be {' or '.join(FLOATS)}"
            offences.append(Offence("wrong dtype", name, detail))
            continue
        stored = files.view(name)
        if not any(_agrees(name, stored, rule, head_dim) for rule in _rules(rope)):
            detail = (
                f"is not what config.json implies (rule {rope.kind}, theta {rope.theta:g}); "
                "correct rope_theta or rope_scaling there, or leave the tensor out"
            )
            offences.append(Offence("contradictory", name, detail))
    return offences


def _rules(rope: RopeSettings) -> tuple[RopeSettings, ...]:
    # The versions of transformers that saved these tables divided positions, not frequencies.
    return (rope, replace(rope, kind="default")) if rope.kind == "linear" else (rope,)


def _agrees(name: str, stored: Tensor, rope: RopeSettings, head_dim: int) -> bool:
    """Whether a stored table is the rule's, up to the rounding of the dtype it was saved in."""
    kind = name.rsplit(".", 1)[-1]
    frequencies = inverse_frequencies(rope, head_dim).double()
    limits = torch.finfo(stored.dtype)
    if kind not in TABLES:
        room = frequencies * max(4 * limits.eps, ROUNDING) + 2 * limits.tiny * limits.eps
        return _is_near(stored, frequencies, room)
    positions = torch.arange(stored.numel() // head_dim, dtype=torch.float64)[:, None]
    angles = positions * frequencies.repeat(2)
    wanted = TABLES[kind](angles) * rope.attention_factor
    room = 4 * limits.eps + (1 + positions) * ROUNDING_PER_POSITION
    return _is_near(stored, wanted, room)


def _is_near(stored: Tensor, wanted: Tensor, room: Tensor) -> bool:
    """Equal within `room`; a stored table may have leading axes of size 1."""
    if stored.numel() != wanted.numel() or stored.shape[-1:] != wanted.shape[-1:]:
        return False
    return bool(((stored.double().view(wanted.shape) - wanted).abs() <= room).all())
