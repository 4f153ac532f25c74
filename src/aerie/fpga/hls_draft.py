"""Drafts of a live engine made by the fused region in C-simulation: what a lever costs shows here.

Prompts go through the head in PyTorch, whose keys and values are mirrored into the card's 16-bit
cache; every draft after that is one call of `fused_draft`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.attention.rows import Rows
from aerie.fpga.counted import ByteCounter
from aerie.fpga.draft_round import DraftRound, FusedChoice, draft_fused, load_attention
from aerie.fpga.draft_weights import DraftWeights
from aerie.fpga.tree_round import Array, Grown, Serving
from aerie.models.eagle3.head import Eagle3Head, HeadOutput, Observe, ignore
from aerie.speculation.draft import Draft, Drafted
from aerie.speculation.policy import Growth, Widths
from aerie.speculation.store import Accepted, NodeStore, Place


@dataclass(frozen=True, eq=False)
class DraftCard:
    """The simulated card: its weights, the levers it uses, its cache and its counters."""

    weights: DraftWeights
    choice: FusedChoice
    counter: ByteCounter
    keys: Array  # [slots, kv_width] f16
    values: Array
    rounds: list[DraftRound]
    most_kept: int  # rounds to keep for counting

    @classmethod
    def loaded(
        cls, weights: DraftWeights, choice: FusedChoice, n_slots: int, most_kept: int = 0
    ) -> DraftCard:
        """A card with an empty cache and the attention block on chip."""
        shape, counter = (n_slots, weights.shape.kv_width), ByteCounter()
        load_attention(weights, counter.call)
        keys, values = np.zeros(shape, np.float16), np.zeros(shape, np.float16)
        return cls(weights, choice, counter, keys, values, [], most_kept)

    def draft(self, one: DraftRound) -> Grown:
        """One call of the fused region."""
        if len(self.rounds) < self.most_kept:
            self.rounds.append(replace(one, keys=one.keys.copy(), values=one.values.copy()))
        drafted = draft_fused(one, self.weights, self.choice, self.counter.call)
        self.keys[...], self.values[...] = drafted.keys, drafted.values
        return drafted.grown

    def mirror(self, pool: KVPool, slots: Tensor) -> None:
        """Take over what PyTorch wrote to some slots of its only layer."""
        for own, stored in ((self.keys, pool.keys), (self.values, pool.values)):
            rows = stored[0].index_select(0, slots).flatten(1)
            own[slots.numpy()] = rows.to(torch.float16).numpy()


@dataclass(frozen=True, eq=False, kw_only=True)
class MirroredHead(Eagle3Head):
    """A head of one layer in PyTorch; the card sees whatever it is shown.

    Keys and values of a first layer follow from its input alone, so a context that only the card
    has is not missed. The card's drafts do not come here.
    """

    card: DraftCard

    @torch.inference_mode()
    def extend(
        self,
        rows: Rows,
        taps: Tensor,
        pool: KVPool,
        asked: Tensor | None = None,
        observe: Observe = ignore,
    ) -> HeadOutput:
        """Rows whose hidden states come from the target."""
        out = super().extend(rows, taps, pool, asked, observe)
        self.card.mirror(pool, rows.kv_slots.long())
        return out


@dataclass(frozen=True, eq=False, kw_only=True)
class HlsDraft(Draft):
    """Follows the target like the draft it stands for; its trees come from C-simulation."""

    card: DraftCard

    @classmethod
    def instead_of(cls, draft: Draft, card: DraftCard) -> HlsDraft:
        """The same head, pool and shape."""
        own = {entry.name: getattr(draft.head, entry.name) for entry in fields(Eagle3Head)}
        head = MirroredHead(**own, card=card)
        return cls(head=head, pool=draft.pool, kernels=draft.kernels, shape=draft.shape, card=card)

    @torch.inference_mode()
    def run(self, growth: Growth, store: NodeStore, accepted: Accepted, place: Place) -> Drafted:
        """Take in the accepted rows and grow the trees, for all requests in one call."""
        known = growth.widths
        assert known is not None, "a fixed tree knows its widths"
        one = self._round((1, *known), store, accepted, place)
        is_known = (accepted.count > 0) & accepted.takes_drafts
        return Drafted(write_tree(store, self.card.draft(one), one, is_known), known, ())

    def _round(
        self, widths: Widths, store: NodeStore, accepted: Accepted, place: Place
    ) -> DraftRound:
        counts, seq_len = accepted.count.numpy(), place.seq_len.numpy()
        batch, run = accepted.tokens.shape
        step = np.arange(run)
        is_real = step < counts[:, None]
        # What the draft feeds and what the target will verify stand behind the longest text.
        n_columns = int(seq_len.max()) + max(self.shape.fed, self.shape.verify)
        table = place.table[place.table_row, :n_columns]
        serving = Serving(
            root_tokens=store.arrays["cumu_tokens"][:, 0].numpy().copy(),
            seq_len=seq_len.copy(),
            length_limit=np.zeros(batch, np.int64),
            stop_tokens=np.full((batch, 1), -1, np.int64),
            req_to_token=table.numpy(),
            req_pool_indices=np.arange(batch),
        )
        return DraftRound(
            features=accepted.taps.flatten(2).half().numpy()[is_real],
            new_tokens=accepted.tokens.numpy()[is_real],
            new_positions=((seq_len - counts)[:, None] + step)[is_real],
            row_indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            serving=serving,
            keys=self.card.keys,
            values=self.card.values,
            top_k=self.shape.top_k,
            verify_num=self.shape.verify,
            widths=widths,
        )


def write_tree(store: NodeStore, grown: Grown, one: DraftRound, is_known: Tensor) -> int:
    """The laid-out rows as stored nodes, every one of them to be verified; their capacity."""
    indptr = np.asarray(grown.layout["qo_indptr"]).tolist()
    capacity = max(1, int(np.diff(indptr).max()))
    shape = (one.batch, capacity)
    tokens, depths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    parents, scores = np.full(shape, -1, np.int64), np.zeros(shape, np.float32)
    for b, (first, end) in enumerate(pairwise(indptr)):
        n = end - first
        tokens[b, :n] = grown.layout["draft_tokens"][first:end]
        depths[b, :n] = grown.layout["positions"][first:end] - one.serving.seq_len[b]
        parents[b, :n] = _parents(grown.layout["ancestor_bits"][first:end])
        # Any scores will do that fall along paths: the region has chosen already.
        scores[b, :n] = np.linspace(1.0, 0.5, n)
    scores[:, 1:] *= is_known.numpy()[:, None]
    tree = store.tree(capacity)
    for target, source in (
        (tree.tokens, tokens),
        (tree.scores, scores),
        (tree.depths, depths),
        (tree.parents, parents),
    ):
        target.copy_(torch.from_numpy(source))
    return capacity


def _parents(ancestor_bits: Array) -> Array:
    """A row's parent is the last ancestor before itself."""
    parents = np.full(len(ancestor_bits), -1, np.int64)
    for row, words in enumerate(ancestor_bits.tolist()):
        bits = sum(word << (32 * place) for place, word in enumerate(words))
        above = bits & ((1 << row) - 1)
        parents[row] = above.bit_length() - 1
    return parents
