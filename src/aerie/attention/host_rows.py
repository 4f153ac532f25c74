"""Rows built on the host: for engines on a CPU, where a small NumPy operation is the cheapest.

The values are those of `rows.py`, whose functions never read a tensor and so run on any device.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def level_rows(
    slots: Sequence[Tensor],
    seq_lens: Sequence[int],
    tokens: Tensor,
    mask: Tensor,
    widths: Sequence[int],
) -> Rows:
    """One level of a draft: every frontier node sees its prefix, its fed ancestors and itself.

    Per request the KV slots of its positions and its length; `tokens` [requests, width] i64 and
    `mask` [requests, width, fed or more] bool of the frontier; `widths` nodes fed at each level so
    far, this one included.
    """
    batch, width = tokens.shape
    fed = sum(widths)
    lengths = np.array(seq_lens, np.int32)
    ends = [0, *np.cumsum(lengths + fed).tolist()]
    starts = np.array(ends[:-1], np.int32)
    listed = [own[: n + fed].numpy() for own, n in zip(slots, seq_lens, strict=True)]
    kv_indices = np.concatenate(listed)
    column = np.arange(ends[-1], dtype=np.int32) - np.repeat(starts, lengths + fed)
    # Nodes of one level share a position.
    levels = np.repeat(np.arange(len(widths), dtype=np.int32), widths)
    tree = (starts + lengths)[:, None] + np.arange(fed)
    column[tree] = lengths[:, None] + levels
    depth = len(widths) - 1
    return Rows(
        tokens=tokens.reshape(-1),
        positions=torch.from_numpy(np.repeat(lengths.astype(np.int64) + depth, width)),
        kv_slots=torch.from_numpy(kv_indices[tree[:, fed - width :]].reshape(-1).astype(np.int64)),
        visible_prefix=torch.from_numpy(np.repeat(lengths, width)),
        ancestor_bits=torch.from_numpy(_pack(mask.numpy().reshape(batch * width, -1))),
        qo_indptr=torch.from_numpy(np.arange(batch + 1, dtype=np.int32) * width),
        kv_indptr=torch.tensor(ends, dtype=torch.int32),
        kv_indices=torch.from_numpy(kv_indices),
        column_positions=torch.from_numpy(column),
        tree_start=torch.from_numpy(lengths),
        bounds=Bounds(width, max(seq_lens) + fed, fed),
    )


def _pack(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """[rows, columns] bool to [rows, 4] words, bit j of word w = column 32 w + j."""
    packed = np.zeros((len(mask), MASK_WORDS * WORD_BYTES), np.uint8)
    found = np.packbits(mask, axis=1, bitorder="little")
    packed[:, : found.shape[1]] = found
    return packed.view(np.int32)
