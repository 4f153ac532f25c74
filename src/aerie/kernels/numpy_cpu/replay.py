"""NumPy K13: active slots to the front, dead ones emptied."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.numpy_cpu.ragged import filled

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def build_active_slots(
    *,
    finished: Bools,
    seq_len: Ints,
    length_limit: Ints,
    eos_terminated: Bools,
    accept_count: Ints | None = None,
    draft_tokens: Ints | None = None,
    ancestor_bits: NDArray[np.uint32] | None = None,
) -> dict[str, Any]:
    """K13: active slots to the front, their inverse, and dead slots emptied."""
    is_dead = finished | eos_terminated | (seq_len >= length_limit)
    for array, empty in ((accept_count, 0), (draft_tokens, -1), (ancestor_bits, 0)):
        if array is not None:
            array[is_dead] = empty
    active = (~is_dead).nonzero()[0].astype(np.int32)
    inverse = np.full(len(finished), -1, np.int32)
    inverse[active] = np.arange(len(active))
    return {
        "active_slots": filled(active, len(finished), -1, np.int32),
        "active_inverse": inverse,
        "active_count": np.array([len(active)], np.int32),
    }
