"""What drafting works on: the node store, what was accepted, where KV lies, the frontier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from aerie.attention.rows import MASK_WORDS
from aerie.kernels.registry import Kernels
from aerie.speculation.tree import DraftTree

MAX_DEPTH = 127
# Arrays of K2's card and what an empty entry holds.
_INTEGER_ARRAYS = {
    "cumu_tokens": 0,
    "cumu_deltas": 0,
    "prev_indexs": -1,
    "next_indexs": -1,
    "side_indexs": -1,
}


@dataclass(frozen=True, eq=False)
class NodeStore:
    """The node arrays of K2, allocated once; seat b of the batch is row b."""

    arrays: dict[str, Tensor]  # [B, N], by the names of K2's card
    sort_scores: Tensor  # [B, M] f32

    @classmethod
    def empty(cls, n_seats: int, capacity: int, verify: int, device: str) -> NodeStore:
        """Trees of one root, token 0."""
        size = (n_seats, capacity)
        arrays = {
            name: torch.full(size, fill, dtype=torch.int64, device=device)
            for name, fill in _INTEGER_ARRAYS.items()
        }
        arrays["cumu_scores"] = torch.zeros(size, device=device)
        arrays["cumu_scores"][:, 0] = 1.0
        sort_scores = torch.zeros((n_seats, verify), device=device)
        sort_scores[:, 0] = 1.0
        return cls(arrays, sort_scores)

    # Views, made once: to make those of a round took 60 us of it on a CPU.
    @cached_property
    def first(self) -> Callable[[int], NodeStore]:
        """Views of the first so many seats."""
        return cache(self._first)

    @cached_property
    def tree(self) -> Callable[..., DraftTree]:
        """The first `n_nodes` nodes, or all, `deepest` at most, as a value: views, not copies."""
        return cache(self._tree)

    def _first(self, n_seats: int) -> NodeStore:
        arrays = {name: array[:n_seats] for name, array in self.arrays.items()}
        return NodeStore(arrays, self.sort_scores[:n_seats])

    def _tree(self, n_nodes: int | None = None, deepest: int = MAX_DEPTH) -> DraftTree:
        arrays = self.arrays
        return DraftTree(
            tokens=arrays["cumu_tokens"][:, :n_nodes],
            scores=arrays["cumu_scores"][:, :n_nodes],
            depths=arrays["cumu_deltas"][:, :n_nodes],
            parents=arrays["prev_indexs"][:, :n_nodes],
            deepest=deepest,
        )


@dataclass(frozen=True, eq=False)
class Accepted:
    """What verifying hands to drafting: each request's kept rows, their features and next tokens.

    Row i of request b stands at position `seq_len[b] - count[b] + i`. A request that failed has
    count 0. `counts` are the same numbers where the host knows them: rows then fit exactly.
    """

    tokens: Tensor  # [B, n] i64, the token after each row
    taps: Tensor  # [B, n, captures, hidden]
    count: Tensor  # [B] i64
    takes_drafts: Tensor  # [B] bool: drafted for; the others are only shown their rows
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Missed:
    """Positions of one request that its draft was not shown, without a gap between them."""

    start: int
    slots: Tensor  # [start + n] i32, KV slots of all positions up to their end
    taps: Tensor  # [n, captures, hidden]
    tokens: Tensor  # [n] i64, the token after each


@dataclass(frozen=True, eq=False)
class Place:
    """Where the requests of a batch keep their KV."""

    table: Tensor  # [rows, positions] i32, the request-to-slot table
    table_row: Tensor  # [B] i64
    seq_len: Tensor  # [B] i64, committed tokens, root excluded
    longest: int  # bound on seq_len and everything a draft feeds
    lengths: tuple[int, ...] | None = None  # seq_len where the host knows it

    def of(self, where: Tensor) -> Place:
        """The same of some requests [n] i64, whose lengths are known."""
        assert self.lengths is not None
        lengths = tuple(self.lengths[index] for index in where.tolist())
        rows, seq_len = self.table_row[where], self.seq_len[where]
        return Place(self.table, rows, seq_len, self.longest, lengths)

    def capacity(self, n_fed: int) -> int:
        """Entries of all slot lists, `n_fed` nodes behind each text."""
        if self.lengths is not None:
            return sum(self.lengths) + n_fed * len(self.lengths)
        return self.seq_len.shape[0] * self.longest + 1

    def columns(self, n_fed: int) -> int:
        """The longest list."""
        return self.longest if self.lengths is None else max(self.lengths) + n_fed


@dataclass(frozen=True, eq=False)
class Frontier:
    """The nodes that are being expanded."""

    ids: Tensor  # [B, W] i64
    scores: Tensor  # [B, W] f32
    tokens: Tensor  # [B, W] i64
    hidden: Tensor  # [B*W, hidden]
    mask: Tensor  # [B, W, F] bool, K2's own form of what `bits` packs
    bits: Tensor  # [B, W, 4] i32

    @classmethod
    def root(cls, hidden: Tensor, n_fed: int) -> Frontier:
        """One node per request; at most `n_fed` nodes will be fed below it."""
        batch, device = hidden.shape[0], hidden.device
        ids = torch.zeros((batch, 1), dtype=torch.int64, device=device)
        return cls(
            ids=ids,
            scores=torch.ones((batch, 1), device=device),
            tokens=ids,
            hidden=hidden,
            mask=torch.zeros((batch, 1, n_fed), dtype=torch.bool, device=device),
            bits=torch.zeros((batch, 1, MASK_WORDS), dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, eq=False)
class SlotLists:
    """Slot lists of all requests, and where the nodes of each level stand, read and write."""

    kv_indptr: Tensor  # [B+1] i32
    kv_indices: Tensor  # [columns] i32
    column_positions: Tensor  # [columns] i32
    tree_start: Tensor  # [B] i32
    positions: Tensor  # [fed] i64, level by level, inside a level request by request
    slots: Tensor  # [fed] i64
    visible: Tensor  # [fed] i32


def list_slots(kernels: Kernels, place: Place, widths: Sequence[int]) -> SlotLists:
    """Slot lists of every text and the nodes fed behind it; levels of the widths given."""
    fed = sum(widths)
    # At least one column, so that a request without any has one to look at.
    room = fed if place.lengths is not None and min(place.lengths) else max(fed, 1)
    found = kernels["compute_kv_indices"](
        req_to_token=place.table,
        req_pool_indices=place.table_row,
        seq_len=place.seq_len + room,
        kv_capacity=place.capacity(room),
    )
    levels = kernels["place_draft_levels"](
        seq_len=place.seq_len,
        req_to_token=place.table,
        req_pool_indices=place.table_row,
        node_level=node_levels(tuple(widths), place.table.device),
        kv_indptr=found.kv_indptr,
        kv_indices=found.kv_indices,
    )
    return SlotLists(
        found.kv_indptr,
        found.kv_indices,
        levels.column_positions,
        place.seq_len.int(),
        levels.fed_positions,
        levels.fed_slots,
        levels.fed_visible,
    )


@cache
def even_ends(batch: int, width: int, device: torch.device) -> Tensor:
    """Where the rows of each request begin and end, if all have as many. [B+1] i32; made once."""
    return torch.arange(0, (batch + 1) * width, width, dtype=torch.int32, device=device)


@cache
def node_levels(widths: tuple[int, ...], device: torch.device) -> Tensor:
    """The level of each node that is fed. [fed] i64; made once, for a graph cannot make it."""
    levels = [level for level, width in enumerate(widths) for _ in range(width)]
    return torch.tensor(levels, dtype=torch.int64, device=device)


def make_levels(
    batch: int, runs: Sequence[int], widths: tuple[int, ...], dev: torch.device
) -> None:
    """Make what is made once for drafts of such sizes: a recording would not fill it in."""
    node_levels(widths, dev)
    for run in (*runs, *widths):
        even_ends(batch, run, dev)
