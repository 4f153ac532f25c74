"""The EAGLE-3 proposer: chains and dynamic trees, one draft layer after another (K1, K2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from aerie.attention import host_rows
from aerie.attention.contract import Reach
from aerie.attention.pool import KVPool
from aerie.attention.rows import Bounds, Rows, causal_rows, ragged
from aerie.kernels.registry import Kernels
from aerie.speculation.policy import Growth, TreeShape
from aerie.speculation.proposer import Features, Followed, Roots
from aerie.speculation.store import DraftStore, Level
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

    @property
    def reach(self) -> Reach:
        """How far back its own keys and values matter."""
        ...

    def extend(
        self, rows: Rows, taps: Tensor, pool: KVPool, asked: Tensor | None = None
    ) -> DraftOutput:
        """Rows whose hidden states come from the target."""
        ...

    def step(
        self, rows: Rows, hidden: Tensor, pool: KVPool, *, rotation: Any = None
    ) -> DraftOutput:
        """Rows whose hidden states are its own."""
        ...

    def rotations(self, positions: Sequence[Tensor]) -> Sequence[Any]:
        """What `step` needs of several positions [rows] i64, computed together."""
        ...

    @property
    def token_map(self) -> Tensor | None:
        """Target id of each draft id [draft vocab] i64; None: the same."""
        ...

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids."""
        ...


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

    def remember(self, pending: list[Features]) -> list[Features]:
        """Without what lies out of the head's reach by now; cut rarely, for every cut copies."""
        window = self.head.reach.window
        if window is None or not pending:
            return pending
        end = pending[-1].end
        if end - pending[0].start <= 2 * window:
            return pending
        kept = [part.cut(0, self.head.reach.n_sink_tokens) for part in pending]
        kept += [part.cut(end - window, end) for part in pending]
        return [part for part in kept if len(part.next_tokens)]

    def extend(self, drafting: list[Followed], waiting: list[Followed]) -> Roots | None:
        """Rebuild the draft's KV of committed tokens from the target's own features."""
        by_request = [_runs(request) for request in (*drafting, *waiting)]
        runs = [run for found in by_request for run in found]
        if not runs:
            return None
        device = self.pool.keys.device
        has_features = [bool(found) for found in by_request[: len(drafting)]]
        known = torch.tensor(has_features, dtype=torch.bool, device=device)
        rows, taps = _extension(runs)
        # The last row of a drafting request, behind all its runs, is what its draft starts from.
        ends = list(accumulate(len(found) for found in by_request[: len(drafting)]))
        last = [end for end, is_known in zip(ends, has_features, strict=True) if is_known]
        asked = rows.qo_indptr.long()[torch.tensor(last, dtype=torch.int64, device=device)] - 1
        out = self.head.extend(rows, taps, self.pool, asked)
        place, batch = known.nonzero()[:, 0], len(drafting)
        hidden = out.hidden.new_zeros((batch, out.hidden.shape[1])).index_copy(0, place, out.hidden)
        logits = out.logits.new_zeros((batch, out.logits.shape[1])).index_copy(0, place, out.logits)
        return Roots(hidden, logits, known)

    def grow(
        self, drafting: list[Followed], roots: Roots | None, growth: Growth | None
    ) -> DraftTree:
        """Layer by layer: score and sort (K1), store (K2), feed as many as the policy says."""
        ends = [request.text[-1] for request in drafting]
        store = DraftStore.rooted(torch.tensor(ends, device=self.pool.keys.device), self.shape)
        if roots is None or growth is None or not drafting:
            return store.tree(1)
        probas, tokens = self._best(roots.logits)
        probas = probas * roots.is_known[:, None]
        level = Level.first(roots.hidden, self.shape)
        for depth in range(1, self.shape.depth + 1):
            layer = self.kernels["draft_tree_layer_score_index_gen_op"](
                topk_probas=probas.reshape(len(drafting), -1),
                topk_tokens=tokens.reshape(len(drafting), -1),
                last_layer_scores=level.scores,
                input_hidden=level.hidden,
                cumu_count=store.count,
            )
            state = store.add(self.kernels, layer, level)
            width = growth.next_width(depth, partial(store.gains, self.kernels, state))
            if not width:
                break
            level = level.next(layer, state, width)
            out = self.head.step(_level_rows(drafting, level), level.hidden, self.pool)
            level.hidden = out.hidden
            probas, tokens = self._best(out.logits)
        return store.tree(store.count)

    def _best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Probability over the whole draft vocabulary and target id of the best children."""
        probas, ids = torch.softmax(logits.float(), dim=-1).topk(self.shape.top_k, dim=-1)
        return probas, self.head.to_target(ids)


@dataclass(frozen=True, eq=False)
class _Run:
    """Features of one request without a gap between them."""

    slots: Tensor
    parts: tuple[Features, ...]

    @property
    def start(self) -> int:
        return self.parts[0].start

    @property
    def end(self) -> int:
        return self.parts[-1].end


def _runs(request: Followed) -> list[_Run]:
    """The features of a request, split where some were let go."""
    runs: list[list[Features]] = []
    for part in request.features:
        if runs and runs[-1][-1].end == part.start:
            runs[-1].append(part)
        else:
            runs.append([part])
    return [_Run(request.slots, tuple(parts)) for parts in runs]


def _extension(runs: list[_Run]) -> tuple[Rows, Tensor]:
    """Rows of freshly committed positions, behind the draft KV that is already there."""
    parts = [part for run in runs for part in run.parts]
    lengths = [run.end - run.start for run in runs]
    kv_indices, kv_indptr = ragged([run.slots[: run.end] for run in runs])
    indptr = torch.tensor([0, *lengths], device=kv_indices.device).cumsum(0).int()
    tokens = torch.cat([part.next_tokens for part in parts])
    bounds = Bounds(max(lengths), max(run.end for run in runs))
    make = host_rows.causal_rows if kv_indices.device.type == "cpu" else causal_rows
    rows = make(tokens, indptr, kv_indptr, kv_indices, bounds)
    return rows, torch.cat([part.taps for part in parts])


def _level_rows(requests: list[Followed], level: Level) -> Rows:
    """One draft level: every frontier node sees its prefix, its fed ancestors and itself."""
    batch, device, width = len(requests), level.tokens.device, level.width
    if device.type == "cpu":
        return host_rows.level_rows(
            [r.slots for r in requests],
            [r.seq_len for r in requests],
            level.tokens,
            level.mask,
            level.widths,
        )
    fed = sum(level.widths)  # this level's nodes included
    seq_len = torch.tensor([request.seq_len for request in requests], device=device)
    kv_indices, kv_indptr = ragged([r.slots[: r.seq_len + fed] for r in requests])
    own = fed - width + torch.arange(width, device=device)
    first = kv_indptr[:-1].long() + seq_len
    # Position of every column: its index in the prefix, seq_len + level in the tree.
    deep = torch.arange(len(level.widths), device=device)
    levels = deep.repeat_interleave(torch.tensor(level.widths, device=device), output_size=fed)
    positions = [
        torch.cat((torch.arange(r.seq_len, device=device), r.seq_len + levels)) for r in requests
    ]
    return Rows(
        tokens=level.tokens.reshape(-1),
        positions=(seq_len + len(level.widths) - 1).repeat_interleave(width),
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
