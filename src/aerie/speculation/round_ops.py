"""The small steps of a device round between its kernels, as functions of tensors alone.

Each is written here in PyTorch, operation by operation: that is its definition. A backend may
replace any of them by one launch (`kernels/triton_gpu/round_*.py`); the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.attention.bucket_rows import bucket_columns, verify_arrays
from aerie.attention.rows import BITS_PER_WORD, MASK_WORDS
from aerie.speculation.calibration import admissible
from aerie.speculation.forest import choose_forest
from aerie.speculation.tree import DraftTree, best_of_scores

REPORT = ("n_emitted", "is_finished", "status", "n_rows", "n_accepted", "seq_len", "n_chosen")


@dataclass(frozen=True, eq=False)
class Verified:
    """What the kernels of a verification returned, by the names of their cards."""

    layout: Any  # K10c
    sampled: Any
    walked: Any  # K6
    committed: Any  # K7


@dataclass(frozen=True, eq=False)
class Standing:
    """The buffers a verdict changes, one row per slot."""

    is_live: Tensor  # [B] bool, read
    seq_len: Tensor  # [B] i64
    node_tokens: Tensor  # [B, N] i64, the root is the first
    node_scores: Tensor  # [B, N] f32
    tokens: Tensor  # [B, n] i64, emitted
    count: Tensor  # [B] i64, rows the draft takes in
    report: Tensor  # [B, REPORT and n] i32


def hand_over(found: Verified, standing: Standing) -> Tensor:
    """Write lengths, roots, emitted tokens and the report; the kept rows [B, n] i64 come back.

    A failed request stands where it stood; without features its next tree is the root alone.
    """
    committed = found.committed
    words = (found.layout, found.sampled, found.walked, committed)
    status = words[-1].status
    for part in reversed(words[:-1]):
        status = torch.where(part.status != 0, part.status, status)
    is_decided = standing.is_live & (status == 0)
    n_emitted = committed.out_indptr.diff() * is_decided
    tokens = _unpack(committed.out_tokens, committed.out_indptr, standing.tokens)
    standing.tokens.copy_(tokens.clamp_min(0))
    # Rows are listed for those who go on: nobody else is drafted for.
    standing.count.copy_(committed.rows_indptr.diff() * is_decided)
    seq_len = torch.where(is_decided, committed.new_seq_len, standing.seq_len)
    standing.seq_len.copy_(seq_len)
    last = tokens.gather(1, (n_emitted.long() - 1).clamp_min(0)[:, None])[:, 0]
    roots = torch.where(n_emitted > 0, last, standing.node_tokens[:, 0])
    standing.node_tokens[:, 0] = roots
    # A layer that K2 refuses must not leave nodes of the last round in the running.
    standing.node_scores[:, 1:].zero_()
    values = {
        "n_emitted": n_emitted,
        "is_finished": committed.finished,
        "status": status,
        "n_rows": found.layout.qo_indptr.diff(),
        "n_accepted": found.walked.accept_count,
        "seq_len": seq_len,
        "n_chosen": torch.ones_like(seq_len),  # the root; a draft writes what it chose
    }
    columns = torch.stack([values[name].int() for name in REPORT], dim=1)
    standing.report.copy_(torch.cat((columns, tokens.int()), dim=1))
    return _unpack(committed.out_rows, committed.rows_indptr, standing.tokens)


def _unpack(flat: Tensor, indptr: Tensor, like: Tensor) -> Tensor:
    """Ragged runs as rows [B, n], 0 behind a run's end; `like` gives the shape."""
    step = torch.arange(like.shape[1], device=flat.device)
    place = (indptr[:-1, None] + step).clamp_max_(flat.shape[0] - 1)
    return flat[place] * (step < indptr.diff()[:, None])


