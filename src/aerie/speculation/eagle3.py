"""The EAGLE-3 proposer: chains and dynamic trees, one draft layer after another (K1, K2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.attention.rows import Bounds, Rows, causal_rows, ragged
from aerie.kernels.registry import Kernels
from aerie.speculation.proposer import Followed, Roots
from aerie.speculation.tree import DraftTree


class DraftOutput(Protocol):
    """What a forward of a draft head returns."""

    @property
    def hidden(self) -> Tensor:
        """[asked, hidden], what the next level reads."""
        ...

    @property
    def logits(self) -> Tensor:
        """[asked, draft vocab] f32."""
        ...


class DraftHead(Protocol):
    """The part of a draft head a proposer uses."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Boundaries of the target it reads."""
        ...

    def extend(
        self, rows: Rows, taps: Tensor, pool: KVPool, asked: Tensor | None = None
    ) -> DraftOutput:
        """Rows whose hidden states come from the target."""
        ...

    def step(self, rows: Rows, hidden: Tensor, pool: KVPool) -> DraftOutput:
        """Rows whose hidden states are its own."""
        ...

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids."""
        ...


@dataclass(frozen=True)
class TreeShape:
    """A fixed tree: every frontier node gets `top_k` children, the best `top_k` go on."""

    top_k: int
    depth: int
    verify: int

    @property
    def capacity(self) -> int:
        """Nodes per request, the root and every candidate included."""
        return 1 + self.top_k + (self.depth - 1) * self.top_k * self.top_k

    @property
    def fed(self) -> int:
        """Nodes fed to the draft in one round, per request."""
        return (self.depth - 1) * self.top_k


@dataclass(frozen=True, eq=False)
class Eagle3Proposer:
    """Follows the target's features with a draft head and grows a tree of fixed shape."""

    head: DraftHead
    pool: KVPool
    kernels: Kernels
    shape: TreeShape

    @property
    def taps(self) -> tuple[int, ...]:
        """The head's captured boundaries."""
        return self.head.taps

    @property
    def scratch(self) -> int:
        """Nodes fed to the draft write its KV behind the sequence."""
        return self.shape.fed

    def extend(self, drafting: list[Followed], waiting: list[Followed]) -> Roots | None:
        """Rebuild the draft's KV of committed tokens from the target's own features."""
        fresh = [request for request in (*drafting, *waiting) if request.features]
        known = [bool(request.features) for request in drafting]
        device = self.pool.keys.device
        if not fresh:
            return None
        rows, taps = _extension(fresh)
        last = rows.qo_indptr[1:].long() - 1
        out = self.head.extend(rows, taps, self.pool, last[: sum(known)])
        place = torch.tensor(known, device=device).nonzero()[:, 0]
        batch = len(drafting)
        hidden = out.hidden.new_zeros((batch, out.hidden.shape[1])).index_copy(0, place, out.hidden)
        logits = out.logits.new_zeros((batch, out.logits.shape[1])).index_copy(0, place, out.logits)
        return Roots(hidden, logits, torch.tensor(known, device=device))

    def grow(self, drafting: list[Followed], roots: Roots | None) -> DraftTree:
        """Layer by layer: score and sort (K1), store (K2), feed the best on."""
        ends = [request.text[-1] for request in drafting]
        store = _Store.rooted(torch.tensor(ends, device=self.pool.keys.device), self.shape)
        if roots is None or not drafting:
            return store.tree(1)
        shape, batch = self.shape, len(drafting)
        probas, tokens = self._best(roots.logits)
        probas = probas * roots.is_known[:, None]
        level = _Level.first(roots.hidden, shape)
        for depth in range(1, shape.depth + 1):
            layer = self.kernels["draft_tree_layer_score_index_gen_op"](
                topk_probas=probas.reshape(batch, -1),
                topk_tokens=tokens.reshape(batch, -1),
                last_layer_scores=level.scores,
                input_hidden=level.hidden,
                cumu_count=store.count,
            )
            state = store.add(self.kernels, layer, level)
            if depth == shape.depth:
                break
            level = level.next(layer, state, shape.top_k)
            rows = _level_rows(drafting, level, shape.top_k)
            out = self.head.step(rows, level.hidden, self.pool)
            level.hidden = out.hidden
            probas, tokens = self._best(out.logits)
        return store.tree(store.count)

    def _best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Probability over the whole draft vocabulary and target id of the best children."""
        probas, ids = torch.softmax(logits, dim=-1).topk(self.shape.top_k, dim=-1)
        return probas, self.head.to_target(ids)


def _extension(requests: list[Followed]) -> tuple[Rows, Tensor]:
    """Rows of freshly committed positions, behind the draft KV that is already there."""
    parts = [feature for request in requests for feature in request.features]
    lengths = [sum(len(f.next_tokens) for f in request.features) for request in requests]
    starts = [request.features[0].start for request in requests]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    kv_indices, kv_indptr = ragged(
        [request.slots[:end] for request, end in zip(requests, ends, strict=True)]
    )
    device = kv_indices.device
    indptr = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    tokens = torch.cat([part.next_tokens for part in parts])
    rows = causal_rows(tokens, indptr, kv_indptr, kv_indices, Bounds(max(lengths), max(ends)))
    return rows, torch.cat([part.taps for part in parts])


def _level_rows(requests: list[Followed], level: _Level, width: int) -> Rows:
    """One draft level: every frontier node sees its prefix, its fed ancestors and itself."""
    batch, device = len(requests), level.tokens.device
    fed = level.fed  # this level's nodes included
    seq_len = torch.tensor([request.seq_len for request in requests], device=device)
    kv_indices, kv_indptr = ragged([r.slots[: r.seq_len + fed] for r in requests])
    own = fed - width + torch.arange(width, device=device)
    first = kv_indptr[:-1].long() + seq_len
    # Position of every column: its index in the prefix, seq_len + level in the tree.
    levels = torch.arange(fed, device=device) // width
    positions = [
        torch.cat((torch.arange(r.seq_len, device=device), r.seq_len + levels)) for r in requests
    ]
    depth = fed // width - 1
    return Rows(
        tokens=level.tokens.reshape(-1),
        positions=(seq_len + depth).repeat_interleave(width),
        kv_slots=kv_indices[(first[:, None] + own).reshape(-1)].long(),
        visible_prefix=seq_len.int().repeat_interleave(width),
        ancestor_bits=_pack(level.mask.reshape(batch * width, -1)),
        qo_indptr=(torch.arange(batch + 1, device=device) * width).int(),
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        column_positions=torch.cat(positions).int(),
        tree_start=seq_len.int(),
        bounds=Bounds(width, max(r.seq_len for r in requests) + fed, fed),
    )


def _pack(mask: Tensor) -> Tensor:
    """[rows, columns] bool to [rows, 4] i32 words, bit j of word w = column 32 w + j."""
    bits = torch.zeros((mask.shape[0], 128), dtype=torch.int64, device=mask.device)
    bits[:, : mask.shape[1]] = mask
    weights = 1 << torch.arange(32, device=mask.device)
    words = (bits.view(-1, 4, 32) * weights).sum(-1)
    # Two's complement of the unsigned word: the pattern is what counts.
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


@dataclass(eq=False)
class _Level:
    """The frontier that is being expanded."""

    ids: Tensor  # [B, W] i64
    scores: Tensor  # [B, W] f32
    tokens: Tensor  # [B, W] i64
    hidden: Tensor  # [B*W, hidden]
    mask: Tensor  # [B, W, F] bool
    fed: int

    @classmethod
    def first(cls, hidden: Tensor, shape: TreeShape) -> _Level:
        batch, device = hidden.shape[0], hidden.device
        ids = torch.zeros((batch, 1), dtype=torch.int64, device=device)
        scores = torch.ones((batch, 1), device=device)
        columns = shape.depth * shape.top_k
        mask = torch.zeros((batch, 1, columns), dtype=torch.bool, device=device)
        return cls(ids, scores, ids, hidden, mask, 0)

    def next(self, layer: Any, state: Any, width: int) -> _Level:
        """The best children become the frontier."""
        hidden = layer.output_hidden
        return _Level(
            ids=layer.cache_topk_indices,
            scores=state.output_scores,
            tokens=state.output_tokens,
            hidden=hidden.reshape(-1, hidden.shape[-1]),
            mask=state.output_tree_mask,
            fed=self.fed + width,
        )


@dataclass(eq=False)
class _Store:
    """The node store of a batch while it grows."""

    arrays: dict[str, Tensor]  # [B, N], by the names of K2's card
    sort_scores: Tensor  # [B, M] f32
    shape: TreeShape
    count: int

    @classmethod
    def rooted(cls, roots: Tensor, shape: TreeShape) -> _Store:
        size, device = (roots.shape[0], shape.capacity), roots.device
        links = ("prev_indexs", "next_indexs", "side_indexs")
        arrays = {name: torch.full(size, -1, dtype=torch.int64, device=device) for name in links}
        for name in ("cumu_tokens", "cumu_deltas"):
            arrays[name] = torch.zeros(size, dtype=torch.int64, device=device)
        arrays["cumu_scores"] = torch.zeros(size, device=device)
        arrays["cumu_tokens"][:, 0] = roots
        arrays["cumu_scores"][:, 0] = 1.0
        sort_scores = torch.zeros((size[0], shape.verify), device=device)
        sort_scores[:, 0] = 1.0
        return cls(arrays, sort_scores, shape, 1)

    def add(self, kernels: Kernels, layer: Any, level: _Level) -> Any:
        """Store one layer with K2; the next frontier's candidates come back."""
        state = kernels["update_cumu_draft_state"](
            **self.arrays,
            sort_scores=self.sort_scores,
            curr_layer_scores=layer.curr_layer_scores,
            topk_tokens=layer.mapped_tokens,
            sort_layer_scores=layer.sort_layer_scores,
            sort_layer_indices=layer.sort_layer_indices,
            frontier_indexs=level.ids,
            input_tree_mask=level.mask,
            cumu_count=self.count,
            verify_num=self.shape.verify,
            fed_count=level.fed,
        )
        self.count += layer.curr_layer_scores.shape[1]
        return state

    def tree(self, count: int) -> DraftTree:
        """What has been stored, as a value."""
        batch = self.sort_scores.shape[0]
        return DraftTree(
            tokens=self.arrays["cumu_tokens"],
            scores=self.arrays["cumu_scores"],
            depths=self.arrays["cumu_deltas"],
            parents=self.arrays["prev_indexs"],
            node_count=torch.full((batch,), count, dtype=torch.int64),
        )
