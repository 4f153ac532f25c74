"""The two ways to run a round of the tree kernels: kernel by kernel, or fused.

Unfused is one kernel a card, every array in external memory, probabilities
written by K5 and read back by K6. Fused is two regions that keep everything between them on chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.fpga.tree_round import (
    OUTCOME,
    Array,
    Call,
    Frontier,
    Grown,
    NextLevel,
    RoundResult,
    TreeRound,
)


def best_nodes(scores: Array, n_nodes: int) -> Array:
    """The best nodes of each request by (score, id), none without a score. [B, N] bool"""
    order = np.argsort(-scores, axis=1, kind="stable")
    chosen = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(chosen, order[:, :n_nodes], True, axis=1)
    return chosen & (scores > 0)


def run_unfused(one: TreeRound, call: Call) -> RoundResult:
    """The round kernel by kernel."""
    grown = grow_unfused(one, call)
    layout, serving = grown.layout, one.serving
    walked = _walk_unfused(one, layout, call)
    committed = call(
        "update_verify_result",
        **{name: walked[name] for name in ("accept_index", "accept_count", "bonus_token")},
        draft_tokens=layout["draft_tokens"],
        qo_indptr=layout["qo_indptr"],
        **serving.ends,
        **serving.places,
    )
    return RoundResult(grown, {name: committed[name] for name in OUTCOME})


def _walk_unfused(one: TreeRound, layout: Mapping[str, Any], call: Call) -> Mapping[str, Any]:
    links = {
        name: layout[name]
        for name in ("qo_indptr", "draft_tokens", "first_child_row", "next_sibling_row")
    }
    if one.coins is None:
        sampled = call(
            "sample_target_tokens",
            logits=one.logits,
            positions=layout["positions"],
            temperature=one.temperature,
            qo_indptr=layout["qo_indptr"],
        )
        tokens = sampled["target_tokens"]
        depth = one.depth
        return call("draft_tree_reject_sample", **links, target_tokens=tokens, tree_depth=depth)
    converted = call(
        "convert_logits_to_probas",
        logits=one.logits,
        temperature=one.temperature,
        qo_indptr=layout["qo_indptr"],
    )
    return call(
        "draft_tree_reject_sample",
        **links,
        target_probas=converted["target_probas"],
        coins=one.coins,
        tree_depth=one.depth,
    )


def grow_unfused(one: TreeRound, call: Call, next_level: NextLevel | None = None) -> Grown:
    """Levels with K1, K2 and K3, then the best nodes as rows (K10c) and their masks (K4).

    Levels are the round's, or made by `next_level` as the frontiers become known.
    """
    batch, top_k = one.batch, one.top_k
    store = _Store(one)
    frontier = np.zeros((batch, 1), np.int64)
    scores = np.ones((batch, 1), np.float32)
    mask = np.zeros((batch, 1, store.columns), np.bool_)
    gains, count, fed = [], 1, 0
    level = one.levels[0]
    for number, width in enumerate((*one.level_widths[1:], 0), start=1):
        layer = call(
            "draft_tree_layer_score_index_gen_op",
            topk_probas=level.probas,
            topk_tokens=level.tokens,
            last_layer_scores=scores,
            input_hidden=level.hidden,
            cumu_count=count,
        )
        state = call(
            "update_cumu_draft_state",
            **store.arrays,
            curr_layer_scores=layer["curr_layer_scores"],
            topk_tokens=layer["mapped_tokens"],
            sort_layer_scores=layer["sort_layer_scores"],
            sort_layer_indices=layer["sort_layer_indices"],
            frontier_indexs=frontier,
            input_tree_mask=mask,
            cumu_count=count,
            verify_num=one.verify_num,
            fed_count=fed,
        )
        weighed = call(
            "calculate_work_deltas",
            work_scores=state["work_scores"],
            node_top_k=top_k,
            verify_num=one.verify_num,
        )
        gains.append(np.asarray(weighed["G"]))
        count += level.probas.shape[1]
        if width:
            frontier = np.ascontiguousarray(layer["cache_topk_indices"][:, :width])
            scores = np.ascontiguousarray(state["output_scores"][:, :width])
            mask = np.ascontiguousarray(state["output_tree_mask"][:, :width])
            fed += width
            if next_level is None:
                level = one.levels[number]
            else:
                tokens, hidden = state["output_tokens"], layer["output_hidden"]
                level = next_level(Frontier(number, tokens[:, :width], hidden[:, :width], mask))
    layout, packed = store.lay_out(one, count, call)
    return Grown(np.stack(gains), layout, packed)


class _Store:
    """The node store of a batch in external memory."""

    def __init__(self, one: TreeRound) -> None:
        shape = (one.batch, 1 + sum(one.level_widths) * one.top_k)
        self.columns = sum(one.level_widths[1:]) + one.top_k
        links = {name: np.full(shape, -1, np.int64) for name in ("prev", "next", "side")}
        self.arrays: dict[str, Array] = {
            "cumu_tokens": np.zeros(shape, np.int64),
            "cumu_scores": np.zeros(shape, np.float32),
            "cumu_deltas": np.zeros(shape, np.int64),
            **{f"{name}_indexs": array for name, array in links.items()},
            "sort_scores": np.zeros((one.batch, one.verify_num), np.float32),
        }
        self.arrays["cumu_tokens"][:, 0] = one.serving.root_tokens
        self.arrays["cumu_scores"][:, 0] = 1.0
        self.arrays["sort_scores"][:, 0] = 1.0

    def lay_out(self, one: TreeRound, count: int, call: Call) -> tuple[Any, Any]:
        serving = one.serving
        chosen = best_nodes(self.arrays["cumu_scores"], one.verify_num)
        n_rows = len(one.logits)
        layout = call(
            "update_node_data",
            cumu_tokens=self.arrays["cumu_tokens"],
            cumu_deltas=self.arrays["cumu_deltas"],
            prev_indexs=self.arrays["prev_indexs"],
            node_count=np.full(one.batch, count, np.int64),
            selected=chosen,
            seq_len=serving.seq_len,
            row_capacity=n_rows,
        )
        packed = call(
            "fused_tree_mask_operator",
            **serving.places,
            qo_indptr=layout["qo_indptr"],
            ancestor_bits=layout["ancestor_bits"],
            **one.capacities(n_rows),
        )
        return layout, packed


def run_fused(one: TreeRound, call: Call) -> RoundResult:
    """The round in two regions; the second finds its rows on chip."""
    serving = one.serving
    widths = np.array(one.level_widths, np.int32)
    wide = (one.depth, one.batch, int(widths.max()) * one.top_k)
    probas, tokens = np.zeros(wide, np.float32), np.zeros(wide, np.int64)
    for number, level in enumerate(one.levels):
        probas[number, :, : level.probas.shape[1]] = level.probas
        tokens[number, :, : level.tokens.shape[1]] = level.tokens
    grown = call(
        "fused_growth",
        widths=widths,
        level_probas=probas,
        level_tokens=tokens,
        root_tokens=serving.root_tokens,
        **serving.places,
        **one.limits(len(one.logits)),
    )
    judged = call(
        "fused_verdict",
        logits=one.logits,
        temperature=one.temperature,
        coins=one.coins,
        D=one.depth,
        **serving.ends,
        **serving.places,
    )
    outcome = {name: judged[name] for name in OUTCOME}
    return RoundResult(Grown(np.asarray(grown["G"]), grown, grown), outcome)