def move_slots(keys: Tensor, values: Tensor, source: Tensor, destination: Tensor) -> None:
    """K7's moves in every layer of a pool; all reads happen before any write.

    keys and values [layers, slots, kv_heads, dim]; source and destination [n] i32, -1 for none.
    """
    # What is not moved carries the inert slot onto itself.
    source, destination = source.clamp_min(0).long(), destination.clamp_min(0).long()
    for stored in (keys, values):
        stored.index_copy_(1, destination, stored.index_select(1, source))


def choose_best(scores: Tensor, n_nodes: int, chosen_out: Tensor, count_out: Tensor) -> None:
    """The best nodes of each request: chosen [B, N] bool, and how many [B] i32."""
    chosen = best_of_scores(scores, n_nodes)
    chosen_out.copy_(chosen)
    count_out.copy_(chosen.sum(dim=1))


@dataclass(frozen=True, eq=False)
class Offer:
    """Which forests may be verified, and what a planner's choice among them is made by."""

    sizes: Tensor  # [S] i64, rows in all, ascending
    numbers: Tensor  # [1 + S + corrections] f64: rate, seconds of each size, calibration, flat
    verify: int  # rows of one request, at most


def choose_planned(
    tree: DraftTree, widths: tuple[int, ...], offer: Offer, chosen_out: Tensor, count_out: Tensor
) -> None:
    """The forest that is worth most at the offer's rate: chosen [B, N] bool, and counts [B] i32.

    `widths` are the nodes each level fed, so that the tree has `len(widths) + 1` layers.
    """
    n_sizes, numbers = offer.sizes.shape[0], offer.numbers
    rate, seconds, corrections = numbers.split((1, n_sizes, numbers.shape[0] - 1 - n_sizes))
    weights = admissible(tree, corrections.float(), len(widths) + 1, offer.verify)
    forest = choose_forest(weights, offer.sizes, seconds, rate[0])
    chosen_out.copy_(forest.chosen)
    count_out.copy_(forest.chosen.sum(dim=1))


def note_chosen(tree: DraftTree, chosen: Tensor, sent_out: Tensor) -> None:
    """Scores and then depths of the chosen nodes in row order, 0 behind them: sent [B, 2 M] f32."""
    batch, n_rows = chosen.shape[0], sent_out.shape[1] // 2
    # Rows follow node ids; what is not chosen goes to a column that is cut off.
    row = torch.where(chosen, chosen.cumsum(1) - 1, n_rows)
    for half, values in enumerate((tree.scores, tree.depths.float())):
        packed = torch.zeros((batch, n_rows + 1), device=chosen.device).scatter_(1, row, values)
        sent_out[:, half * n_rows : (half + 1) * n_rows] = packed[:, :n_rows]


@dataclass(frozen=True, eq=False)
class LevelPlace:
    """Where the rows of one draft level stand, read and write."""

    positions: Tensor  # [B * W] i64
    kv_slots: Tensor  # [B * W] i64
    visible_prefix: Tensor  # [B * W] i32


@dataclass(frozen=True, eq=False)
class DraftPlaces:
    """All that follows from lengths and counts alone: once a draft, for extend and all levels."""

    positions: Tensor  # [B * n] i64 of the accepted rows, the last one's for inert ones
    kv_slots: Tensor  # [B * n] i64, the inert slot for inert ones
    visible_prefix: Tensor  # [B * n] i32
    last: Tensor  # [B] i64, flat row a request's draft starts from
    levels: tuple[LevelPlace, ...]
    column_positions: Tensor  # [capacity] i32
    kv_indices: Tensor  # [capacity] i32, as K8 wrote it but 0 behind the last list
    tree_start: Tensor  # [B] i32


