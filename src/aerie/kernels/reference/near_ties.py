"""Reference of R17: tokens whose choice numerics may turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import NearTies
from aerie.kernels.reference.sampling import Sampler
from aerie.kernels.reference.verdict import paths_of


@takes_call
def find_near_ties(call: NearTies) -> dict[str, Any]:
    """R17: every sum of an entry's row is held against the sum of its token."""
    n_rows, vocabulary = call.logits.shape
    near = np.zeros(call.rows.shape, np.bool_)
    for entry in np.ndindex(call.rows.shape):
        row, token, b = int(call.rows[entry]), int(call.tokens[entry]), entry[0]
        if not 0 <= row < n_rows or not 0 <= token < vocabulary:
            continue
        sampler = Sampler.of_request(b, call)
        own = range(int(call.qo_indptr[b]), int(call.qo_indptr[b + 1]))
        path = paths_of(own, call)[row - own.start]
        position = int(call.positions[row])
        scores = sampler.adjust(call.logits[row], path, position)
        reach = sampler.reach(call.logits[row, token], np.float32(call.limit[b]))
        near[entry] = sampler.is_near_tie(scores, token, position, reach)
    return {"near_ties": near}
