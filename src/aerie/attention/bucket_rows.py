"""Rows of a bucket: arrays of one size whatever the batch holds, the rest inert, no host reads.

A captured graph runs on fixed shapes. Rows and columns that no request uses belong to one more
request behind the others: its rows are token 0 at position 0, they read and write the inert slot,
and no real row sees them. The same arrays with other numbers in them are another batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Columns:
    """The KV slots of a bucket's requests, one list after the other, then the inert one."""

    indptr: Tensor  # [requests + 2] i32
    slots: Tensor  # [capacity] i32, the inert slot behind the last list
    owner: Tensor  # [capacity] i64, request of each column
    index: Tensor  # [capacity] i64, index of each column in its list


def bucket_columns(kv_indptr: Tensor, kv_indices: Tensor) -> Columns:
    """Slot lists as K8 emits them (-1 behind the last) with the inert request's own column.

    The buffer must hold one entry more than the lists.
    """
    indptr = torch.cat((kv_indptr, kv_indptr[-1:] + 1))
    entry = torch.arange(kv_indices.shape[0], dtype=torch.int32, device=kv_indices.device)
    owner = torch.searchsorted(indptr[1:], entry, right=True).clamp_max_(indptr.shape[0] - 2)
    return Columns(indptr, kv_indices.clamp_min(0), owner, (entry - indptr[owner]).long())


def verify_arrays(
    tokens: Tensor,
    positions: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    seq_len: Tensor,
) -> dict[str, Tensor]:
    """Arrays of `Rows` by name for trees as K10c and K8 emit them, in buffers of a bucket.

    Buffers may be longer than the trees. `seq_len` [requests] i64; row i of a request is written
    to its column `seq_len + i`.
    """
    columns = bucket_columns(kv_indptr, kv_indices)
    n_rows, device = tokens.shape[0], tokens.device
    row = torch.arange(n_rows, dtype=torch.int32, device=device)
    ends = torch.cat((qo_indptr, torch.full_like(qo_indptr[:1], n_rows)))
    owner = torch.searchsorted(ends[1:], row, right=True)
    prefix = torch.nn.functional.pad(seq_len, (0, 1))
    own = row - ends[owner] + prefix[owner]
    place = (columns.indptr[owner] + own).clamp_max_(columns.slots.shape[0] - 1)
    is_inert = owner == seq_len.shape[0]
    in_tree = columns.index >= prefix[columns.owner]
    tree_row = ends[columns.owner] + columns.index - prefix[columns.owner]
    tree_position = positions[tree_row.clamp_(0, n_rows - 1)]
    return {
        "tokens": tokens.clamp_min(0),
        "kv_slots": columns.slots[place].long().masked_fill_(is_inert, 0),
        # The inert request has one column, and its rows see it.
        "visible_prefix": torch.where(is_inert, 1, prefix[owner]).int(),
        "qo_indptr": ends,
        "kv_indptr": columns.indptr,
        "kv_indices": columns.slots,
        "column_positions": torch.where(in_tree, tree_position, columns.index).int(),
        "tree_start": prefix.int(),
    }
