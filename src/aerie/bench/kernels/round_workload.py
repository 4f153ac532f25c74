"""Inputs of the round's kernels, R1 to R16, at the shape of a workload."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.bench.kernels.shape import DEPTH, LEVELS, TOP_K, WIDTH, Builder, Inputs, Round
from aerie.kernels.cards.axes import KNOTS
from aerie.kernels.cases.trees import best_scores, draw_candidates, select
from aerie.kernels.report import REPORT

RUN, PATH = DEPTH + 1, 8
LAYERS, HEADS, HEAD_SIZE = 8, 2, 64


def _lists(made: Round, behind: int) -> Inputs:
    """Slot lists of the context and `behind` slots more, and one column for padding."""
    length = made.shape.context + behind
    slots = np.append(made.table[:, :length].reshape(-1), np.int32(-1))
    return {"kv_indptr": made.bounds(length), "kv_indices": slots}


def _trees(made: Round) -> Inputs:
    """The node store of a draft that is over; what lies behind it has no score."""
    store = made.store
    scores = np.where(np.arange(store.scores.shape[1]) < store.count, store.scores, 0)
    return {
        "cumu_scores": scores.astype(np.float32),
        "cumu_deltas": store.depths,
        "prev_indexs": np.minimum(store.prev, store.count - 1),
    }


def _seated(made: Round) -> Inputs:
    return {"seq_len": made.seq_len, "req_to_token": made.table, "req_pool_indices": made.pool}


def _draft_levels(made: Round) -> Inputs:
    level = np.repeat(np.arange(LEVELS - 1), WIDTH)
    return {**_seated(made), "node_level": level, **_lists(made, len(level))}


def _draft_layer(made: Round) -> Inputs:
    store, verify = made.store, made.shape.verify
    last = np.take_along_axis(store.path, store.frontier, 1)
    layer = draw_candidates(made.rng, last, TOP_K)
    scores = np.zeros((made.batch, verify), np.float32)
    best = best_scores(store, verify)
    scores[:, : best.shape[1]] = best
    return {
        **_trees(made),
        "cumu_tokens": store.tokens.copy(),
        "next_indexs": store.next.copy(),
        "side_indexs": store.side.copy(),
        "sort_scores": scores,
        "topk_probas": layer.probas,
        "topk_tokens": layer.tokens,
        "last_layer_scores": last,
        "input_hidden": made.hidden,
        "frontier_indexs": store.frontier,
        "input_tree_mask": store.mask,
        "cumu_count": store.count,
        "verify_num": verify,
        "fed_count": store.fed_count,
        "weigh": True,
    }


def _choice(made: Round) -> Inputs:
    size = made.store.scores.shape
    return {
        "selected": made.flags(*size),
        "n_chosen": made.words(size[0]),
        "verify_num": made.shape.verify,
    }


def _planned_nodes(made: Round) -> Inputs:
    batch, verify = made.batch, made.shape.verify
    sizes = np.unique(np.linspace(batch, batch * verify, 16).astype(np.int64))
    seconds, corrections = np.linspace(0.01, 0.05, len(sizes)), np.zeros(8 * KNOTS)
    return {
        **_trees(made),
        **_choice(made),
        "row_sizes": sizes,
        "numbers": np.concatenate(([40.0], seconds, corrections)),
        "deepest": LEVELS + 1,
    }


def _noted_nodes(made: Round) -> Inputs:
    batch, verify, store = made.batch, made.shape.verify, made.store
    counts = np.full(batch, store.count)
    return {
        **_trees(made),
        "cumu_tokens": store.tokens,
        "selected": select(made.rng, store, counts, np.full(batch, verify)),
        "noted_scores": np.zeros((batch, verify), np.float32),
        **{f"noted_{n}": made.words(batch, verify) for n in ("depths", "tokens", "parents")},
    }


def _moved_slots(made: Round) -> Inputs:
    """Two rows of every request move; most of K7's list is empty."""
    batch = made.batch
    pool = (LAYERS, 16 * batch + 1, HEADS, HEAD_SIZE)
    moves = np.full((2, batch * RUN), -1, np.int32)
    first = 1 + 16 * np.arange(batch)
    moves[0, : 2 * batch] = np.stack((first + 3, first + 5), axis=1).reshape(-1)
    moves[1, : 2 * batch] = np.stack((first + 1, first + 2), axis=1).reshape(-1)
    return {
        "keys": np.zeros(pool, np.float32),
        "values": np.zeros(pool, np.float32),
        "kv_src": moves[0],
        "kv_dst": moves[1],
    }


