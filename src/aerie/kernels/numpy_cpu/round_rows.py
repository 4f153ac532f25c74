"""NumPy R4: where the nodes stand that a draft is fed, with a few slices for each long list."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_rows import DraftLevels
from aerie.kernels.ragged import counted


@takes_call
def place_draft_levels(call: DraftLevels) -> dict[str, Any]:
    """R4: the nodes a draft is fed, and the columns of its lists."""
    lists, n_fed = call.kv_indptr.tolist(), len(call.node_level)
    call.kv_indices[lists[-1] :] = 0
    column_positions = np.empty(len(call.kv_indices), np.int32)
    column_positions[lists[-1] :] = 0
    batch, width = len(call.seq_len), call.req_to_token.shape[1]
    fed = np.arange(n_fed)
    positions = call.seq_len[:, None] + call.node_level
    for b, prefix in enumerate(call.seq_len.tolist()):
        begin, stop = lists[b], lists[b + 1]
        column_positions[begin:stop] = counted(0, stop - begin)
        tree = begin + prefix
        if tree < stop:
            n_tree = min(n_fed, stop - tree)
            column_positions[tree : tree + n_tree] = positions[b, :n_tree]
    places = np.minimum(call.seq_len[:, None] + fed, width - 1)
    slots = call.req_to_token[call.req_pool_indices[:, None], places]
    visible = np.repeat(call.seq_len, n_fed)
    if batch > 1:
        # Level by level, inside a level request by request. [B, F]
        before = call.node_level.searchsorted(call.node_level)
        wide = call.node_level.searchsorted(call.node_level, "right") - before
        place = (batch - 1) * before + fed + np.arange(batch)[:, None] * wide
        order = np.empty(batch * n_fed, np.int64)
        order[place.reshape(-1)] = np.arange(batch * n_fed)
        positions, slots, visible = positions.take(order), slots.take(order), visible.take(order)
    return {
        "fed_positions": positions.reshape(-1),
        "fed_slots": slots.reshape(-1).astype(np.int64),
        "fed_visible": visible.astype(np.int32),
        "column_positions": column_positions,
    }
