"""What `packed_times.py` measures on: shapes, packed weights made where they stay, and a clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from aerie.kernels.cards.products import step_of
from aerie.kernels.triton_gpu import packed, packed_floats
from aerie.kernels.triton_gpu.packed_plan import FEW, Product, Tile
from aerie.models.decoder import AttentionBlock, Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.feed_forward import FeedForward, GatedMLP
from aerie.models.int4 import Int4Codes, pack_layer
from aerie.models.linear import FusedProjections, Linear, Projections, WholeWeight
from aerie.models.packed import PackedLinear, PackedProducts

# Several times the cache of the largest card: what is read again comes from memory.
WALKED_BYTES = 256 << 20
MOST_COPIES = 48
MOST_HEAD_ROWS = 64  # a head reads no more rows than are verified
LARGEST_FP8 = 448.0
FP8_GROUP = 128
INT4_GROUPS = (128, 64, 32)  # the first that divides the inputs
FORMATS = ("int4", "fp8")
NAMES = {"int4": "multiply_int4", "fp8": "multiply_fp8"}
MODULES = {"int4": packed, "fp8": packed_floats}
CALLS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "int4": packed.multiply_int4,
    "fp8": packed_floats.multiply_fp8,
}


@dataclass(frozen=True)
class Shape:
    """A weight."""

    name: str
    n_out: int
    n_in: int
    is_head: bool = False

    def is_read_by(self, n_rows: int) -> bool:
        """Whether an engine ever multiplies so many rows with it."""
        return n_rows <= MOST_HEAD_ROWS or not self.is_head

    def group(self, kind: str) -> int:
        """Inputs that share a scale."""
        return FP8_GROUP if kind == "fp8" else int4_group(self.n_in)

    def product(self, kind: str) -> Product:
        """As tiles are chosen for it."""
        step = FP8_GROUP if kind == "fp8" else step_of(self.group(kind))
        return Product(NAMES[kind], self.n_out, self.n_in, step)


# An 8B decoder and its draft head; then the shapes of a target 2880 wide and of its draft.
SHAPES = (
    Shape("qkv", 6144, 4096),
    Shape("o", 4096, 4096),
    Shape("gate_up", 28672, 4096),
    Shape("down", 4096, 14336),
    Shape("head", 128256, 4096, True),
    Shape("draft_qkv", 6144, 8192),
    Shape("draft_fc", 4096, 12288),
    Shape("draft_head", 32000, 4096, True),
    Shape("gate_up_2880", 34560, 2880),
    Shape("gate_up_of_one_2880", 5760, 2880),
    Shape("qkv_2880", 5120, 2880),
    Shape("draft_fc_2880", 2880, 8640),
    Shape("draft_qkv_2880", 5120, 5760),
    Shape("head_2880", 201088, 2880, True),
)
TOY_SHAPES = (Shape("even", 32, 512), Shape("odd", 17, 288), Shape("head", 48, 256, True))


def int4_group(n_in: int) -> int:
    """The group of a four-bit weight with so many inputs."""
    return next(group for group in INT4_GROUPS if n_in % group == 0)


@dataclass(frozen=True, eq=False)
class Weights:
    """Copies of a packed weight that together overflow the cache."""

    shape: Shape
    kind: str
    copies: tuple[dict[str, Tensor], ...]

    @property
    def n_bytes(self) -> int:
        """Of one."""
        return sum(tensor.nbytes for tensor in self.copies[0].values())

    def call(self, x: Tensor, tile: Tile | None = None, copy_idx: int = 0) -> Tensor:
        """x times a copy, by a given tile; None: as products choose."""
        group_size, module = self.shape.group(self.kind), MODULES[self.kind]
        forced = mock.patch.object(module, "tile_for", lambda product, x: tile)
        with nullcontext() if tile is None else forced:
            return CALLS[self.kind](x=x, **self.copies[copy_idx], group_size=group_size)["y"]

    def calls(self, tile: Tile | None = None) -> list[Callable[[Tensor], Tensor]]:
        """The same of each copy."""
        return [partial(self.call, tile=tile, copy_idx=i) for i in range(len(self.copies))]


def draw_weights(shape: Shape, kind: str, bed: Bed) -> Weights:
    """Random codes and scales, made on the device."""
    n_groups = -(-shape.n_in // shape.group(kind))
    n_bytes = shape.n_in if kind == "fp8" else shape.n_in // 2
    n_copies = bed.copies(shape.n_out * n_bytes)

    def one() -> dict[str, Tensor]:
        codes = bed.integers(256, shape.n_out, n_bytes)
        if kind == "fp8":
            codes &= 0xF7  # 127 and 255 are no numbers
        scales = bed.uniform(n_groups, shape.n_out) * 0.01 + 0.001
        zeros = {} if kind == "fp8" else {"zeros": bed.integers(16, n_groups, shape.n_out)}
        return {"codes": codes, "scales": scales, **zeros}

    return Weights(shape, kind, tuple(one() for _ in range(n_copies)))


def written_out(weights: Weights) -> list[PackedLinear]:
    """Its copies as layers that always write their weight out for the library."""
    products = PackedProducts("triton", dense_from=1)
    sizes = {"group_size": weights.shape.group(weights.kind)}
    name = NAMES[weights.kind]
    return [products.make(weights.shape.name, name, own, sizes) for own in weights.copies]


@dataclass(frozen=True, eq=False)
class Bed:
    """A device, its dtype of rows, and a stream of random numbers of a stated seed."""

    device: str
    dtype: torch.dtype
    generator: torch.Generator

    @property
    def is_gpu(self) -> bool:
        """Whether times mean anything."""
        return self.device.startswith("cuda")

    def copies(self, n_bytes: int) -> int:
        """Of a weight of so many bytes."""
        return max(2, min(MOST_COPIES, -(-WALKED_BYTES // n_bytes))) if self.is_gpu else 2

    def integers(self, high: int, *size: int) -> Tensor:
        """Bytes below `high`."""
        drawn = torch.randint(
            0, high, size, dtype=torch.uint8, device=self.device, generator=self.generator
        )
        return drawn

    def uniform(self, *size: int) -> Tensor:
        """float32 from 0 to 1."""
        return torch.rand(size, device=self.device, generator=self.generator)

    def rows(self, *size: int) -> Tensor:
        """Of the dtype that is measured."""
        drawn = torch.randn(size, device=self.device, generator=self.generator)
        return drawn.to(self.dtype)

    def microseconds(self, calls: Sequence[Callable[[], Any]], replays: int) -> float:
        """Of one call: on a GPU the median of a graph's replays, so that no host is waited for."""
        calls[0]()
        if not self.is_gpu:
            begin = time.perf_counter()
            for call in calls:
                call()
            return 1e6 * (time.perf_counter() - begin) / len(calls)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        marks[0].record()
        for mark in marks[1:]:
            graph.replay()
            mark.record()
        marks[-1].synchronize()
        spans = [float(a.elapsed_time(b)) for a, b in pairwise(marks)]
        return 1e3 * statistics.median(spans) / len(calls)


