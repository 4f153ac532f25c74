"""Reference of R26: logits without what grammars forbid."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Forbidden
from aerie.kernels.reference.round_draft import as_float32


@takes_call
def forbid_tokens(call: Forbidden) -> dict[str, Any]:
    """R26: column by column, the bit of its id."""
    masked = as_float32(call.logits).copy()
    n_ids = 32 * call.bits.shape[1]
    for r in range(len(call.logits)):
        seat = int(np.count_nonzero(call.ends <= r)) - 1
        if not 0 <= seat < len(call.first) or call.first[seat] <= 0:
            continue
        mask = int(call.first[seat]) + r - int(call.ends[seat])
        if not 0 < mask < len(call.bits):
            continue
        for column in range(call.logits.shape[1]):
            own = column
            if call.token_ids is not None:
                own = int(call.token_ids[min(seat, len(call.token_ids) - 1), column])
            if not 0 <= own < n_ids or not int(call.bits[mask, own // 32]) >> (own % 32) & 1:
                masked[r, column] = -np.inf
    return {"masked": masked}
