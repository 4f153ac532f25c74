"""A mixture of experts of random packed weights at a production size, and the routing it is given.

Weights are made where they stay, from a seed; nothing is written. Experts are in MXFP4, the rest in
the run's dtype. A router of random weights would send nearly all rows of a random model to the same
experts: measured rounds route by tables instead, and count what those touch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aerie.attention.contract import PrepareAttention
from aerie.models import routing
from aerie.models.blueprint import expected_tensors
from aerie.models.decoder import Decoder
from aerie.models.feed_forward import Experts
from aerie.models.fields import Fields
from aerie.models.geometry import MXFP4_BLOCK, Geometry, parse_geometry
from aerie.models.inflate.tensors import MadeLoader
from aerie.models.linear import DENSE, Linear
from aerie.models.load import LoadOptions, build_decoder
from aerie.models.tensors import BYTES

# As in the published config.json.
PUBLISHED: Mapping[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "quantization_config": {"quant_method": "mxfp4"},
}
# The same features on a CPU.
TOY: Mapping[str, Any] = {
    **PUBLISHED,
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
}
# Of codes drawn evenly the root of the mean square is 2.9: with these a weight's is near
# 0.3 / sqrt(2880), so that a layer adds to the residual stream less than it holds.
SCALES = (117, 120)
SPREAD = 0.5  # of dense weights, times 1 / sqrt(inputs)
BIAS_SPREAD = 0.02
ZIPF_EXPONENT, SHARED_ROWS = 1.0, 4  # of popularity, and rows beside each other that choose alike
UNIFORM, ZIPF = "uniform", "zipf"


@dataclass(frozen=True, eq=False)
class RandomTensors:
    """Every tensor of a geometry, drawn in the order in which it is asked for."""

    shapes: Mapping[str, tuple[tuple[int, ...], bool]]  # and whether it holds bytes
    generator: torch.Generator

    def make(self, name: str, dtype: torch.dtype) -> Tensor:
        """Codes and scales evenly, norms of ones, the rest normal."""
        (shape, is_packed), device = self.shapes[name], self.generator.device
        if is_packed:
            low, high = SCALES if name.endswith("_scales") else (0, 256)
            return torch.randint(
                low, high, shape, dtype=torch.uint8, device=device, generator=self.generator
            )
        if "norm" in name:
            return torch.ones(shape, dtype=dtype, device=device)
        is_flat = len(shape) == 1 or name.endswith("_bias")
        spread = BIAS_SPREAD if is_flat else SPREAD / math.sqrt(shape[-1])
        drawn = torch.empty(shape, dtype=dtype, device=device)
        return drawn.normal_(0.0, spread, generator=self.generator)


def build_mixture(
    config: Mapping[str, Any], prepare: PrepareAttention, options: LoadOptions, seed: int
) -> Decoder:
    """A decoder of random weights; needs no file."""
    geometry = parse_geometry(Fields(dict(config), "a random mixture"))
    specs = expected_tensors(geometry, DENSE)
    shapes = {spec.name: (spec.shape, spec.dtypes == BYTES) for spec in specs}
    device = torch.device(options.device)
    maker = RandomTensors(shapes, torch.Generator(device).manual_seed(seed))
    assert options.dtype is not None, "of random weights a dtype is said"
    loader = MadeLoader(maker, options.dtype, device)
    return build_decoder(geometry, loader, prepare, options)


@dataclass(frozen=True, eq=False)
class ForcedRouter:
    """A router that works as ever and is not listened to."""

    router: Linear
    logits: Tensor  # [rows, experts] f32, what is said instead; rewritten between rounds

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, hidden] to [rows, experts]."""
        self.router(x)
        assert len(x) <= len(self.logits), f"{len(x)} rows, the table has {len(self.logits)}"
        return self.logits[: x.shape[0]]


