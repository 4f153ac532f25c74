"""One draft round as data, and the ways to run it: kernel by kernel, or as one fused region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.fpga.draft_weights import DraftWeights
from aerie.fpga.quantise import Quantised
from aerie.fpga.tree_round import Array, Call, DraftLevel, Frontier, Grown, Serving, TreeRound
from aerie.fpga.tree_runs import grow_unfused

HEAD_KINDS = {"half": 0, "q4": 1, "sketch": 2}


@dataclass(frozen=True, eq=False)
class DraftRound:
    """What a round starts from: new tokens of each request with the target's features of them."""

    features: Array  # [R, features] f16
    new_tokens: Array  # [R] i64
    new_positions: Array  # [R] i64
    row_indptr: Array  # [B+1] i32
    serving: Serving
    keys: Array  # [S, kv_width] f16, the draft's cache before the round
    values: Array
    top_k: int
    verify_num: int
    widths: tuple[int, ...]

    @property
    def batch(self) -> int:
        """Requests."""
        return len(self.serving.seq_len)

    @property
    def depth(self) -> int:
        """Levels."""
        return len(self.widths)

    @property
    def n_rows(self) -> int:
        """Rows the target will verify, at most."""
        return self.batch * min(self.verify_num, 1 + self.top_k * sum(self.widths))


@dataclass(frozen=True)
class FusedChoice:
    """Which of the levers a fused draft uses."""

    head: str = "half"  # half, q4 or sketch
    is_fc_q4: bool = False
    is_resident: bool = True
    n_candidates: int = 128


class Level:
    """Rows of one frontier in external memory while they go through the layer, kernel by kernel."""

    def __init__(self, one: DraftRound, weights: DraftWeights, call: Call) -> None:
        self.one = one
        self.weights = weights
        self.call = call
        self.keys, self.values = one.keys.copy(), one.values.copy()

    def attention(
        self, x: Array, tokens: Array, positions: Array, indptr: Array, mask: Array | None
    ) -> Array:
        """Everything up to the attention's output projection: [rows, hidden]."""
        one, w, call = self.one, self.weights, self.call
        hidden = w.shape.hidden
        rows = call("draft_embed_rows", tokens=tokens, embedding=w.embedding)["rows"]
        joined = call(
            "draft_join_norms",
            embedded=rows,
            hidden=x,
            embedding_norm=w.tables.norms[:hidden],
            hidden_norm=w.tables.norms[hidden : 2 * hidden],
            eps=w.tables.eps,
        )["joined"]
        width = w.shape.q_width + 2 * w.shape.kv_width
        projected = self.linear(joined, w.qkv, width)
        owners = np.repeat(np.arange(one.batch), np.diff(indptr))
        columns = positions if mask is None else self._columns(mask, owners)
        table = one.serving.req_to_token[one.serving.req_pool_indices]
        queries = call(
            "draft_rotate_store",
            qkv=projected,
            positions=positions,
            slots=np.ascontiguousarray(table[owners, columns]),
            cosines=w.tables.cosines,
            sines=w.tables.sines,
            keys=self.keys,
            values=self.values,
        )["queries"]
        n_fed = 0 if mask is None else int(np.flatnonzero(mask.any(axis=0))[-1]) + 1
        attended = call(
            "draft_attend",
            queries=queries,
            row_indptr=indptr,
            positions=positions,
            tree_mask=mask,
            **one.serving.places,
            keys=self.keys,
            values=self.values,
            head_dim=w.shape.head_dim,
            window=w.shape.window,
            n_fed=n_fed,
        )["attended"]
        return self.linear(attended, w.output, hidden)

    def _columns(self, mask: Array, owners: Array) -> Array:
        """A fed node's column is the last it sees: itself."""
        last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
        columns: Array = self.one.serving.seq_len[owners] + last
        return columns

    def linear(self, x: Array, weight: Quantised, n_out: int) -> Array:
        """Rows times a 4-bit weight."""
        result = self.call(
            "draft_linear_q4",
            x=x,
            weight=weight.nibbles.reshape(-1),
            weight_scale=weight.scales.reshape(-1),
            O=n_out,
        )
        made: Array = result["y"]
        return made

    def children(self, x: Array, attended: Array, top_k: int) -> tuple[Array, Array, Array]:
        """Feed-forward, head, softmax, top-k: hidden states, probabilities and tokens."""
        w, call = self.weights, self.call
        hidden, eps = w.shape.hidden, w.tables.eps
        norm = w.tables.norms[2 * hidden : 3 * hidden]
        stream = call("draft_add_norm", residual=x, added=attended, norm=norm, eps=eps)
        wide = self.linear(stream["normed"], w.gate_up, 2 * w.shape.mlp)
        gated = call("draft_gate", gate_up=wide)["gated"]
        fed = self.linear(gated, w.down, hidden)
        final = w.tables.norms[3 * hidden :]
        out = call("draft_add_norm", residual=stream["total"], added=fed, norm=final, eps=eps)
        logits = call("draft_logits", x=out["normed"], weight=w.head.whole)["logits"]
        probas = call("draft_softmax", logits=logits)["probas"]
        best = call("draft_top_k", probas=probas, K=top_k)
        return out["total"], best["topk_probas"], best["topk_tokens"]