def _handed_over(made: Round) -> Inputs:
    batch, emitted = made.batch, 3
    words = ("layout_status", "sample_status", "walk_status", "commit_status")
    return {
        **{name: made.words(batch) for name in words},
        "out_tokens": np.arange(batch * RUN),
        "out_indptr": made.bounds(emitted),
        "new_seq_len": made.seq_len + emitted,
        "finished": made.flags(batch),
        "qo_indptr": made.layout.indptr,
        "accept_index": np.tile(np.arange(RUN), (batch, 1)),
        "accept_count": np.full(batch, emitted - 1),
        "is_live": np.ones(batch, bool),
        "seq_len": made.seq_len,
        "cumu_tokens": made.store.tokens.copy(),
        "cumu_scores": made.store.scores.copy(),
        "accepted_tokens": made.tokens(batch, RUN),
        "accepted_count": made.tokens(batch),
        "report": made.words(batch, len(REPORT) + RUN),
    }


def _merged_path(made: Round) -> Inputs:
    """Paths that walk over two nodes of the tree and append the rest."""
    store, batch = made.store, made.batch
    room = ((0, 0), (0, PATH))
    path = np.full((batch, PATH), -2)
    path[:, 0] = store.tokens[:, 1]
    path[:, 1] = store.tokens[np.arange(batch), store.next[:, 1].clip(0)]
    return {
        **{name: np.pad(array, room) for name, array in _trees(made).items()},
        "cumu_tokens": np.pad(store.tokens, room),
        "path_tokens": path,
        "path_len": np.full(batch, PATH),
        "confidence": np.full(batch, 0.6, np.float32),
        "node_count": store.count,
    }


def _emitted(made: Round) -> Inputs:
    """Three tokens of every request."""
    batch, emitted = made.batch, 3
    rows: Any = np.full((batch, RUN), -1)
    rows[:, :emitted] = made.layout.indptr[:-1, None] + np.arange(emitted)
    return {
        "logits": made.logits(made.rows),
        "rows": rows,
        "tokens": made.rng.integers(0, made.shape.vocabulary, (batch, RUN)),
    }


def _masked(made: Round) -> Inputs:
    """Every request has a grammar."""
    words = (made.rows + 1, -(-made.shape.vocabulary // 32))
    return {
        "logits": _emitted(made)["logits"],
        "ends": made.layout.indptr,
        "first": 1 + made.layout.indptr[:-1],
        "bits": made.rng.integers(-(2**31), 2**31, words).astype(np.int32),
    }


ROUND_BUILDERS: dict[str, Builder] = {
    "place_verify_rows": lambda made: {
        "draft_tokens": made.layout.tokens,
        "positions": made.shape.context + made.layout.depths,
        "qo_indptr": made.layout.indptr,
        **_lists(made, made.shape.verify),
        "seq_len": made.seq_len,
    },
    "place_prompt_rows": lambda made: {
        "qo_indptr": made.bounds(made.shape.verify),
        "start": made.seq_len,
        **_lists(made, made.shape.verify),
        "row_capacity": made.shape.verify * made.batch,
    },
    "place_draft_rows": lambda made: {
        **_seated(made),
        "count": np.full(made.batch, 4),
        "run": RUN,
    },
    "place_draft_levels": _draft_levels,
    "mark_draft_paths": lambda made: {
        "frontier_bits": made.rng.integers(0, 99, (made.batch, WIDTH, 4)).astype(np.int32),
        "node_ids": 9 + made.rng.integers(0, WIDTH * TOP_K, (made.batch, WIDTH)),
        "first_id": 9,
        "top_k": TOP_K,
        "fed_count": WIDTH,
    },
    "best_draft_children": lambda made: {
        "logits": made.logits(made.batch * WIDTH),
        "node_top_k": TOP_K,
    },
    "grow_draft_layer": _draft_layer,
    "choose_best_nodes": lambda made: {
        "cumu_scores": _trees(made)["cumu_scores"],
        **_choice(made),
    },
    "choose_planned_nodes": _planned_nodes,
    "note_chosen_nodes": _noted_nodes,
    "move_kv_slots": _moved_slots,
    "hand_over_verdict": _handed_over,
    "find_text_path": lambda made: {
        "text": made.rng.integers(0, 200, made.table.shape).astype(np.int32),
        "req_pool_indices": made.pool,
        "text_len": made.seq_len,
        "longest": 4,
        "path_length": PATH,
        "searched": 4096,
    },
    "merge_text_path": _merged_path,
    "toss_coins": lambda made: {
        "seed": np.arange(made.batch),
        "sample_index": made.tokens(made.batch),
        "position": made.seq_len,
        "tree_depth": DEPTH,
    },
    "score_target_tokens": lambda made: {
        **_emitted(made),
        "wanted": np.full(made.batch, 5, np.int32),  # the five best beside each
        "top_n": 20,
    },
    "find_near_ties": lambda made: {
        **_emitted(made),
        "positions": made.tokens(made.rows),
        "temperature": np.zeros(made.batch, np.float32),  # all greedy
        "qo_indptr": made.layout.indptr,
        "limit": np.full(made.batch, 3 * 2.0**-7, np.float32),
    },
    "forbid_tokens": _masked,
}
