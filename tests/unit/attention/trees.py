"""Random ragged batches and trees for attention and decoder tests; shared, not a test itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from aerie.attention.rows import MASK_WORDS, Bounds, Rows, causal_rows, ragged, tree_rows


def pack_ancestors(parents: Sequence[int]) -> Tensor:
    """Ancestor-or-self words of one tree: parents[i] < i, -1 for the root. [rows, 4] i32."""
    masks: list[int] = []
    for row, parent in enumerate(parents):
        masks.append((masks[parent] if parent >= 0 else 0) | 1 << row)
    words = [[mask >> 32 * w & 0xFFFFFFFF for w in range(4)] for mask in masks]
    signed = [[w - (1 << 32) if w >> 31 else w for w in row] for row in words]
    return torch.tensor(signed, dtype=torch.int32).view(-1, 4)


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of each row, 0 for the root."""
    out: list[int] = []
    for parent in parents:
        out.append(0 if parent < 0 else out[parent] + 1)
    return out


def root_path(parents: Sequence[int], row: int) -> list[int]:
    """Rows from the root to `row`, both included."""
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def random_parents(n: int, generator: torch.Generator) -> list[int]:
    """A random tree of n rows, parents first."""
    picks = [int(torch.randint(0, max(i, 1), (1,), generator=generator)) for i in range(n)]
    return [-1] + picks[1:]


def scattered_slots(lengths: Sequence[int], n_slots: int, seed: int) -> list[Tensor]:
    """Disjoint, unordered slot lists, one per request; slot 0 is never handed out."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n_slots - 1, generator=generator) + 1
    return [part.int() for part in order[: sum(lengths)].split(list(lengths))]


def packed_slots(lengths: Sequence[int]) -> list[Tensor]:
    """Disjoint, consecutive slot lists from slot 1 on."""
    out, start = [], 1
    for length in lengths:
        out.append(torch.arange(start, start + length, dtype=torch.int32))
        start += length
    return out


def causal_batch(tokens: Sequence[Tensor], slots: Sequence[Tensor]) -> Rows:
    """Rows for the last len(tokens[b]) columns of each request."""
    flat, qo_indptr = ragged(tokens)
    indices, kv_indptr = ragged(slots)
    return causal_rows(flat, qo_indptr, kv_indptr, indices, read_bounds(qo_indptr, kv_indptr))


def tree_batch(
    tokens: Sequence[Tensor], parents: Sequence[Sequence[int]], slots: Sequence[Tensor]
) -> Rows:
    """Rows of one tree per request; slots hold the prefix and then the tree."""
    flat, qo_indptr = ragged(tokens)
    indices, kv_indptr = ragged(slots)
    positions = [
        len(own) - len(tree) + torch.tensor(depths(tree))
        for own, tree in zip(slots, parents, strict=True)
    ]
    return tree_rows(
        flat,
        torch.cat(positions),
        torch.cat([pack_ancestors(tree) for tree in parents]),
        qo_indptr,
        kv_indptr,
        indices,
        read_tree_bounds(qo_indptr, kv_indptr),
    )


def read_bounds(qo_indptr: Tensor, kv_indptr: Tensor) -> Bounds:
    """The tightest bounds of causal rows. Reads both tensors: a GPU is waited for."""
    n_rows = max(qo_indptr.diff().tolist(), default=0)
    return Bounds(n_rows, max(kv_indptr.diff().tolist(), default=0))


def read_tree_bounds(qo_indptr: Tensor, kv_indptr: Tensor) -> Bounds:
    """The same for trees whose rows are all in the batch."""
    bounds = read_bounds(qo_indptr, kv_indptr)
    return replace(bounds, tree=bounds.rows)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """One batch out of several, requests in order: a prefill chunk beside trees, say."""
    return Rows(
        tokens=torch.cat([part.tokens for part in parts]),
        positions=torch.cat([part.positions for part in parts]),
        kv_slots=torch.cat([part.kv_slots for part in parts]),
        visible_prefix=torch.cat([part.visible_prefix for part in parts]),
        ancestor_bits=torch.cat([part.ancestor_bits for part in parts]),
        qo_indptr=_join_indptr([part.qo_indptr for part in parts], [p.n_rows for p in parts]),
        kv_indptr=_join_indptr(
            [part.kv_indptr for part in parts], [p.kv_indices.shape[0] for p in parts]
        ),
        kv_indices=torch.cat([part.kv_indices for part in parts]),
        column_positions=torch.cat([part.column_positions for part in parts]),
        tree_start=torch.cat([part.tree_start for part in parts]),
        bounds=Bounds(
            max(part.bounds.rows for part in parts),
            max(part.bounds.columns for part in parts),
            max(part.bounds.tree for part in parts),
        ),
    )


def _join_indptr(indptrs: Sequence[Tensor], totals: Sequence[int]) -> Tensor:
    pieces = [indptrs[0][:1]]
    offset = 0
    for indptr, total in zip(indptrs, totals, strict=True):
        pieces.append(indptr[1:] + offset)
        offset += total
    return torch.cat(pieces)


def pad_rows(rows: Rows, multiple: int) -> Rows:
    """Rows brought to a multiple by inert ones: token 0 at position 0, reading and writing slot 0.

    They form one more request behind the others, so no real row sees them.
    """
    missing = -rows.n_rows % multiple
    if not missing:
        return rows
    inert = torch.zeros(missing, dtype=torch.int64, device=rows.tokens.device)
    return join_rows(
        [
            rows,
            Rows(
                tokens=inert,
                positions=inert,
                kv_slots=inert,
                visible_prefix=inert.int() + 1,
                ancestor_bits=inert.new_zeros((missing, MASK_WORDS), dtype=torch.int32),
                qo_indptr=torch.tensor([0, missing], dtype=torch.int32, device=inert.device),
                kv_indptr=torch.tensor([0, 1], dtype=torch.int32, device=inert.device),
                kv_indices=inert[:1].int(),
                column_positions=inert[:1].int(),
                tree_start=inert[:1].int(),
                bounds=Bounds(missing, 1),
            ),
        ]
    )
