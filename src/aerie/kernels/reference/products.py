"""Reference of products with packed weights: every weight is written out, then multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.cards.products import step_of

Rows = NDArray[Any]
Codes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def multiply_int4(
    *,
    x: Rows,
    codes: Codes,
    scales: Floats,
    zeros: Codes,
    group_size: int,
    bias: Rows | None = None,
) -> dict[str, Any]:
    """R18: scale times code less zero, group by group."""
    weight = np.zeros((len(codes), x.shape[1]), np.float32)
    step = step_of(group_size)
    for k in range(x.shape[1]):
        half, lane = step // 2, k % step
        byte = codes[:, k // step * half + lane % half]
        code = byte & 15 if lane < half else byte >> 4
        group = k // group_size
        weight[:, k] = scales[group] * (code.astype(np.float32) - zeros[group])
    return {"y": _multiply(x, weight, bias)}


def multiply_fp8(
    *, x: Rows, codes: Codes, scales: Floats, group_size: int, bias: Rows | None = None
) -> dict[str, Any]:
    """R19: scale times eight-bit float, group by group."""
    weight = np.zeros(codes.shape, np.float32)
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        # Below the least exponent there is no hidden one.
        value = (mantissa / 8 + (exponent > 0)) * 2.0 ** (max(exponent, 1) - 7)
        weight[codes == code] = -value if code >= 128 else value
    for k in range(x.shape[1]):
        weight[:, k] *= scales[k // group_size]
    return {"y": _multiply(x, weight, bias)}


def _multiply(x: Rows, weight: Floats, bias: Rows | None) -> Rows:
    """x times the weight's transpose, plus the bias, rounded once."""
    y = widened(x) @ weight.astype(np.float64).T
    return rounded(y if bias is None else y + widened(bias), x)


def widened(values: Rows) -> NDArray[np.float64]:
    """Any dtype of rows as float64; bfloat16 travels as 16-bit patterns."""
    if values.dtype == np.uint16:
        values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float64)


def rounded(values: NDArray[np.float64], like: Rows) -> Rows:
    """To the dtype of the rows; of two bfloat16 as near, the even one."""
    if like.dtype != np.uint16:
        return values.astype(like.dtype)
    bits = values.astype(np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
