"""Reference of products with packed weights: every weight is written out, then multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards import products as cards
from aerie.kernels.numpy_types import Doubles, Floats, widened

Rows = NDArray[Any]


@takes_call
def multiply_int4(call: cards.FourBits) -> dict[str, Any]:
    """R18: scale times code less zero, group by group."""
    return {"y": _multiply(call.x, _of_codes(call), call.bias)}


@takes_call
def unpack_int4(call: cards.UnpackedFourBits) -> dict[str, Any]:
    """R28: the weight of R18, in the dtype of what it is written to."""
    call.weight[:] = rounded(_of_codes(call).astype(np.float64), call.weight)
    return {}


def _of_codes(call: cards.FourBits | cards.UnpackedFourBits) -> Floats:
    """Input by input, scale times code less zero."""
    weight = np.zeros((len(call.codes), 2 * call.codes.shape[1]), np.float32)
    step = cards.step_of(call.group_size)
    for k in range(weight.shape[1]):
        half, lane = step // 2, k % step
        byte = call.codes[:, k // step * half + lane % half]
        code = byte & 15 if lane < half else byte >> 4
        group = k // call.group_size
        weight[:, k] = call.scales[group] * (code.astype(np.float32) - call.zeros[group])
    return weight


@takes_call
def multiply_fp8(call: cards.EightBits) -> dict[str, Any]:
    """R19: scale times eight-bit float, group by group."""
    return {"y": _multiply(call.x, _of_floats(call), call.bias)}


@takes_call
def unpack_fp8(call: cards.UnpackedEightBits) -> dict[str, Any]:
    """R29: the weight of R19, in the dtype of what it is written to."""
    call.weight[:] = rounded(_of_floats(call).astype(np.float64), call.weight)
    return {}


def _of_floats(call: cards.EightBits | cards.UnpackedEightBits) -> Floats:
    """Input by input, scale times eight-bit float."""
    weight = np.array(FLOATS, np.float32)[call.codes]
    for k in range(weight.shape[1]):
        weight[:, k] *= call.scales[k // call.group_size]
    return weight


@takes_call
def multiply_fp8_rows(call: cards.EightBitRows) -> dict[str, Any]:
    """R27: row by row, the scale, the nearest floats, and their product with the weight."""
    weight = np.array(FLOATS)[call.codes] * call.scales.astype(np.float64)[:, None]
    rows = widened(call.x)
    y = np.zeros((len(rows), len(call.codes)))
    for row, own in zip(rows, y, strict=True):
        scale, largest = 1.0, np.abs(row).max()
        if largest:
            exponents = range(-cards.MOST_EXPONENT, cards.MOST_EXPONENT + 1)
            fitting = (2.0**e for e in exponents if largest <= cards.LARGEST_FLOAT * 2.0**e)
            scale = next(fitting, 2.0**cards.MOST_EXPONENT)
        own[:] = scale * (weight @ _nearest(row / scale))
    return {"y": rounded(y if call.bias is None else y + widened(call.bias), call.x)}


def _value(code: int) -> float:
    """What an e4m3 float is, by its bits."""
    exponent, mantissa = (code >> 3) & 15, code & 7
    # Below the least exponent there is no hidden one.
    value = (mantissa / 8 + (exponent > 0)) * 2.0 ** (max(exponent, 1) - 7)
    return -value if code >= 128 else value


FLOATS = tuple(_value(code) for code in range(256))


def _nearest(values: Doubles) -> Doubles:
    """The nearest e4m3 floats, of two as near the one of an even code."""
    known = np.array(FLOATS[: FLOATS.index(cards.LARGEST_FLOAT) + 1])
    halves, sizes = (known[:-1] + known[1:]) / 2, np.abs(values)
    below, above = (np.searchsorted(halves, sizes, side) for side in ("left", "right"))
    return np.copysign(known[np.where(below % 2, above, below)], values)


def _multiply(x: Rows, weight: Floats, bias: Rows | None) -> Rows:
    """x times the weight's transpose, plus the bias, rounded once."""
    y = widened(x) @ weight.astype(np.float64).T
    return rounded(y if bias is None else y + widened(bias), x)


def rounded(values: Doubles, like: Rows) -> Rows:
    """To the dtype of the rows; of two bfloat16 as near, the even one."""
    if like.dtype != np.uint16:
        return values.astype(like.dtype)
    bits = values.astype(np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
