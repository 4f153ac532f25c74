"""Rows built on the host: for engines on a CPU, where a small NumPy operation is the cheapest.

The values are those of the functions of the same names in `rows.py`, which never read a tensor and
so can run on any device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aerie.attention.rows import Bounds, Rows


def tree_rows(
    tokens: Tensor,
    positions: Tensor,
    ancestor_bits: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    bounds: Bounds,
) -> Rows:
    """Rows of one tree per request, all written in this pass: what K10c and K8 emit."""
    counts, lengths = np.diff(qo_indptr.numpy()), np.diff(kv_indptr.numpy())
    prefix = lengths - counts
    starts = kv_indptr.numpy()[:-1]
    column = np.arange(len(kv_indices), dtype=np.int32) - np.repeat(starts, lengths)
    # Where each tree's own columns lie: behind its prefix, one for each of its rows.
    own = np.arange(len(tokens)) + np.repeat(starts + prefix - qo_indptr.numpy()[:-1], counts)
    column[own] = positions.numpy()
    return Rows(
        tokens=tokens,
        positions=positions,
        kv_slots=torch.from_numpy(kv_indices.numpy()[own].astype(np.int64)),
        visible_prefix=torch.from_numpy(np.repeat(prefix, counts)),
        ancestor_bits=ancestor_bits,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        column_positions=torch.from_numpy(column),
        tree_start=torch.from_numpy(prefix),
        bounds=bounds,
    )
