"""Rows: the flat, ragged batch every forward pass takes; prefill and verify differ in values only.

A request owns a run of rows (`qo_indptr`) and a list of KV slots, its columns (`kv_indptr`,
`kv_indices`): first the prefix that is already in the pool, then the slots its own rows write.
What row r of request b sees is two values; a mask may bring the same packed (K4), for attention
that would unpack it:

    sees(r, c)  =  c < visible_prefix[r]   or   bit (c - tree_start[b]) of ancestor_bits[r]

    prefill row i after a prefix of p      visible_prefix = p + i + 1, no bits
    tree row after a prefix of p           visible_prefix = p, bits = its ancestors and itself

A sliding window is cut by position, not by column: nodes of one tree level share a position.
`column_positions` therefore says the position of every column. Inside a row's visible prefix
it is the column's index; only tree columns differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BITS_PER_WORD = 32
MASK_WORDS = 4
MAX_TREE_COLUMNS = BITS_PER_WORD * MASK_WORDS


@dataclass(frozen=True)
class Bounds:
    """Upper bounds known on the host, so that sizing a buffer never reads the device.

    Any value at least as large as the truth is right; a captured graph uses its bucket's.
    """

    rows: int  # most rows of one request
    columns: int  # most columns of one request
    tree: int = 0  # most tree columns of one request; 0 when every row is causal
    tile: int = 0  # rows a tile is chosen for, where few requests have the most; 0: the most


@dataclass(frozen=True, eq=False)
class PackedMask:
    """What the rows of the first requests see of all their columns, as K4 packs it."""

    packed: Tensor  # [bytes] u8, little-endian bits, row after row; a request begins on a byte
    indptr: Tensor  # [masked requests + 1] i32, first byte of each

    def unpack(self, qo: Sequence[int], kv: Sequence[int]) -> list[NDArray[np.bool_]]:
        """[rows, columns] of each masked request, from the indptrs of rows and columns."""
        packed, begin = self.packed.numpy(), self.indptr.tolist()
        found = []
        for request, (first, end) in enumerate(itertools.pairwise(begin)):
            shape = qo[request + 1] - qo[request], kv[request + 1] - kv[request]
            bits = np.unpackbits(packed[first:end], count=shape[0] * shape[1], bitorder="little")
            found.append(bits.view(np.bool_).reshape(shape))
        return found


@dataclass(frozen=True, eq=False)
class Rows:
    """A batch of rows; all tensors on one device. Nothing here is ever written by a forward."""

    tokens: Tensor  # [rows] i64
    positions: Tensor  # [rows] i64, rotary position of the row
    kv_slots: Tensor  # [rows] i64, where the row's key and value are written
    visible_prefix: Tensor  # [rows] i32, leading columns the row sees
    ancestor_bits: Tensor  # [rows, 4] i32 holding uint32 words, little-endian by column
    qo_indptr: Tensor  # [requests + 1] i32
    kv_indptr: Tensor  # [requests + 1] i32
    kv_indices: Tensor  # [columns] i32, slot of each column
    column_positions: Tensor  # [columns] i32, rotary position of each column
    tree_start: Tensor  # [requests] i32, column of bit 0
    bounds: Bounds
    mask: PackedMask | None = None

    @property
    def n_rows(self) -> int:
        """Rows in the batch."""
        return self.tokens.shape[0]

    @property
    def n_requests(self) -> int:
        """Requests in the batch."""
        return self.qo_indptr.shape[0] - 1


def ragged(lists: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate 1-D tensors; returns (flat, indptr i32). Every list is on one device."""
    if not lists:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    ends = [0]
    for entry in lists:
        ends.append(ends[-1] + entry.shape[0])
    return torch.cat(list(lists)), torch.tensor(ends, dtype=torch.int32, device=lists[0].device)


def owners(indptr: Tensor, total: int) -> Tensor:
    """Request of each element of a ragged array of `total` elements: [total] i64."""
    requests = torch.arange(indptr.shape[0] - 1, device=indptr.device)
    return torch.repeat_interleave(requests, indptr.diff().long(), output_size=total)


def causal_rows(
    tokens: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, bounds: Bounds
) -> Rows:
    """Rows that continue their prefix one after another: prefill, a chunk of it, or decode.

    `kv_indices` lists, per request, the prefix's slots and then one slot per own row; the
    prefix length is the difference of the two lengths.
    """
    row_owner = owners(qo_indptr, tokens.shape[0])
    own = torch.arange(tokens.shape[0], device=tokens.device) - qo_indptr.long()[row_owner]
    prefix = (kv_indptr.diff() - qo_indptr.diff()).long()
    positions = prefix[row_owner] + own
    return Rows(
        tokens=tokens,
        positions=positions,
        kv_slots=kv_indices[kv_indptr.long()[row_owner] + positions].long(),
        visible_prefix=(positions + 1).int(),
        ancestor_bits=positions.new_zeros((tokens.shape[0], MASK_WORDS), dtype=torch.int32),
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        column_positions=_column_index(kv_indptr, kv_indices.shape[0]).int(),
        tree_start=prefix.int(),
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
    """Rows of one tree per request, all written in this pass: what K10c and K8 emit.

    Bit j of a row's `ancestor_bits` is row j of its request, itself included.
    """
    row_owner = owners(qo_indptr, tokens.shape[0])
    first_row = qo_indptr.long()
    own = torch.arange(tokens.shape[0], device=tokens.device) - first_row[row_owner]
    prefix = (kv_indptr.diff() - qo_indptr.diff()).long()
    column_owner = owners(kv_indptr, kv_indices.shape[0])
    column = _column_index(kv_indptr, kv_indices.shape[0])
    tree_row = first_row[column_owner] + column - prefix[column_owner]
    in_tree = column >= prefix[column_owner]
    tree_position = positions[torch.where(in_tree, tree_row, 0)] if tokens.shape[0] else column
    return Rows(
        tokens=tokens,
        positions=positions,
        kv_slots=kv_indices[kv_indptr.long()[row_owner] + prefix[row_owner] + own].long(),
        visible_prefix=prefix[row_owner].int(),
        ancestor_bits=ancestor_bits,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        column_positions=torch.where(in_tree, tree_position, column).int(),
        tree_start=prefix.int(),
        bounds=bounds,
    )


def _column_index(kv_indptr: Tensor, total: int) -> Tensor:
    """Index of each column inside its request: [columns] i64."""
    start = kv_indptr.long()[owners(kv_indptr, total)]
    return torch.arange(total, device=kv_indptr.device) - start
