"""NumPy K8: the KV slot list of every request, or of every frontier slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.memory import KvIndices
from aerie.kernels.numpy_cpu.ragged import check_table_span, joined, running
from aerie.kernels.numpy_cpu.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
def compute_kv_indices(call: KvIndices) -> dict[str, Any]:
    """K8: one slot list per request, or per (request, frontier slot) with its ancestor chain."""
    batch = len(call.seq_len)
    refusals = Refusals(batch)
    check_table_span(refusals, call, 0)
    # [B, W] length of each list
    lengths = call.seq_len[:, None]
    if call.tree_mask is not None:
        lengths = lengths + np.add.reduce(call.tree_mask, axis=2, dtype=np.int64)
    if refusals.found:
        lengths = lengths * (refusals.status == 0)[:, None]
    asked = np.add.reduce(lengths, axis=1).cumsum()
    if batch and asked.item(-1) > call.kv_capacity:
        refusals.add(Status.KV_CAPACITY, asked > call.kv_capacity, asked)
        lengths = lengths * (refusals.status == 0)[:, None]
    lists = []
    for request, (row, length) in enumerate(
        zip(call.req_pool_indices.tolist(), call.seq_len.tolist(), strict=True)
    ):
        if refusals.found and refusals.status[request]:
            continue
        prefix = call.req_to_token[row, :length]
        if call.tree_mask is None or call.fed_slots is None:
            lists.append(prefix)
            continue
        for is_seen in call.tree_mask[request]:
            lists += [prefix, call.fed_slots[request][is_seen]]
    return {
        "kv_indptr": running(lengths.reshape(-1)).astype(np.int32),
        "kv_indices": joined(lists, call.kv_capacity),
        **refusals.words(),
    }
