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

from aerie.kernels.call import takes_call
from aerie.kernels.cards import products as cards

TILE = 16  # rows
# Weights that are unpacked at a time: 4 MB of them stay in a core's caches.
MOST_UNPACKED = 1 << 20

Unpack = Callable[[slice], Tensor]  # weights of some outputs, float32 [outputs, inputs]


@takes_call
def multiply_int4(call: cards.FourBits) -> dict[str, Any]:
    """R18: scale times code less zero, group by group."""
    return {"y": multiply_unpacked(call.x, call.codes.shape[0], _of_codes(call), call.bias)}


@takes_call
def unpack_int4(call: cards.UnpackedFourBits) -> dict[str, Any]:
    """R28: the weight of R18, in the dtype of what it is written to."""
    _write(call.weight, _of_codes(call))
    return {}


def _of_codes(call: cards.FourBits | cards.UnpackedFourBits) -> Unpack:
    step, groups = cards.step_of(call.group_size), (call.scales.shape[0], call.group_size)

    def unpack(outputs: slice) -> Tensor:
        whole = halves(call.codes[outputs], step).unflatten(1, groups)
        centred = whole.float() - call.zeros[:, outputs].t().float()[..., None]
        return (centred * call.scales[:, outputs].t()[..., None]).flatten(1)

    return unpack


@takes_call
def multiply_fp8(call: cards.EightBits) -> dict[str, Any]:
    """R19: scale times eight-bit float, group by group."""
    return {"y": multiply_unpacked(call.x, call.codes.shape[0], _of_floats(call), call.bias)}


@takes_call
def unpack_fp8(call: cards.UnpackedEightBits) -> dict[str, Any]:
    """R29: the weight of R19, in the dtype of what it is written to."""
    _write(call.weight, _of_floats(call))
    return {}


def _of_floats(call: cards.EightBits | cards.UnpackedEightBits) -> Unpack:
    n_in = call.codes.shape[1]
    floats = call.codes.contiguous().view(torch.float8_e4m3fn)

    def unpack(outputs: slice) -> Tensor:
        by_group = call.scales[:, outputs].t()
        if by_group.shape[1] > 1:
            by_group = by_group[..., None].expand(-1, -1, call.group_size).flatten(1)[:, :n_in]
        return floats[outputs].float() * by_group

    return unpack


@takes_call
def multiply_fp8_rows(call: cards.EightBitRows) -> dict[str, Any]:
    """R27: rows in eight bits, each with a scale of its own."""
    floats, wide = call.codes.contiguous().view(torch.float8_e4m3fn), call.x.float()
    exponent = exponent_of(wide.abs().amax(dim=1))
    near = (wide * power_of_two(-exponent)[:, None]).to(torch.float8_e4m3fn).float()
    y = multiply_unpacked(near, call.codes.shape[0], lambda outputs: floats[outputs].float(), None)
    y = y * call.scales * power_of_two(exponent)[:, None]
    return {"y": (y if call.bias is None else y + call.bias.float()).to(call.x.dtype)}


def exponent_of(largest: Tensor) -> Tensor:
    """Exponents of the least powers of two that leave these, float32, at most 448. int32

    A float up to 1.75 times a power of two is 448 times one that is 2^8 less, beyond 2^7: what is
    added to its bits carries into the exponent there.
    """
    found = ((largest.view(torch.int32) + 0x1FFFFF) >> 23) - (127 + 8)
    return found.clamp(-cards.MOST_EXPONENT, cards.MOST_EXPONENT).masked_fill(largest == 0, 0)


def power_of_two(exponent: Tensor) -> Tensor:
    """Two to the power of small int32, put together: a GPU's own power is not exact."""
    return ((exponent + 127) << 23).view(torch.float32)


def halves(codes: Tensor, step: int) -> Tensor:
    """[rows, bytes] to the codes that two halves of a step hold. [rows, 2 * bytes]"""
    steps = codes.unflatten(1, (-1, step // 2))
    return torch.cat((steps & 15, steps >> 4), dim=2).flatten(1)


def _write(weight: Tensor, unpack: Unpack) -> None:
    """Some outputs at a time: they are float32 on the way."""
    n_out, n_in = weight.shape
    each = max(1, MOST_UNPACKED // n_in)
    for first in range(0, n_out, each):
        outputs = slice(first, first + each)
        weight[outputs] = unpack(outputs)


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
