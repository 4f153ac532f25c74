"""Rows built on the host: for engines on a CPU, where a small NumPy operation is the cheapest.

The values are those of `rows.py`, whose functions never read a tensor and so run on any device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.attention.rows import MASK_WORDS, Bounds, Rows

WORD_BYTES = 4


def causal_rows(
    tokens: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, bounds: Bounds
) -> Rows:
    """Rows that continue their prefix one after another: prefill, a chunk of it, or decode."""
    own, prefix, column = _places(qo_indptr.numpy(), kv_indptr.numpy())
    positions = column[own].astype(np.int64)
    bits = torch.zeros((len(own), MASK_WORDS), dtype=torch.int32)
    return Rows(
        tokens=tokens,
        positions=torch.from_numpy(positions),
        kv_slots=torch.from_numpy(kv_indices.numpy()[own].astype(np.int64)),
        visible_prefix=torch.from_numpy((positions + 1).astype(np.int32)),
        ancestor_bits=bits,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        column_positions=torch.from_numpy(column),
        tree_start=torch.from_numpy(prefix),
        bounds=bounds,
    )


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
    own, prefix, column = _places(qo_indptr.numpy(), kv_indptr.numpy())
    column[own] = positions.numpy()
    return Rows(
        tokens=tokens,
        positions=positions,
        kv_slots=torch.from_numpy(kv_indices.numpy()[own].astype(np.int64)),
        visible_prefix=torch.from_numpy(np.repeat(prefix, np.diff(qo_indptr.numpy()))),
        ancestor_bits=ancestor_bits,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        column_positions=torch.from_numpy(column),
        tree_start=torch.from_numpy(prefix),
        bounds=bounds,
    )


def _places(
    qo_indptr: NDArray[np.int32], kv_indptr: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Column of every row, prefix of every request, index of every column in its request."""
    counts, lengths, starts = np.diff(qo_indptr), np.diff(kv_indptr), kv_indptr[:-1]
    prefix = lengths - counts
    # A request's own columns lie behind its prefix, one for each of its rows.
    own = np.arange(qo_indptr[-1]) + np.repeat(starts + prefix - qo_indptr[:-1], counts)
    column = np.arange(kv_indptr[-1], dtype=np.int32) - np.repeat(starts, lengths)
    return own, prefix, column


def _pack(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """[rows, columns] bool to [rows, 4] words, bit j of word w = column 32 w + j."""
    packed = np.zeros((len(mask), MASK_WORDS * WORD_BYTES), np.uint8)
    found = np.packbits(mask, axis=1, bitorder="little")
    packed[:, : found.shape[1]] = found
    return packed.view(np.int32)