def compile_ahead(bed: Bed, calls: Sequence[Callable[[], Any]]) -> float:
    """Compile what these launch in processes side by side; seconds. Nothing where it is read."""
    begin = time.perf_counter()
    if bed.is_gpu:
        from aerie.kernels.triton_gpu.ahead import Compilers

        with Compilers() as compilers:
            for call in calls:
                _quietly(call)
            while compilers.n_left:
                time.sleep(0.05)
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _quietly(call: Callable[[], Any]) -> None:
    """A launch that fails is met again where it is measured, and named there."""
    try:
        call()
    except Exception as error:
        print(f"compiling ahead: {type(error).__name__}: {str(error)[:200]}", flush=True)


def _spread(rows: int, outputs: int, warps: int, *stages: int) -> tuple[Tile, ...]:
    return tuple(Tile(rows, outputs, warps, n) for n in stages)


def _side_by_side(rows: int, outputs: int, warps: int, *stages: int) -> tuple[Tile, ...]:
    return tuple(Tile(rows, outputs, warps, n, is_spread=False) for n in stages)


# What is worth measuring, by the bucket of rows: all leave the same bits.
_LEAST = (
    *_spread(8, 16, 4, 3, 4, 6),
    *_spread(8, 16, 8, 4),
    *_spread(8, 32, 8, 3, 4),
    *_spread(8, 32, 4, 3, 4),
    *_spread(8, 64, 8, 2, 3),
)
TILES: dict[int, tuple[Tile, ...]] = {
    1: (*_LEAST, *_spread(16, 16, 4, 4), *_spread(16, 32, 8, 3)),
    8: _LEAST,
    16: (*_spread(16, 16, 4, 3, 4), *_spread(16, 32, 8, 2, 3, 4), *_spread(16, 64, 8, 2)),
    32: (
        *_spread(32, 16, 4, 3),
        *_spread(32, 32, 8, 2, 3),
        *_spread(16, 32, 8, 3),
        *_side_by_side(32, 32, 4, 4),
        *_side_by_side(32, 64, 2, 4),
    ),
    64: (
        *_spread(32, 32, 8, 2, 3),
        *_spread(64, 16, 8, 2),
        *_spread(64, 32, 8, 2),
        *_side_by_side(64, 32, 4, 3, 4),
        *_side_by_side(32, 64, 2, 4),
    ),
    2048: (
        *_side_by_side(64, 32, 4, 3, 4),
        *_side_by_side(128, 32, 4, 2, 3),
        *_side_by_side(64, 64, 2, 3),
        *_side_by_side(32, 64, 2, 4),
        *_spread(32, 32, 8, 3),
    ),
}
TOY_TILES: dict[int, tuple[Tile, ...]] = {
    1: (*_spread(8, 16, 4, 2), *_spread(FEW, 32, 8, 2)),
    64: (*_spread(32, 16, 8, 2), *_side_by_side(32, 32, 4, 2)),
}


