"""Reference of R26: logits without what grammars forbid."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Forbidden
from aerie.kernels.numpy_types import as_float32


@takes_call
def forbid_tokens(call: Forbidden) -> dict[str, Any]:
    """R26: only rows that have a mask are looked at."""
    masked = as_float32(call.logits)
    rows = np.arange(len(call.logits))
    seat = np.searchsorted(np.sort(call.ends), rows, side="right") - 1
    known = np.minimum(np.maximum(seat, 0), max(len(call.first) - 1, 0))
    begin = call.first[known] if len(call.first) else np.zeros(len(rows), np.int32)
    mask = begin.astype(np.int64) + rows - call.ends[known]
    is_mask = (begin > 0) & (mask > 0) & (mask < len(call.bits))
    is_bound = is_mask & (seat == known) & (len(call.first) > 0)
    for r in np.flatnonzero(is_bound).tolist():
        # Bytes of a little-endian word stand in the order of its bits.
        words = np.ascontiguousarray(call.bits[mask[r]]).view(np.uint8)
        allowed = np.unpackbits(words, bitorder="little").view(np.bool_)
        if call.token_ids is None:
            n_known = min(len(allowed), masked.shape[1])
            masked[r, :n_known][~allowed[:n_known]] = -np.inf
            masked[r, n_known:] = -np.inf
        else:
            own = call.token_ids[min(seat[r], len(call.token_ids) - 1)]
            is_id = (own >= 0) & (own < len(allowed))
            masked[r, ~(is_id & allowed[np.where(is_id, own, 0)])] = -np.inf
    return {"masked": masked}
