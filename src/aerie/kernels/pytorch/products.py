"""PyTorch products with packed weights: some outputs at a time are unpacked and multiplied.

In float32, and sixteen rows at a time, the last ones padded: a library chooses its kernel by the
number of rows, and a row's bits must not depend on what shares its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from aerie.kernels.cards.products import step_of

TILE = 16  # rows
# Weights that are unpacked at a time: 4 MB of them stay in a core's caches.
MOST_UNPACKED = 1 << 20

Unpack = Callable[[slice], Tensor]  # weights of some outputs, float32 [outputs, inputs]


def multiply_int4(
    *,
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor,
    group_size: int,
    bias: Tensor | None = None,
) -> dict[str, Any]:
    """R18: scale times code less zero, group by group."""
    n_groups = scales.shape[0]

    def unpack(outputs: slice) -> Tensor:
        whole = halves(codes[outputs], step_of(group_size)).unflatten(1, (n_groups, group_size))
        centred = whole.float() - zeros[:, outputs].t().float()[..., None]
        return (centred * scales[:, outputs].t()[..., None]).flatten(1)

    return {"y": multiply_unpacked(x, codes.shape[0], unpack, bias)}


def multiply_fp8(
    *, x: Tensor, codes: Tensor, scales: Tensor, group_size: int, bias: Tensor | None = None
) -> dict[str, Any]:
    """R19: scale times eight-bit float, group by group."""
    n_in = x.shape[1]
    floats = codes.contiguous().view(torch.float8_e4m3fn)

    def unpack(outputs: slice) -> Tensor:
        by_group = scales[:, outputs].t()
        if by_group.shape[1] > 1:
            by_group = by_group[..., None].expand(-1, -1, group_size).flatten(1)[:, :n_in]
        return floats[outputs].float() * by_group

    return {"y": multiply_unpacked(x, codes.shape[0], unpack, bias)}


def halves(codes: Tensor, step: int) -> Tensor:
    """[rows, bytes] to the codes that two halves of a step hold. [rows, 2 * bytes]"""
    steps = codes.unflatten(1, (-1, step // 2))
    return torch.cat((steps & 15, steps >> 4), dim=2).flatten(1)


def multiply_unpacked(x: Tensor, n_out: int, unpack: Unpack, bias: Tensor | None) -> Tensor:
    """x times the transpose of a weight that comes by parts, plus the bias. [rows, n_out]"""
    n_rows, n_in = x.shape
    wide = torch.zeros(-(-n_rows // TILE) * TILE, n_in, dtype=torch.float32, device=x.device)
    wide[:n_rows] = x
    y = wide.new_empty((wide.shape[0], n_out))
    each = max(1, MOST_UNPACKED // n_in)
    for first in range(0, n_out, each):
        outputs = slice(first, first + each)
        weight = unpack(outputs)
        for tile in range(0, n_rows, TILE):
            rows = slice(tile, tile + TILE)
            y[rows, outputs] = functional.linear(wide[rows], weight)
    if bias is not None:
        y += bias.float()
    return y[:n_rows].to(x.dtype)
