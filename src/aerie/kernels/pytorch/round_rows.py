"""PyTorch rows of the round, R1 to R4: fixed shapes, no host read, the rest of a bucket inert."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_rows import DraftLevels, DraftRows, PromptRows, VerifyRows
from aerie.kernels.pytorch.ragged import at_least_one


@dataclass(frozen=True, eq=False)
class Columns:
    """The slot lists of a bucket, one after the other, then the inert request's column."""

    indptr: Tensor  # [B+2] i32
    slots: Tensor  # [C] i32, slot 0 behind the last list
    owner: Tensor  # [C] i64, request of each column, B behind the last list
    index: Tensor  # [C] i32, place of each column in its list

    @property
    def is_inert(self) -> Tensor:
        """Which columns lie behind the last list. [C]"""
        return self.owner == self.indptr.shape[0] - 2

    def slots_at(self, owner: Tensor, place: Tensor) -> Tensor:
        """Slots at places [R] of their owners' lists; slot 0 behind a list's end. [R] i64"""
        column = self.indptr[owner] + place
        slot = self.slots[column.clamp_max(self.slots.shape[0] - 1)]
        return (slot * (column < self.indptr[owner + 1])).long()


def bucket_columns(kv_indptr: Tensor, kv_indices: Tensor) -> Columns:
    """Slot lists as K8 writes them; behind the last one `kv_indices` becomes slot 0."""
    entry = torch.arange(kv_indices.shape[0], dtype=torch.int32, device=kv_indices.device)
    kv_indices.masked_fill_(entry >= kv_indptr[-1], 0)
    indptr = torch.cat((kv_indptr, kv_indptr[-1:] + 1))
    owner = torch.searchsorted(kv_indptr[1:], entry, right=True)
    return Columns(indptr, kv_indices, owner, entry - indptr[owner])


@takes_call
def place_verify_rows(call: VerifyRows) -> dict[str, Tensor]:
    """R1: the rows of chosen trees in the buffers of a bucket."""
    columns = bucket_columns(call.kv_indptr, call.kv_indices)
    n_rows = call.draft_tokens.shape[0]
    row = torch.arange(n_rows, dtype=torch.int32, device=call.draft_tokens.device)
    row_indptr = pad(call.qo_indptr, (0, 1), value=n_rows)
    owner = torch.searchsorted(call.qo_indptr[1:], row, right=True)
    prefix = pad(call.seq_len, (0, 1))
    node = columns.index - prefix[columns.owner]
    tree_row = row_indptr[columns.owner] + node
    # The inert request's rows are followed by nothing.
    is_tree = (node >= 0) & (tree_row < pad(row_indptr, (0, 1))[columns.owner + 1])
    stands = at_least_one(call.positions)[tree_row.clamp(0, max(n_rows - 1, 0))]
    column_positions = torch.where(is_tree, stands, columns.index)
    return {
        "tokens": call.draft_tokens.clamp_min(0),
        "kv_slots": columns.slots_at(owner, row - row_indptr[owner] + prefix[owner]),
        "visible_prefix": pad(call.seq_len, (0, 1), value=1)[owner].int(),
        "row_indptr": row_indptr,
        "column_indptr": columns.indptr,
        "column_positions": column_positions.masked_fill_(columns.is_inert, 0).int(),
        "tree_start": prefix.int(),
    }


@takes_call
def place_prompt_rows(call: PromptRows) -> dict[str, Tensor]:
    """R2: the rows of prompt chunks in the buffers of a bucket."""
    columns = bucket_columns(call.kv_indptr, call.kv_indices)
    row = torch.arange(call.row_capacity, dtype=torch.int32, device=call.start.device)
    row_indptr = pad(call.qo_indptr, (0, 1), value=call.row_capacity)
    owner = torch.searchsorted(call.qo_indptr[1:], row, right=True)
    prefix = pad(call.start, (0, 1))
    stands = row - row_indptr[owner] + prefix[owner]
    positions = stands.masked_fill(owner == call.start.shape[0], 0)
    return {
        "positions": positions,
        # An inert row looks behind the one inert column, or at it: slot 0 either way.
        "kv_slots": columns.slots_at(owner, stands),
        "visible_prefix": (positions + 1).int(),
        "row_indptr": row_indptr,
        "column_indptr": columns.indptr,
        "column_positions": columns.index.masked_fill(columns.is_inert, 0),
        "tree_start": prefix.int(),
    }


@takes_call
def place_draft_rows(call: DraftRows) -> dict[str, Tensor]:
    """R3: the rows a draft takes in."""
    batch, device = call.seq_len.shape[0], call.seq_len.device
    own = torch.arange(call.run, device=device)
    # A row that is not real stands where the last real one does: attention walks the columns that
    # any row of a request may see, and one at position 0 would have it walk the whole text.
    index = torch.minimum(own, call.count[:, None] - 1)
    positions = ((call.seq_len - call.count)[:, None] + index).clamp_min(0)
    slots = _slots(call.req_to_token, call.req_pool_indices, positions)
    first = torch.arange(0, batch * call.run, call.run, device=device)
    return {
        "positions": positions.view(-1),
        "kv_slots": (slots * (own < call.count[:, None])).view(-1),
        "visible_prefix": (positions + 1).int().view(-1),
        "last": first + (call.count - 1).clamp_min(0),
        "tree_start": call.seq_len.int(),
    }


def _slots(table: Tensor, table_row: Tensor, positions: Tensor) -> Tensor:
    """Slots of positions [B, n]; positions beyond the table have its last column's. i64"""
    return table[table_row[:, None], positions.clamp_max(table.shape[1] - 1)].long()


@takes_call
def place_draft_levels(call: DraftLevels) -> dict[str, Tensor]:
    """R4: the nodes a draft is fed, and the columns of its lists."""
    columns = bucket_columns(call.kv_indptr, call.kv_indices)
    batch, n_fed, device = call.seq_len.shape[0], call.node_level.shape[0], call.seq_len.device
    start = pad(call.seq_len, (0, 1))[columns.owner]
    node = columns.index - start
    is_fed = (node >= 0) & (node < n_fed)
    level = at_least_one(call.node_level)[node.clamp(0, max(n_fed - 1, 0))]
    column_positions = torch.where(is_fed, start + level, columns.index)
    fed = torch.arange(n_fed, device=device)
    slots = _slots(call.req_to_token, call.req_pool_indices, call.seq_len[:, None] + fed)
    # Level by level, inside a level request by request. [B, F]
    before = torch.searchsorted(call.node_level, call.node_level)
    wide = torch.searchsorted(call.node_level, call.node_level, right=True) - before
    request = torch.arange(batch, device=device)[:, None]
    place = (batch * before + request * wide + fed - before).view(-1)

    def ordered(values: Tensor) -> Tensor:
        flat = values.expand(batch, n_fed).reshape(-1)
        return torch.empty_like(flat).scatter_(0, place, flat)

    return {
        "fed_positions": ordered(call.seq_len[:, None] + call.node_level),
        "fed_slots": ordered(slots),
        "fed_visible": ordered(call.seq_len.int()[:, None]),
        "column_positions": column_positions.masked_fill_(columns.is_inert, 0).int(),
    }
