"""Reference of R26: logits without what grammars forbid."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.reference.round_draft import as_float32


def forbid_tokens(
    *,
    logits: NDArray[Any],
    ends: NDArray[np.int32],
    first: NDArray[np.int32],
    bits: NDArray[np.int32],
    token_ids: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """R26: column by column, the bit of its id."""
    masked = np.array([as_float32(row) for row in logits], np.float32).reshape(logits.shape)
    n_ids = 32 * bits.shape[1]
    for r in range(len(logits)):
        seat = int(np.count_nonzero(ends <= r)) - 1
        if not 0 <= seat < len(first) or first[seat] <= 0:
            continue
        mask = int(first[seat]) + r - int(ends[seat])
        if not 0 < mask < len(bits):
            continue
        for column in range(logits.shape[1]):
            own = column
            if token_ids is not None:
                own = int(token_ids[min(seat, len(token_ids) - 1), column])
            if not 0 <= own < n_ids or not int(bits[mask, own // 32]) >> (own % 32) & 1:
                masked[r, column] = -np.inf
    return {"masked": masked}
