"""Reference of a mixture's products: every expert is written out and multiplied by its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.cards.experts import BLOCK
from aerie.kernels.reference.products import rounded, widened

Rows = NDArray[Any]
Codes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Wide = NDArray[np.float64]


def multiply_experts(
    *,
    x: Rows,
    blocks: Codes,
    scales: Codes,
    order: Ints,
    starts: Ints,
    gate: NDArray[np.float32],
    n_active: int,
    largest_scale: int,
    bias: Rows | None = None,
) -> dict[str, Any]:
    """R25: the rows of each expert by its weight, gated where there is a gate."""
    rows, n_out = widened(x), blocks.shape[1]
    y = np.zeros((len(order), n_out // 2 if len(gate) else n_out))
    for expert in range(len(blocks)):
        pairs = order[starts[expert] : starts[expert + 1]]
        if not len(pairs):
            continue
        sums = rows[pairs // n_active] @ _written_out(blocks[expert], scales[expert]).T
        if bias is not None:
            sums += widened(bias[expert])
        y[pairs] = _gated(sums, *gate.tolist()) if len(gate) else sums
    return {"y": rounded(y, x)}


def _written_out(blocks: Codes, scales: Codes) -> Wide:
    """[outputs, blocks, bytes] and [outputs, blocks] to [outputs, inputs]."""
    weight = np.zeros((blocks.shape[0], blocks.shape[1] * BLOCK))
    for k in range(weight.shape[1]):
        block, lane = divmod(k, BLOCK)
        byte = blocks[:, block, lane // 2]
        code = byte >> 4 if lane % 2 else byte & 15
        exponent, mantissa = (code >> 1) & 3, code & 1
        # Below the least exponent there is no hidden one.
        size = (mantissa / 2 + (exponent > 0)) * 2.0 ** (np.maximum(exponent, 1) - 1.0)
        scale = 2.0 ** (scales[:, block] - 127.0)
        weight[:, k] = np.where(code >= 8, -size, size) * scale
    return weight


def _gated(sums: Wide, alpha: float, limit: float) -> Wide:
    """Of gates and ups in turn: gate * sigmoid(alpha * gate) * (up + 1), both clamped."""
    gate, up = np.minimum(sums[:, ::2], limit), np.clip(sums[:, 1::2], -limit, limit)
    # From the side that cannot overflow.
    fading = np.exp(-np.abs(alpha * gate))
    sigmoid = np.where(alpha * gate >= 0, 1.0, fading) / (1.0 + fading)
    return (up + 1) * gate * sigmoid
