"""Reference of a mixture's products: every expert is written out and multiplied by its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.experts import BLOCK, Grouped
from aerie.kernels.numpy_types import Bytes, Doubles, widened
from aerie.kernels.reference.products import rounded


@takes_call
def multiply_experts(call: Grouped) -> dict[str, Any]:
    """R25: the rows of each expert by its weight, gated where there is a gate."""
    rows, n_out = widened(call.x), call.blocks.shape[1]
    y = np.zeros((len(call.order), n_out // 2 if len(call.gate) else n_out))
    for expert in range(len(call.blocks)):
        pairs = call.order[call.starts[expert] : call.starts[expert + 1]]
        if not len(pairs):
            continue
        weight = _written_out(call.blocks[expert], call.scales[expert])
        sums = rows[pairs // call.n_active] @ weight.T
        if call.bias is not None:
            sums += widened(call.bias[expert])
        y[pairs] = _gated(sums, *call.gate.tolist()) if len(call.gate) else sums
    return {"y": rounded(y, call.x)}


def _written_out(blocks: Bytes, scales: Bytes) -> Doubles:
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


def _gated(sums: Doubles, alpha: float, limit: float) -> Doubles:
    """Of gates and ups in turn: gate * sigmoid(alpha * gate) * (up + 1), both clamped."""
    gate, up = np.minimum(sums[:, ::2], limit), np.clip(sums[:, 1::2], -limit, limit)
    # From the side that cannot overflow.
    fading = np.exp(-np.abs(alpha * gate))
    sigmoid = np.where(alpha * gate >= 0, 1.0, fading) / (1.0 + fading)
    return (up + 1) * gate * sigmoid
