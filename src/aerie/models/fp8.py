"""FP8 linears: eight-bit floats (e4m3) with scales, which stay packed.

    weight            [n_out, n_in]  e4m3
    weight_scale_inv  [n_out / 128, n_in / 128], rounded up: one for each block (DeepSeek, Qwen)
    weight_scale      [1] or [], one for the layer, or [n_out, 1], one for each output
                      (vLLM, compressed-tensors)
A weight is its float times its scale. Scales of activations (`input_scale`) are passed over: rows
are multiplied as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from aerie.kernels.cards.products import WIDEST_STEP
from aerie.models.fields import Fields
from aerie.models.linear import Linear, LinearShape
from aerie.models.loader import Loader
from aerie.models.packed import PackedFormat, Stored
from aerie.models.quantisation import COMPRESSED, FP8, SECTION, read_left_out
from aerie.models.tensors import TensorSpec

E4M3 = ("F8_E4M3",)
BLOCK, CHANNEL, TENSOR = "block", "channel", "tensor"
SCALE_BYTES = 4


@dataclass(frozen=True)
class FP8Format(PackedFormat):
    """How `quantization_config` says the linears are stored."""

    strategy: str
    scale_name: str
    block: tuple[int, int] = (1, 1)  # outputs and inputs that share a scale, of strategy block
    method: str = field(default=FP8, kw_only=True)

    def is_stored(self, prefix: str, stored: Stored) -> bool:
        """Whether a file holds its weight as such floats."""
        weight = stored.get(f"{prefix}.weight")
        return weight is not None and weight.dtype in E4M3

    def n_bytes(self, prefix: str, shape: LinearShape, element_bytes: int) -> int:
        """Memory of a layer as it runs: a scale for every output and group."""
        n_groups = -(-shape.n_in // self._group_size(shape))
        per_output = shape.n_in + n_groups * SCALE_BYTES + shape.has_bias * element_bytes
        return shape.n_out * per_output

    def tensors(self, prefix: str, shape: LinearShape) -> tuple[TensorSpec, ...]:
        """Weight, scales and, if there is one, the bias."""
        block_out, block_in = self.block
        shapes: dict[str, tuple[int, ...]] = {
            BLOCK: (-(-shape.n_out // block_out), -(-shape.n_in // block_in)),
            CHANNEL: (shape.n_out, 1),
            TENSOR: (1,),
        }
        other = () if self.strategy == TENSOR else None
        specs = [
            TensorSpec(f"{prefix}.weight", (shape.n_out, shape.n_in), E4M3),
            TensorSpec(f"{prefix}.{self.scale_name}", shapes[self.strategy], other_shape=other),
            TensorSpec(f"{prefix}.input_scale", (1,), is_optional=True, other_shape=()),
        ]
        if shape.has_bias:
            specs.append(TensorSpec(f"{prefix}.bias", (shape.n_out,)))
        return tuple(specs)

    def build(self, loader: Loader, prefix: str, shape: LinearShape) -> Linear:
        """The layer over the stored floats themselves."""
        scales = loader.take(f"{prefix}.{self.scale_name}", torch.float32)
        weights = {
            "codes": loader.take(f"{prefix}.weight", torch.float8_e4m3fn).view(torch.uint8),
            "scales": self._by_output(scales, shape).contiguous(),
        }
        sizes = {"group_size": self._group_size(shape)}
        layer = self.products.make(prefix, "multiply_fp8", weights, sizes)
        return replace(layer, bias=loader.take(f"{prefix}.bias") if shape.has_bias else None)

    def _group_size(self, shape: LinearShape) -> int:
        """Of one scale for all inputs, a group that holds them in whole steps."""
        if self.strategy == BLOCK:
            return self.block[1]
        return -(-shape.n_in // WIDEST_STEP) * WIDEST_STEP

    def _by_output(self, scales: Tensor, shape: LinearShape) -> Tensor:
        """[groups, n_out], whatever shares a scale: layers side by side keep their own."""
        if self.strategy == BLOCK:
            return scales.repeat_interleave(self.block[0], dim=0)[: shape.n_out].t()
        return scales.reshape(1, -1).expand(1, shape.n_out)


def read_fp8(config: Fields) -> FP8Format:
    """The format a config of `fp8` describes; problems are noted."""
    section = config.section(SECTION)
    if section.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        config.note(SECTION, f"fmt {section.text('fmt')!r} is not supported, only 'e4m3'")
    left_out = read_left_out(section)
    if not section.has("weight_block_size"):
        return FP8Format(TENSOR, "weight_scale", left_out=left_out)
    block = _read_block(section, "weight_block_size")
    return FP8Format(BLOCK, "weight_scale_inv", block, left_out=left_out)


def read_compressed(config: Fields) -> FP8Format:
    """The format a config of `compressed-tensors` describes; problems are noted."""
    section = config.section(SECTION)
    groups = section.section("config_groups")
    if len(groups.values) != 1:
        config.note(SECTION, f"config_groups: {len(groups.values)} groups, must be one")
    weights = groups.section(next(iter(groups.values), "group_0")).section("weights")
    kind = weights.text("type", "float"), weights.integer("num_bits", 8)
    if kind != ("float", 8) or not weights.boolean("symmetric", True):
        config.note(SECTION, f"weights of {kind[1]}-bit {kind[0]}; read: 8-bit float, symmetric")
    strategy = weights.text("strategy")
    if strategy not in (BLOCK, CHANNEL, TENSOR):
        known = f"{BLOCK}, {CHANNEL}, {TENSOR}"
        config.note(SECTION, f"strategy {strategy!r} of weights is not supported; known: {known}")
        strategy = TENSOR
    block = _read_block(weights, "block_structure") if strategy == BLOCK else (1, 1)
    left_out = read_left_out(section)
    return FP8Format(strategy, "weight_scale", block, left_out=left_out, method=COMPRESSED)


def _read_block(section: Fields, name: str) -> tuple[int, int]:
    sizes = section.integers(name)
    if len(sizes) != 2 or min(sizes) < 1:
        section.note(name, f"{list(sizes)} is not the two sides of a block")
        return 1, 1
    return sizes[0], sizes[1]
