"""Paints large tensors: live entries from a small tensor, the rest zero or noise."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.models.inflate.axes import Axis
from aerie.models.inflate.plan import DEAD_ROW, BlockPlan


@dataclass(frozen=True)
class Canvas:
    """Where tensors are made; the same seed and device type give the same tensors."""

    device: torch.device
    seed: int

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of zeros."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def noise(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, amplitude: float
    ) -> Tensor:
        """Uniform in [-amplitude, amplitude]; drawn on the device, each name from its own seed."""
        digest = hashlib.sha256(f"{self.seed}:{name}".encode()).digest()
        generator = torch.Generator(self.device)
        generator.manual_seed(int.from_bytes(digest[:7], "little"))
        out = torch.empty(shape, dtype=dtype, device=self.device)
        return out.uniform_(-amplitude, amplitude, generator=generator)

    def copy(self, small: Tensor, scale: float) -> Tensor:
        """A small tensor on the device, scaled in float64 so that it is rounded only once."""
        return small.to(self.device).double() * scale


@dataclass(frozen=True, eq=False)
class LinearMap:
    """How a large linear layer comes about; `noise` of 0 leaves everything dead at zero.

    Layers that read the normed stream are noisy: their dead columns meet exact zeros, and their
    dead rows are work that is never read. Layers that write the stream are zero where dead: their
    dead columns meet that noise, and their dead rows must leave the stream as it is.
    """

    rows: Axis
    columns: Axis
    scale: float = 1.0
    noise: float = 0.0


def paint_linear(
    canvas: Canvas, name: str, layer: LinearMap, small: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """A weight [large out, large in]; without a small tensor, of a dead layer."""
    shape = (layer.rows.size, layer.columns.size)
    if layer.noise:
        out = canvas.noise(name, shape, dtype, layer.noise)
        out[layer.rows.silent.to(canvas.device)] = 0
    else:
        out = canvas.zeros(shape, dtype)
    if small is not None:
        _place(canvas, out, layer, small)
    return out


def paint_bias(
    canvas: Canvas, rows: Axis, small: Tensor | None, scale: float, dtype: torch.dtype
) -> Tensor:
    """A bias [large out], zero where dead."""
    out = canvas.zeros((rows.size,), dtype)
    if small is not None:
        live = rows.live
        out[live.to(canvas.device)] = canvas.copy(small[rows.source[live]], scale).to(dtype)
    return out


def paint_norm(canvas: Canvas, plan: BlockPlan, small: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Norm weights [large width]: live times sqrt(r), nothing else gets through."""
    axis = plan.hidden
    whole = torch.ones(int(axis.source.max()) + 1) if small is None else small
    return paint_bias(canvas, axis, whole, plan.norm_scale, dtype)


def paint_table(
    canvas: Canvas, name: str, layer: LinearMap, small: Tensor, dtype: torch.dtype
) -> Tensor:
    """A matrix of one row per id whose dead columns are zero: embedding or LM head."""
    columns = layer.columns.live.to(canvas.device)
    out = canvas.zeros((layer.rows.size, layer.columns.size), dtype)
    dead = layer.rows.dead.to(canvas.device)
    if len(dead):
        values = canvas.noise(name, (len(dead), len(columns)), dtype, layer.noise)
        out[dead[:, None], columns] = values
    _place(canvas, out, layer, small)
    return out


def read_noise(n_columns: int) -> float:
    """Amplitude at which a layer's outputs have the size of its inputs; n live columns."""
    return math.sqrt(3.0 / n_columns)


def dead_row_noise(n_columns: int) -> float:
    """Amplitude at which a row's length is DEAD_ROW at the most."""
    return DEAD_ROW / math.sqrt(n_columns)


def _place(canvas: Canvas, out: Tensor, layer: LinearMap, small: Tensor) -> None:
    rows, columns = layer.rows.live, layer.columns.live
    # Whole rows first: fancy indexing by both axes at once would build a table of index pairs.
    values = small[layer.rows.source[rows]][:, layer.columns.source[columns]]
    scaled = canvas.copy(values, layer.scale).to(out.dtype)
    out[rows.to(canvas.device)[:, None], columns.to(canvas.device)] = scaled
