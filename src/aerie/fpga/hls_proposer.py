"""Drafts of a live engine made by the fused region in C-simulation: what a lever costs shows here.

Prompts go through the head in PyTorch, whose keys and values are mirrored into the card's 16-bit
cache; every round after that is one call of `fused_draft`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch

from aerie.fpga.counted import ByteCounter
from aerie.fpga.draft_round import DraftRound, FusedChoice, draft_fused, load_attention
from aerie.fpga.draft_weights import DraftWeights
from aerie.fpga.tree_round import Array, Grown, Serving
from aerie.speculation.eagle3 import Eagle3Proposer
from aerie.speculation.policy import Growth
from aerie.speculation.proposer import Features, Followed, Roots
from aerie.speculation.tree import DraftTree, root_trees

# New tokens of one request that a round takes in; more is a prompt.
MOST_NEW = 16


@dataclass(frozen=True, eq=False)
class HlsProposer:
    """Follows the target like the head it stands for; its drafts come from C-simulation."""

    base: Eagle3Proposer
    weights: DraftWeights
    choice: FusedChoice
    counter: ByteCounter
    keys: Array = field(init=False)
    values: Array = field(init=False)
    rounds: list[DraftRound] = field(default_factory=list)
    most_kept: int = 0  # rounds to keep for counting

    def __post_init__(self) -> None:
        shape = (self.base.pool.n_slots, self.weights.shape.kv_width)
        object.__setattr__(self, "keys", np.zeros(shape, np.float16))
        object.__setattr__(self, "values", np.zeros(shape, np.float16))
        load_attention(self.weights, self.counter.call)

    @property
    def taps(self) -> tuple[int, ...]:
        """As the head's."""
        return self.base.taps

    @property
    def scratch(self) -> int:
        """As the head's."""
        return self.base.scratch

    def remember(self, pending: list[Features]) -> list[Features]:
        """As the head's."""
        return self.base.remember(pending)

    def extend(self, drafting: list[Followed], waiting: list[Followed]) -> Roots | None:
        """Prompts now, in PyTorch; the few new tokens of a round wait for `grow`."""
        prompts = list(waiting)
        for request in drafting:
            kept = _last_rows(request)
            first = kept[0].start if kept else request.seq_len
            parts = tuple(part.cut(0, first) for part in request.features)
            longer = tuple(part for part in parts if len(part.next_tokens))
            if longer:
                prompts.append(replace(request, features=longer))
        if prompts:
            self.base.extend([], prompts)
            self._mirror(prompts)
        return None

    def _mirror(self, requests: list[Followed]) -> None:
        for request in requests:
            for part in request.features:
                slots = request.slots[part.start : part.end].long()
                for own, pool in ((self.keys, self.base.pool.keys),
                                  (self.values, self.base.pool.values)):  # fmt: skip
                    rows = pool[0].index_select(0, slots).flatten(1)
                    own[slots.numpy()] = rows.to(torch.float16).numpy()

    def grow(
        self, drafting: list[Followed], roots: Roots | None, growth: Growth | None
    ) -> DraftTree:
        """One call of the fused region for everybody who drafts."""
        if growth is None or not drafting:
            ends = [request.text[-1] for request in drafting]
            return root_trees(torch.tensor(ends, dtype=torch.int64))
        one = self._round(drafting)
        if len(self.rounds) < self.most_kept:
            self.rounds.append(replace(one, keys=one.keys.copy(), values=one.values.copy()))
        drafted = draft_fused(one, self.weights, self.choice, self.counter.call)
        self.keys[...], self.values[...] = drafted.keys, drafted.values
        return tree_of(drafted.grown, one)

    def _round(self, drafting: list[Followed]) -> DraftRound:
        runs = [_last_rows(request) for request in drafting]
        lengths = [sum(len(part.next_tokens) for part in run) for run in runs]
        longest = max(len(request.slots) for request in drafting)
        table = np.zeros((len(drafting), longest), np.int32)
        for row, request in enumerate(drafting):
            table[row, : len(request.slots)] = request.slots.numpy()
        parts = [part for run in runs for part in run]
        shape = self.base.shape
        serving = Serving(
            root_tokens=np.array([request.text[-1] for request in drafting]),
            seq_len=np.array([request.seq_len for request in drafting]),
            length_limit=np.zeros(len(drafting), np.int64),
            stop_tokens=np.full((len(drafting), 1), -1, np.int64),
            req_to_token=table,
            req_pool_indices=np.arange(len(drafting)),
        )
        return DraftRound(
            features=torch.cat([part.taps.flatten(1) for part in parts]).half().numpy(),
            new_tokens=torch.cat([part.next_tokens for part in parts]).numpy(),
            new_positions=np.concatenate([np.arange(part.start, part.end) for part in parts]),
            row_indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            serving=serving,
            keys=self.keys,
            values=self.values,
            top_k=shape.top_k,
            verify_num=shape.verify,
            widths=(1, *[shape.top_k] * (shape.depth - 1)),
        )


def _last_rows(request: Followed) -> list[Features]:
    """The rows of a round: all that are new, or the last one behind a prompt."""
    n_new = sum(len(part.next_tokens) for part in request.features)
    if n_new <= MOST_NEW:
        return list(request.features)
    last = request.features[-1]
    return [last.cut(last.end - 1, last.end)]


def tree_of(grown: Grown, one: DraftRound) -> DraftTree:
    """The laid-out rows as a tree whose every node is to be verified."""
    indptr = np.asarray(grown.layout["qo_indptr"]).tolist()
    counts = np.diff(indptr)
    capacity = max(1, int(counts.max()))
    shape = (one.batch, capacity)
    tokens, depths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    parents, scores = np.full(shape, -1, np.int64), np.zeros(shape, np.float32)
    for b, (first, end) in enumerate(pairwise(indptr)):
        n = end - first
        tokens[b, :n] = grown.layout["draft_tokens"][first:end]
        depths[b, :n] = grown.layout["positions"][first:end] - one.serving.seq_len[b]
        parents[b, :n] = _parents(grown.layout["ancestor_bits"][first:end])
        # Any scores will do that fall along paths: the region has chosen already.
        scores[b, :n] = np.linspace(1.0, 0.5, n) if n else 0.0
    return DraftTree(
        tokens=torch.from_numpy(tokens),
        scores=torch.from_numpy(scores),
        depths=torch.from_numpy(depths),
        parents=torch.from_numpy(parents),
        node_count=torch.from_numpy(np.maximum(counts, 1).astype(np.int64)),
    )


def _parents(ancestor_bits: Array) -> Array:
    """A row's parent is the last ancestor before itself."""
    parents = np.full(len(ancestor_bits), -1, np.int64)
    for row, words in enumerate(ancestor_bits.tolist()):
        bits = sum(word << (32 * place) for place, word in enumerate(words))
        above = bits & ((1 << row) - 1)
        parents[row] = above.bit_length() - 1
    return parents