@dataclass(frozen=True, eq=False)
class ForcedRouting:
    """The tables of all layers."""

    tables: tuple[Tensor, ...]  # [rows, experts] f32 each
    n_active: int

    def fill(self, kind: str, seed: int) -> None:
        """Draw all tables again: every row for itself, or by popularity and alike side by side."""
        device = self.tables[0].device
        generator = torch.Generator(device).manual_seed(seed)
        for table in self.tables:
            n_rows, n_experts = table.shape
            each = 1 if kind == UNIFORM else SHARED_ROWS
            drawn = torch.empty(-(-n_rows // each), n_experts, device=device)
            # The largest of log p plus such noise is a draw by p, the largest few one without
            # putting back.
            noise = -drawn.exponential_(generator=generator).log_()
            if kind == ZIPF:
                rank = 1 + torch.randperm(n_experts, generator=generator, device=device)
                noise -= ZIPF_EXPONENT * rank.float().log()
            table.copy_(noise.repeat_interleave(each, 0)[:n_rows])

    def touched(self, n_rows: int) -> list[int]:
        """Distinct experts of every layer in a round of so many rows; reads the device."""
        return [int((counts > 0).sum()) for counts in self._counts(n_rows)]

    def busiest(self, n_rows: int) -> list[int]:
        """Rows of the expert of every layer that has most; reads the device."""
        return [int(counts.max()) for counts in self._counts(n_rows)]

    def _counts(self, n_rows: int) -> list[Tensor]:
        routings = [routing.route(table[:n_rows], self.n_active) for table in self.tables]
        return [own.starts.diff() for own in routings]


def with_forced_routing(target: Decoder, most_rows: int) -> tuple[Decoder, ForcedRouting]:
    """The same target, routed by tables for up to so many rows of a round."""
    experts = target.geometry.experts
    assert experts is not None, "a mixture"
    shape, device = (most_rows, experts.n_experts), target.embedding.device
    tables = tuple(torch.zeros(shape, device=device) for _ in target.layers)
    layers = []
    for layer, table in zip(target.layers, tables, strict=True):
        own = layer.feed_forward
        assert isinstance(own, Experts), "a mixture"
        forced = replace(own, router=ForcedRouter(own.router, table))
        layers.append(replace(layer, feed_forward=forced))
    return replace(target, layers=tuple(layers)), ForcedRouting(tables, experts.n_active)


def expert_bytes(geometry: Geometry, element_bytes: int) -> int:
    """Of one expert: codes, scales and biases of both products."""
    hidden, width = geometry.hidden_size, geometry.mlp_width
    n_weights = 3 * hidden * width
    packed = n_weights // 2 + n_weights // MXFP4_BLOCK
    return packed + (2 * width + hidden) * element_bytes


def step_bytes(geometry: Geometry, touched: float, context: int, batch: int, size: int) -> float:
    """Fewest bytes of a plain step: what is dense, experts touched in all layers, KV by window."""
    attention, hidden, experts = geometry.attention, geometry.hidden_size, geometry.experts
    assert experts is not None, "a mixture"
    dense = geometry.n_layers * (_attention_weights(geometry) + hidden * experts.n_experts)
    dense += geometry.vocab_size * hidden
    seen = sum(min(context, window or context) for window in attention.windows)
    kv = 2 * attention.n_kv_heads * attention.head_dim * seen * batch
    return (dense + kv) * size + touched * expert_bytes(geometry, size)


def chunk_operations(geometry: Geometry, n_rows: int) -> float:
    """Multiplications and additions of a chunk at the beginning of a prompt, its last logits."""
    attention, hidden, experts = geometry.attention, geometry.hidden_size, geometry.experts
    assert experts is not None, "a mixture"
    layer = _attention_weights(geometry) + hidden * experts.n_experts
    layer += experts.n_active * 3 * hidden * geometry.mlp_width
    seen = sum(
        sum(min(row + 1, window or n_rows) for row in range(n_rows)) for window in attention.windows
    )
    scores = 2 * attention.n_heads * attention.head_dim * seen
    products = n_rows * geometry.n_layers * layer + geometry.vocab_size * hidden
    return 2.0 * (products + scores)


def _attention_weights(geometry: Geometry) -> int:
    attention = geometry.attention
    query = attention.n_heads * attention.head_dim
    key = attention.n_kv_heads * attention.head_dim
    return geometry.hidden_size * (2 * query + 2 * key)
