"""PyTorch products of a mixture of experts: tiles of pairs of one expert, unpacked in turn.

Nothing reads the device: there are as many tiles as there can be, and those of no pairs multiply
rows that are dropped. In float32 and sixteen rows at a time, as every packed product here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.experts import Grouped
from aerie.kernels.pytorch.products import TILE, multiply_unpacked

SCALE_BIAS = 127


@takes_call
def multiply_experts(call: Grouped) -> dict[str, Any]:
    """R25: the rows of each expert by its weight, gated where there is a gate."""
    (n_experts, n_out), n_pairs = call.blocks.shape[:2], call.order.shape[0]
    n_rows = TILE * max(1, -(-n_pairs // (TILE * n_experts)))
    experts, places = _tiles(call.starts, n_rows, min(n_pairs, n_experts + n_pairs // n_rows))
    # What is no pair goes to a row behind the last.
    y = call.x.new_zeros((n_pairs + 1, n_out // 2 if len(call.gate) else n_out))
    for tile, place in enumerate(places):
        expert = experts[tile : tile + 1]
        is_pair = place < call.starts[expert + 1]
        pair = torch.where(is_pair, call.order[place.clamp(max=n_pairs - 1)].long(), n_pairs)
        held, powers = (of.index_select(0, expert)[0] for of in (call.blocks, call.scales))
        own = None if call.bias is None else call.bias.index_select(0, expert)[0]
        rows = call.x[pair.clamp(max=n_pairs - 1) // call.n_active].float()
        sums = multiply_unpacked(rows, n_out, partial(_unpacked, held, powers), own)
        y[pair] = (_gated(sums, call.gate) if len(call.gate) else sums).to(call.x.dtype)
    return {"y": y[:n_pairs]}


def _tiles(starts: Tensor, n_rows: int, most: int) -> tuple[Tensor, Tensor]:
    """Of every tile its expert [most] and its places in the order [most, n_rows]."""
    n_tiles = (starts.diff() + (n_rows - 1)) // n_rows
    ends, tiles = n_tiles.cumsum(0), torch.arange(most, device=starts.device)
    experts = torch.searchsorted(ends, tiles, right=True).clamp_(max=len(ends) - 1)
    begin = starts[experts] + (tiles - ends[experts] + n_tiles[experts]) * n_rows
    return experts, begin[:, None] + torch.arange(n_rows, device=starts.device)


def _unpacked(blocks: Tensor, scales: Tensor, outputs: slice) -> Tensor:
    """Of [outputs, blocks, bytes] and [outputs, blocks] the weights of some, f32."""
    held = blocks[outputs]
    codes = torch.stack((held & 15, held >> 4), dim=-1).flatten(-2).int()  # [outputs, blocks, 32]
    size = codes & 7
    # Below the least exponent there is no hidden bit.
    normal = ((size + 252) << 22).view(torch.float32)
    value = torch.where(size < 2, size * 0.5, normal)
    # A power of two is exact in float32 over the whole range of the scales.
    scale = torch.exp2(scales[outputs].float() - SCALE_BIAS)[..., None]
    return (torch.where(codes > 7, -value, value) * scale).flatten(1)


def _gated(sums: Tensor, gate: Tensor) -> Tensor:
    """Of gates and ups in turn: gate * sigmoid(alpha * gate) * (up + 1), both clamped."""
    alpha, limit = gate
    own = torch.minimum(sums[:, 0::2], limit)
    up = torch.clamp(sums[:, 1::2], min=-limit, max=limit)
    return (up + 1) * own * torch.sigmoid(alpha * own)