@dataclass(frozen=True, eq=False)
class Drafted:
    """A laid-out tree and the draft's cache behind it."""

    grown: Grown
    keys: Array
    values: Array


def draft_unfused(one: DraftRound, weights: DraftWeights, call: Call) -> Drafted:
    """The round kernel by kernel; the tree kernels run between the head's levels."""
    level = Level(one, weights, call)
    mixed = call("draft_linear_half", x=one.features, weight=weights.fc)["y"]
    added = level.attention(mixed, one.new_tokens, one.new_positions, one.row_indptr, None)
    last = one.row_indptr[1:].astype(np.int64) - 1
    # Which rows go on is a pointer's business: nothing is charged for taking the last ones.
    hidden, probas, tokens = level.children(
        np.ascontiguousarray(mixed[last]), np.ascontiguousarray(added[last]), one.top_k
    )
    levels = [_level_of(one, probas, tokens, hidden)]
    grown = grow_unfused(_tree_round(one, levels), call, lambda state: _next(level, state, levels))
    return Drafted(grown, level.keys, level.values)


def _level_of(one: DraftRound, probas: Array, tokens: Array, hidden: Array) -> DraftLevel:
    shape = (one.batch, -1)
    return DraftLevel(probas.reshape(shape), tokens.reshape(shape), hidden)


def _tree_round(one: DraftRound, levels: list[DraftLevel]) -> TreeRound:
    """The tree's part of the round; no logits of a target yet."""
    nothing = np.zeros((one.n_rows, 1), np.float32)
    heat = np.zeros(one.batch, np.float32)
    return TreeRound(
        one.top_k, one.verify_num, tuple(levels), one.serving, nothing, heat, None, one.widths
    )


def _next(level: Level, frontier: Frontier, levels: list[DraftLevel]) -> DraftLevel:
    """The head over one more frontier."""
    one = level.one
    batch, width = frontier.tokens.shape
    x = np.ascontiguousarray(frontier.hidden.reshape(batch * width, -1))
    positions = np.repeat(one.serving.seq_len + frontier.number - 1, width)
    indptr = (np.arange(batch + 1) * width).astype(np.int32)
    mask = np.ascontiguousarray(frontier.mask.reshape(batch * width, -1))
    tokens = np.ascontiguousarray(frontier.tokens.reshape(-1))
    added = level.attention(x, tokens, positions, indptr, mask)
    hidden, probas, best = level.children(x, added, one.top_k)
    levels.append(_level_of(one, probas, best, hidden))
    return levels[-1]


def draft_fused(
    one: DraftRound,
    weights: DraftWeights,
    choice: FusedChoice,
    call: Call,
    gain_floor: Array | None = None,
) -> Drafted:
    """The round as one region. The attention block was loaded by `load_attention`, or is read.

    `gain_floor` [D] is what a slot must add to be fed; without it every slot is.
    """
    floors = np.full(one.depth, -np.inf, np.float32) if gain_floor is None else gain_floor
    keys, values = one.keys.copy(), one.values.copy()
    serving = one.serving
    result = call(
        "fused_draft",
        features=one.features,
        new_tokens=one.new_tokens,
        new_positions=one.new_positions,
        row_indptr=one.row_indptr,
        widths=np.array(one.widths, np.int32),
        gain_floor=floors,
        root_tokens=serving.root_tokens,
        **serving.places,
        **_fused_weights(weights, choice),
        keys=keys,
        values=values,
        **_tree_round(one, []).limits(one.n_rows),
        Q=weights.shape.q_width,
        M=weights.shape.mlp,
        V=weights.shape.vocab,
        window=weights.shape.window,
        head_kind=HEAD_KINDS[choice.head],
        RK=weights.head.sketch.rank,
        n_candidates=choice.n_candidates,
    )
    return Drafted(Grown(np.asarray(result["G"]), result, result), keys, values)


def load_attention(weights: DraftWeights, call: Call) -> None:
    """Bring the attention block to the chip: once, not once a round."""
    call("fused_load_attention", **_flat("qkv", weights.qkv), **_flat("output", weights.output))


def _fused_weights(weights: DraftWeights, choice: FusedChoice) -> dict[str, Any]:
    given: dict[str, Any] = {
        "embedding": weights.embedding,
        "norms": weights.tables.norms,
        "eps": weights.tables.eps,
        "cosines": weights.tables.cosines,
        "sines": weights.tables.sines,
        **_flat("gate_up", weights.gate_up),
        **_flat("down", weights.down_tiles),
    }
    given |= _flat("fc_q4", weights.fc_q4) if choice.is_fc_q4 else {"fc": weights.fc}
    if not choice.is_resident:
        given |= {**_flat("qkv", weights.qkv), **_flat("output", weights.output)}
    if choice.head == "q4":
        return given | _flat("head_q4", weights.head.q4)
    given["head"] = weights.head.whole
    if choice.head == "sketch":
        given |= _flat("sketch_in", weights.head.sketch.inner)
        given |= _flat("sketch_out", weights.head.sketch.outer)
    return given


def _flat(name: str, weight: Quantised) -> dict[str, Array]:
    return {name: weight.nibbles.reshape(-1), f"{name}_scale": weight.scales.reshape(-1)}