def packed_target(target: Decoder, scheme: str, products: PackedProducts) -> Decoder:
    """The same decoder, its layers' weights quantised where they are."""
    packer = Packer(scheme, products)
    layers = tuple(
        replace(
            layer,
            attention=packer.attention(layer.attention),
            feed_forward=packer.feed_forward(layer.feed_forward),
        )
        for layer in target.layers
    )
    return replace(target, layers=layers)


def packed_head(head: Eagle3Head, scheme: str, products: PackedProducts) -> Eagle3Head:
    """The same head; its LM head and its embedding stay as quantisers leave them: dense."""
    packer = Packer(scheme, products)
    first = replace(
        head.first,
        attention=packer.attention(head.first.attention),
        feed_forward=packer.feed_forward(head.first.feed_forward),
    )
    fc = None if head.mixer.fc is None else packer.linear(head.mixer.fc)
    return replace(head, first=first, mixer=replace(head.mixer, fc=fc))


@dataclass(frozen=True)
class Packer:
    """Rounds dense layers to a scheme, to nearest: what is timed needs no better."""

    scheme: str  # fp8, gptq (symmetric), awq (with zero points)
    products: PackedProducts

    def attention(self, block: AttentionBlock) -> AttentionBlock:
        """Its two products."""
        return replace(block, qkv=self.joined(block.qkv), output=self.linear(block.output))

    def feed_forward(self, block: FeedForward) -> FeedForward:
        """Its two products."""
        assert isinstance(block, GatedMLP), "experts are another format's"
        return replace(block, gate_up=self.joined(block.gate_up), down=self.linear(block.down))

    def joined(self, projections: Projections) -> Projections:
        """Several layers that are one product."""
        assert isinstance(projections, FusedProjections), "fast numerics join them"
        return FusedProjections(self.linear(projections.linear), projections.widths)

    def linear(self, dense: Linear) -> Linear:
        """One layer."""
        assert isinstance(dense, WholeWeight), "it is packed already"
        weight = dense.weight.contiguous()
        if self.scheme == "fp8":
            made = self._fp8(weight)
        else:
            made = pack_layer(self.products, self.scheme, rounded(weight, self.scheme), None)
        return replace(made, bias=dense.bias)

    def _fp8(self, weight: Tensor) -> PackedLinear:
        n_out, n_in = weight.shape
        group = FP8_GROUP
        by_group = [part.abs().amax(1).float() for part in weight.split(group, dim=1)]
        # Of blocks of 128 outputs, too, as block scales are.
        scales = torch.stack(by_group)  # [groups, n_out]
        for first in range(0, n_out, group):
            own = scales[:, first : first + group]
            own[:] = own.amax(1, keepdim=True)
        scales = (scales / LARGEST_FP8).clamp(min=1e-12)
        wide = scales.t().repeat_interleave(group, dim=1)[:, :n_in]
        codes = (weight.float() / wide).to(torch.float8_e4m3fn).view(torch.uint8)
        arrays = {"codes": codes, "scales": scales.contiguous()}
        return self.products.make(self.scheme, "multiply_fp8", arrays, {"group_size": group})


def rounded(weight: Tensor, scheme: str) -> Int4Codes:
    """Of gptq zero is code 8, of awq every group has a zero of its own."""
    groups = weight.float().unflatten(1, (-1, int4_group(weight.shape[1])))
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    widths = {"gptq": groups.abs().amax(2) / 7, "awq": (high - low) / 15}
    scales = widths[scheme].clamp(min=1e-12)  # [n_out, groups]
    zeros = torch.full_like(scales, 8)
    if scheme == "awq":
        zeros = (-low / scales).round().clamp(0, 15)
    codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
    by_group = zeros.t().to(torch.uint8).contiguous()
    return Int4Codes(codes.to(torch.uint8).flatten(1), by_group, scales.t().contiguous())


def layer_bytes(target: Decoder) -> int:
    """Memory of the products of its layers."""
    return sum(_n_bytes(linear) for layer in target.layers for linear in _linears(layer))


def _linears(layer: Any) -> Iterator[Linear]:
    yield from (layer.attention.qkv.linear, layer.attention.output)
    yield from (layer.feed_forward.gate_up.linear, layer.feed_forward.down)


def _n_bytes(linear: Linear) -> int:
    if isinstance(linear, PackedLinear):
        return linear.n_bytes
    assert isinstance(linear, WholeWeight)
    return linear.weight.nbytes