def draft_places(
    seq_len: Tensor,
    accepted: tuple[Tensor, int],
    place: tuple[Tensor, Tensor],
    lists: tuple[Tensor, Tensor],
    levels: tuple[Tensor, Tensor],
    widths: tuple[int, ...],
) -> DraftPlaces:
    """`accepted`: rows to take in [B] i64 and their bound; `place`: the slot table, rows of it.

    `lists` is what K8 returned; `levels` the level of each node that will be fed [fed] i64, and
    the nodes fed before each level [levels + 1] i64, their number last.
    """
    (count, n_rows), (table, table_row) = accepted, place
    device, batch = seq_len.device, seq_len.shape[0]
    own = torch.arange(n_rows, device=device)
    is_real = own < count[:, None]
    # A row that is not real stands where the last real one does: attention walks the columns that
    # any row of a request may see, and one at position 0 would have it walk the whole text.
    index = torch.minimum(own, count[:, None] - 1)
    positions = ((seq_len - count)[:, None] + index).clamp_min(0)

    def slots(wanted: Tensor) -> Tensor:
        return table[table_row[:, None], wanted.clamp_max(table.shape[1] - 1)].long()

    columns = bucket_columns(*lists)
    start = seq_len[columns.owner.clamp_max(batch - 1)]
    column_positions = columns.index
    if widths:
        # Nodes of one level share a position; inside the prefix it is the column's index.
        node = columns.index - start
        level = levels[0][node.clamp(0, sum(widths) - 1)]
        column_positions = torch.where(node >= 0, start + level, columns.index)
    fed = slots(seq_len[:, None] + torch.arange(sum(widths), device=device))
    first = torch.arange(0, batch * n_rows, n_rows, device=device)
    return DraftPlaces(
        positions=positions.reshape(-1),
        kv_slots=(slots(positions) * is_real).reshape(-1),
        visible_prefix=(positions + 1).int().reshape(-1),
        last=first + (count - 1).clamp_min(0),
        levels=tuple(
            LevelPlace(
                (seq_len + depth).repeat_interleave(part.shape[1]),
                part.reshape(-1),
                seq_len.int().repeat_interleave(part.shape[1]),
            )
            for depth, part in enumerate(fed.split(widths, dim=1) if widths else ())
        ),
        column_positions=column_positions.int(),
        kv_indices=columns.slots,
        tree_start=seq_len.int(),
    )


def next_bits(bits: Tensor, ids: Tensor, children: tuple[int, int], fed: int) -> Tensor:
    """Bits of the nodes about to be fed: what the parent sees, and column `fed + i` for node i.

    bits [B, W, 4] i32 of the frontier, ids [B, n] i64 of the nodes; `children` is the first id of
    their layer and how many each frontier node has. [B, n, 4] i32
    """
    device, (first_id, top_k) = bits.device, children
    column = fed + torch.arange(ids.shape[1], device=device)
    word = torch.arange(MASK_WORDS, device=device)
    own = (1 << (column % BITS_PER_WORD))[:, None] * (column[:, None] // BITS_PER_WORD == word)
    # Bit 31 is the sign of an int32: the same pattern, two's complement.
    signed = torch.where(own >= 1 << 31, own - (1 << 32), own).int()
    # A refused request has no nodes; its bits do not matter, as long as they are somebody's.
    slot = ((ids - first_id) // top_k).clamp_min(0)
    return bits.gather(1, slot[:, :, None].expand(-1, -1, MASK_WORDS)) | signed


@dataclass(frozen=True)
class RoundOps:
    """One implementation of every small step; the default is the definition."""

    verify_arrays: Callable[..., dict[str, Tensor]] = verify_arrays
    hand_over: Callable[[Any, Any], Tensor] = hand_over
    move_slots: Callable[[Tensor, Tensor, Tensor, Tensor], None] = move_slots
    choose_best: Callable[[Tensor, int, Tensor, Tensor], None] = choose_best
    choose_planned: Callable[[Any, tuple[int, ...], Any, Tensor, Tensor], None] = choose_planned
    note_chosen: Callable[[Any, Tensor, Tensor], None] = note_chosen
    draft_places: Callable[..., Any] = draft_places
    next_bits: Callable[[Tensor, Tensor, tuple[int, int], int], Tensor] = next_bits
