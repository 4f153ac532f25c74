"""Small quantisers, written from the definition of each format; shared, not a test itself.

Each turns a weight [n_out, n_in] into the tensors a checkpoint stores, and into the float32 weight
they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.unit.models import pairs

Tensors = dict[str, Tensor]
Quantised = tuple[Tensors, Tensor]
# Nibble i of a word holds the output AWQ_ORDER[i] of its eight.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack_words(codes: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[rows, columns] codes 0..15 to [rows, columns / 8] words, lowest bits first."""
    words = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for place, column in enumerate(order):
        words |= codes[:, column::8].long() << 4 * place
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def four_bits(weight: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [n_in, n_out], scales and zero points [groups, n_out] of inputs dealt to groups."""
    n_groups = int(groups.max()) + 1
    scales, zeros = torch.zeros(n_groups, weight.shape[0]), torch.zeros(n_groups, weight.shape[0])
    for g in range(n_groups):
        part = weight[:, groups == g]
        low, high = part.min(1).values.clamp(max=0), part.max(1).values.clamp(min=0)
        scales[g] = ((high - low) / 15).half().float()
        zeros[g] = (-low / scales[g]).round().clamp(0, 15)
    codes = (weight.T / scales[groups] + zeros[groups]).round().clamp(0, 15)
    return codes, scales, zeros


def gptq(
    weight: Tensor, group_size: int = 16, version: int = 1, seed: int | None = None
) -> Quantised:
    """With a seed the inputs are dealt to the groups at random, as act-order leaves them."""
    n_in = weight.shape[1]
    groups = torch.arange(n_in) // (n_in if group_size == -1 else group_size)
    if seed is not None:
        groups = groups[torch.randperm(n_in, generator=torch.Generator().manual_seed(seed))]
    codes, scales, zeros = four_bits(weight, groups)
    stored = {
        "qweight": pack_words(codes.T).T.contiguous(),
        "qzeros": pack_words((zeros - int(version == 1)).int() & 15),
        "scales": scales.half(),
        "g_idx": groups.int(),
    }
    return stored, ((codes - zeros[groups]) * scales[groups]).T


def awq(weight: Tensor, group_size: int = 16) -> Quantised:
    """Version gemm, with zero points."""
    groups = torch.arange(weight.shape[1]) // group_size
    codes, scales, zeros = four_bits(weight, groups)
    stored = {
        "qweight": pack_words(codes, AWQ_ORDER),
        "qzeros": pack_words(zeros, AWQ_ORDER),
        "scales": scales.half(),
    }
    return stored, ((codes - zeros[groups]) * scales[groups]).T


def fp8(weight: Tensor, block: tuple[int, int], name: str = "weight_scale_inv") -> Quantised:
    """One scale for each block of outputs and inputs; those at the edge may be smaller."""
    rows, columns = (-(-n // size) for n, size in zip(weight.shape, block, strict=True))
    scales, exact = torch.zeros(rows, columns), torch.zeros_like(weight)
    floats = torch.zeros_like(weight).to(torch.float8_e4m3fn)
    for r in range(rows):
        for c in range(columns):
            own = (slice(r * block[0], (r + 1) * block[0]), slice(c * block[1], (c + 1) * block[1]))
            scales[r, c] = weight[own].abs().max() / 448
            floats[own] = (weight[own] / scales[r, c]).to(torch.float8_e4m3fn)
            exact[own] = floats[own].float() * scales[r, c]
    return {"weight": floats, name: scales}, exact


def fp8_layer(weight: Tensor) -> Quantised:
    """One scale for the layer, and one of activations that is not needed."""
    stored, exact = fp8(weight, (weight.shape[0], weight.shape[1]), "weight_scale")
    scale = stored["weight_scale"].reshape(())
    return stored | {"weight_scale": scale, "input_scale": torch.ones(1)}, exact


@dataclass(frozen=True)
class Scheme:
    """A format: how a config spells it, and how a layer is stored."""

    config: dict[str, Any]
    quantise: Callable[[Tensor], Quantised]


SCHEMES = {
    "gptq": Scheme({"quant_method": "gptq", "bits": 4, "group_size": 16}, gptq),
    "gptq_act_order": Scheme(
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
        lambda weight: gptq(weight, seed=2),
    ),
    "awq": Scheme(
        {
            "quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm",
            "zero_point": True, "modules_to_not_convert": None,
        },
        awq,
    ),
    "fp8_blocks": Scheme(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "weight_block_size": [16, 32]},
        lambda weight: fp8(weight, (16, 32)),
    ),
    "fp8_layer": Scheme({"quant_method": "fp8", "activation_scheme": "static"}, fp8_layer),
    "fp8_outputs": Scheme(
        {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
         "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
             "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}}},
        lambda weight: fp8(weight, (1, weight.shape[1]), "weight_scale"),
    ),
}  # fmt: skip
LINEARS = ("self_attn", "mlp")


def quantise_file(
    tensors: Tensors,
    quantise: Callable[[Tensor], Quantised],
    parts: tuple[str, ...] = LINEARS,
    left_out: tuple[str, ...] = (),
) -> tuple[Tensors, Tensors]:
    """Pack every linear whose name has one of the parts: (packed file, dense equivalent)."""
    packed: Tensors = {}
    dense: Tensors = {}
    for name, tensor in tensors.items():
        is_packed = any(part in name for part in parts) and name.endswith(".weight")
        if is_packed and tensor.dim() == 2 and not any(other in name for other in left_out):
            stored, exact = quantise(tensor)
            prefix = name.removesuffix(".weight")
            packed |= {f"{prefix}.{key}": value for key, value in stored.items()}
            dense[name] = exact
        else:
            packed[name] = dense[name] = tensor
    return packed, dense


def spread(n_out: int, n_in: int) -> Tensor:
    """A weight in which some outputs are positive: their zero point is 0."""
    weight = torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(n_in + n_out))
    weight[0] = weight[0].abs() + 0.1
    return weight / math.sqrt(n_in)


def config_of(scheme: Scheme, **fields: Any) -> dict[str, Any]:
    """config.json of the tiny target in a scheme."""
    return pairs.target_config(**fields, quantization_config=scheme.config)
