"""The tensors of an inflated target and of its head, each made from its name alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from aerie.models import blueprint
from aerie.models.eagle3 import names as names
from aerie.models.inflate.axes import Axis
from aerie.models.inflate.paint import (
    Canvas,
    LinearMap,
    dead_row_noise,
    paint_bias,
    paint_linear,
    paint_norm,
    paint_table,
    read_noise,
)
from aerie.models.inflate.pair import SmallPair
from aerie.models.inflate.plan import BlockPlan, InflationPlan
from aerie.models.loader import Loader
from aerie.models.weights import Checkpoint

LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.(.+)\.(weight|bias)")


class TensorMaker(Protocol):
    """A checkpoint that is computed instead of read."""

    def make(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor of that name, on the maker's device; `dtype` is ignored by integers."""
        ...


class MadeLoader(Loader):
    """A loader over a maker, so that models are built straight on a device."""

    def __init__(self, maker: TensorMaker, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(Checkpoint({}), dtype, device)
        self.maker = maker

    def take(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on the run's device."""
        return self.maker.make(name, dtype or self.dtype)

    def has(self, name: str) -> bool:
        """Always: a maker has every tensor its model's values call for."""
        return True


@dataclass(frozen=True, eq=False)
class _Inflated:
    """What target and head have alike: embeddings, LM heads and final norms."""

    plan: InflationPlan
    pair: SmallPair
    canvas: Canvas

    def embedding(self, block: BlockPlan, name: str, small: Tensor, dtype: torch.dtype) -> Tensor:
        """Token embeddings; every row begins with the constant in its dimension."""
        spread = float(small.float().square().mean().sqrt()) * 3**0.5
        layer = LinearMap(self.plan.vocabulary, block.hidden, noise=spread)
        out = paint_table(self.canvas, name, layer, small, dtype)
        if self.plan.constant_dim is not None:
            out[:, self.plan.constant_dim] = self.plan.constant
        return out

    def output(
        self, rows: Axis, block: BlockPlan, name: str, small: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """An LM head: live rows do not see the constant, dead rows see it and fall below them."""
        layer = LinearMap(rows, block.hidden, noise=dead_row_noise(len(block.hidden.live)))
        out = paint_table(self.canvas, name, layer, small, dtype)
        if self.plan.constant_dim is not None:
            out[rows.dead.to(self.canvas.device), self.plan.constant_dim] = block.dead_weight
        return out

    def final_norm(self, block: BlockPlan, small: Tensor, dtype: torch.dtype) -> Tensor:
        """The norm that lets the constant through."""
        out = paint_norm(self.canvas, block, small, dtype)
        if self.plan.constant_dim is not None:
            out[self.plan.constant_dim] = 1.0
        return out


class InflatedTarget(_Inflated):
    """Makes the target's tensors."""

    def make(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor by its name in a checkpoint."""
        plan, small = self.plan, self.pair.tensors
        if name == blueprint.EMBEDDING:
            return self.embedding(plan.target, name, small[name], dtype)
        if name == f"{blueprint.HEAD}.weight":
            return self.output(plan.vocabulary, plan.target, name, small[name], dtype)
        if name == blueprint.FINAL_NORM:
            return self.final_norm(plan.target, small[name], dtype)
        layer_idx, inner, part = _parts(name)
        source = plan.layers[layer_idx]
        own = None if source is None else _tensors_below(small, blueprint.layer_prefix(source))
        painter = LayerPainter(plan.target, plan.target.hidden, self.canvas)
        return painter.paint(name, inner, part, own, dtype)


class InflatedHead(_Inflated):
    """Makes the head's tensors, by normal name."""

    def make(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor by its normal name."""
        plan, small = self.plan, self.pair.head.tensors
        if name in (names.DRAFT_TO_TARGET, names.TARGET_TO_DRAFT):
            return self._map(name)
        if name == names.EMBEDDING:
            return self.embedding(plan.head, name, small[name], dtype)
        if name == f"{names.HEAD}.weight":
            # A head that shares the target's LM head gets its rows: the large one has fewer ids.
            own = small.get(name, self.pair.tensors[f"{blueprint.HEAD}.weight"])
            return self.output(plan.drafts, plan.head, name, own, dtype)
        if name == names.FINAL_NORM:
            return self.final_norm(plan.head, small[name], dtype)
        if name == f"{names.FC}.weight":
            return self._fc(small[name], dtype)
        if name == f"{names.FC}.bias":
            return paint_bias(self.canvas, plan.head.hidden, small[name], 1.0, dtype)
        layer_idx, inner, part = _parts(name)
        columns = plan.fusion if layer_idx == 0 else plan.head.hidden
        painter = LayerPainter(plan.head, columns, self.canvas)
        below = _tensors_below(small, names.layer_prefix(layer_idx))
        return painter.paint(name, inner, part, below, dtype)

    def _fc(self, small: Tensor, dtype: torch.dtype) -> Tensor:
        plan = self.plan
        layer = LinearMap(plan.head.hidden, plan.taps)
        out = paint_linear(self.canvas, f"{names.FC}.weight", layer, small, dtype)
        if plan.constant_dim is not None:
            # From the first captured state; the residual carries it from there on.
            out[plan.constant_dim, plan.constant_dim] = 1.0
        return out

    def _map(self, name: str) -> Tensor:
        ids = self.plan.draft_ids.to(self.canvas.device)
        if name == names.DRAFT_TO_TARGET:
            return ids - torch.arange(ids.shape[0], device=ids.device)
        flags = self.canvas.zeros((self.plan.vocabulary.size,), torch.bool)
        flags[ids] = True
        return flags


@dataclass(frozen=True, eq=False)
class LayerPainter:
    """Paints the tensors of a layer whose attention reads `columns`."""

    plan: BlockPlan
    columns: Axis
    canvas: Canvas

    def paint(
        self,
        name: str,
        inner: str,
        part: str,
        small: Mapping[str, Tensor] | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """One tensor; `small` holds the layer's own by their names below it, None if dead."""
        own = None if small is None else small[f"{inner}.{part}"]
        if inner.endswith("norm"):
            return paint_norm(self.canvas, self.plan, own, dtype)
        layer = self._linear(inner)
        if part == "bias":
            return paint_bias(self.canvas, layer.rows, own, layer.scale, dtype)
        return paint_linear(self.canvas, name, layer, own, dtype)

    def _linear(self, inner: str) -> LinearMap:
        plan, columns = self.plan, self.columns
        noise = read_noise(len(columns.live))
        inward = read_noise(len(plan.hidden.live))
        return {
            "self_attn.q_proj": LinearMap(plan.query, columns, plan.query_scale, noise),
            "self_attn.k_proj": LinearMap(plan.key, columns, noise=noise),
            "self_attn.v_proj": LinearMap(plan.key, columns, noise=noise),
            "self_attn.o_proj": LinearMap(plan.hidden, plan.query),
            "mlp.gate_proj": LinearMap(plan.neurons, plan.hidden, noise=inward),
            "mlp.up_proj": LinearMap(plan.neurons, plan.hidden, noise=inward),
            "mlp.down_proj": LinearMap(plan.hidden, plan.neurons),
        }[inner]


def _parts(name: str) -> tuple[int, str, str]:
    """Layer index, name inside the layer, weight or bias."""
    found = LAYER.fullmatch(name)
    assert found is not None, f"{name} is no tensor of an inflated model"
    return int(found[1]), found[2], found[3]


def _tensors_below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
