"""NumPy K8: the KV slot list of every request, or of every frontier slot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.numpy_cpu.ragged import check_table_span, joined, running
from aerie.kernels.numpy_cpu.refusals import Refusals
from aerie.kernels.status import Status

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]


def compute_kv_indices(
    *,
    req_to_token: Slots,
    req_pool_indices: Ints,
    seq_len: Ints,
    kv_capacity: int,
    tree_mask: NDArray[np.bool_] | None = None,
    fed_slots: Slots | None = None,
) -> dict[str, Any]:
    """K8: one slot list per request, or per (request, frontier slot) with its ancestor chain."""
    batch = len(seq_len)
    refusals = Refusals(batch)
    check_table_span(refusals, req_to_token, req_pool_indices, seq_len, 0)
    # [B, W] length of each list
    lengths = seq_len[:, None]
    if tree_mask is not None:
        lengths = lengths + np.add.reduce(tree_mask, axis=2, dtype=np.int64)
    if refusals.found:
        lengths = lengths * (refusals.status == 0)[:, None]
    asked = np.add.reduce(lengths, axis=1).cumsum()
    if batch and asked.item(-1) > kv_capacity:
        refusals.add(Status.KV_CAPACITY, asked > kv_capacity, asked)
        lengths = lengths * (refusals.status == 0)[:, None]
    lists = []
    for request, (row, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_len.tolist(), strict=True)
    ):
        if refusals.found and refusals.status[request]:
            continue
        prefix = req_to_token[row, :length]
        if tree_mask is None or fed_slots is None:
            lists.append(prefix)
            continue
        for is_seen in tree_mask[request]:
            lists += [prefix, fed_slots[request][is_seen]]
    return {
        "kv_indptr": running(lengths.reshape(-1)).astype(np.int32),
        "kv_indices": joined(lists, kv_capacity),
        **refusals.words(),
    }
