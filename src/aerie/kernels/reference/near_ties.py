"""Reference of R17: tokens whose choice numerics may turn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.reference.sampling import Sampler
from aerie.kernels.reference.verdict import paths_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def find_near_ties(
    *,
    logits: Floats,
    positions: Ints,
    temperature: Floats,
    qo_indptr: NDArray[np.int32],
    rows: Ints,
    tokens: Ints,
    limit: Floats,
    draft_tokens: Ints | None = None,
    ancestor_bits: NDArray[np.uint32] | None = None,
    **options: NDArray[Any],
) -> dict[str, Any]:
    """R17: every sum of an entry's row is held against the sum of its token."""
    n_rows, vocabulary = logits.shape
    near = np.zeros(rows.shape, np.bool_)
    for entry in np.ndindex(rows.shape):
        row, token, b = int(rows[entry]), int(tokens[entry]), entry[0]
        if not 0 <= row < n_rows or not 0 <= token < vocabulary:
            continue
        sampler = Sampler.of_request(b, temperature, options)
        own = range(int(qo_indptr[b]), int(qo_indptr[b + 1]))
        path = paths_of(own, draft_tokens, ancestor_bits)[row - own.start]
        position = int(positions[row])
        scores = sampler.adjust(logits[row], path, position)
        reach = sampler.reach(logits[row, token], np.float32(limit[b]))
        near[entry] = sampler.is_near_tie(scores, token, position, reach)
    return {"near_ties": near}
