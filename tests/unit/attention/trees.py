"""Random ragged batches and trees for attention and decoder tests; shared, not a test itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aerie.attention.rows import (
    Rows,
    causal_rows,
    ragged,
    read_bounds,
    read_tree_bounds,
    tree_rows,
)


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
