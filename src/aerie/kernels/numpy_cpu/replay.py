"""NumPy K13: active slots to the front, dead ones emptied."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.replay import ActiveSlots
from aerie.kernels.numpy_cpu.ragged import filled


@takes_call
def build_active_slots(call: ActiveSlots) -> dict[str, Any]:
    """K13: active slots to the front, their inverse, and dead slots emptied."""
    is_dead = call.finished | call.eos_terminated | (call.seq_len >= call.length_limit)
    for array, empty in ((call.accept_count, 0), (call.draft_tokens, -1), (call.ancestor_bits, 0)):
        if array is not None:
            array[is_dead] = empty
    active = (~is_dead).nonzero()[0].astype(np.int32)
    inverse = np.full(len(call.finished), -1, np.int32)
    inverse[active] = np.arange(len(active))
    return {
        "active_slots": filled(active, len(call.finished), -1, np.int32),
        "active_inverse": inverse,
        "active_count": np.array([len(active)], np.int32),
    }
