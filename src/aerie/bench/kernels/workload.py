"""Inputs of every kernel at a batch size and a verify budget, as one round would call them."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.bench.kernels.round_workload import ROUND_BUILDERS
from aerie.bench.kernels.shape import DEPTH, LEVELS, TOP_K, WIDTH, Builder, Inputs, Round, Shape
from aerie.kernels.cases.trees import Plan, best_scores, draw_candidates, grow, select
from aerie.kernels.cases.trees import lay_out as lay_out_trees

LAYERS, HEADS, GROUP, HEAD_SIZE = 2, 2, 4, 64
BLOCK, RUN = 16, 24
KEPT = {"n_sink": 1, "n_retrieval": 8, "n_window": 2}  # a smaller share than of a real text


def workload(shape: Shape) -> dict[str, Inputs]:
    """Named inputs of every kernel for one round of this shape; the same on every call."""
    rng = np.random.default_rng(20261115)
    plan = Plan(shape.batch, TOP_K, (1, *[WIDTH] * LEVELS))
    layout = lay_out_trees(rng, [f"random{shape.verify}"] * shape.batch, shape.vocabulary)
    made = Round(shape, rng, grow(rng, plan), layout)
    builders = {**_BUILDERS, **ROUND_BUILDERS, **PREVIEW_BUILDERS}
    return {name: build(made) for name, build in builders.items()}


def _layer_scores(made: Round) -> Inputs:
    last = np.take_along_axis(made.store.path, made.store.frontier, 1)
    layer = draw_candidates(made.rng, last, TOP_K)
    return {
        "topk_probas": layer.probas,
        "topk_tokens": layer.tokens,
        "last_layer_scores": last,
        "input_hidden": made.hidden,
        "cumu_count": made.store.count,
    }


def _draft_state(made: Round) -> Inputs:
    store, verify = made.store, made.shape.verify
    last = np.take_along_axis(store.path, store.frontier, 1)
    layer = draw_candidates(made.rng, last, TOP_K)
    scores = np.zeros((made.batch, verify), np.float32)
    best = best_scores(store, verify)
    scores[:, : best.shape[1]] = best
    return {
        "cumu_tokens": store.tokens,
        "cumu_scores": store.scores,
        "cumu_deltas": store.depths,
        "prev_indexs": store.prev,
        "next_indexs": store.next,
        "side_indexs": store.side,
        "sort_scores": scores,
        "curr_layer_scores": layer.scores,
        "topk_tokens": layer.tokens,
        "sort_layer_scores": layer.sorted_scores,
        "sort_layer_indices": layer.order,
        "frontier_indexs": store.frontier,
        "input_tree_mask": store.mask,
        "cumu_count": store.count,
        "verify_num": verify,
        "fed_count": store.fed_count,
    }


def _work_deltas(made: Round) -> Inputs:
    old = best_scores(made.store, min(made.shape.verify, made.store.count))
    new = np.sort(made.rng.random((made.batch, TOP_K)).astype(np.float32))[:, ::-1]
    scores = np.concatenate([old, new], axis=1)
    return {"work_scores": scores, "node_top_k": TOP_K, "verify_num": made.shape.verify}


def _tree_mask(made: Round) -> Inputs:
    columns = made.shape.context + made.shape.verify
    mask_bytes = (made.shape.verify * columns + 7) // 8
    return {
        **made.texts,
        "qo_indptr": made.layout.indptr,
        "ancestor_bits": made.layout.bits,
        "kv_capacity": made.batch * columns,
        "mask_capacity": made.batch * mask_bytes,
    }


def _probabilities(made: Round) -> Inputs:
    heat = np.full(made.batch, 0.7, np.float32)
    logits = made.logits(made.rows)
    return {"logits": logits, "temperature": heat, "qo_indptr": made.layout.indptr}


def _reject_sample(made: Round) -> Inputs:
    """Target tokens that follow the first child of every row: the longest walks."""
    layout = made.layout
    starts = np.repeat(layout.indptr[:-1], layout.rows)
    child = np.where(layout.first_child >= 0, starts + layout.first_child, 0)
    return {
        "qo_indptr": layout.indptr,
        "draft_tokens": layout.tokens,
        "first_child_row": layout.first_child,
        "next_sibling_row": layout.next_sibling,
        "tree_depth": int(layout.depths.max(initial=0)),
        "target_tokens": layout.tokens[child],
    }


def _verify_result(made: Round) -> Inputs:
    index = np.full((made.batch, DEPTH + 1), -1, np.int64)
    for request in range(made.batch):
        path = made.layout.path(made.rng, request, 3)
        index[request, : len(path)] = path
    return {
        "accept_index": index,
        "accept_count": (index >= 0).sum(1) - 1,
        "bonus_token": np.full(made.batch, 5),
        "draft_tokens": made.layout.tokens,
        "qo_indptr": made.layout.indptr,
        "seq_len": made.seq_len,
        "length_limit": made.seq_len + 4096,
        "stop_tokens": np.full((made.batch, 2), -1),
        "req_to_token": made.table,
        "req_pool_indices": made.pool,
    }


def _span(made: Round, slots: Any) -> Inputs:
    return {
        "req_to_token": made.table,
        "req_pool_indices": made.pool,
        "start": made.seq_len,
        "end": made.seq_len + made.shape.verify,
        "out_cache_loc": slots,
    }


def _draft_locs(made: Round) -> Inputs:
    slots = np.arange(made.batch * made.shape.verify, dtype=np.int32)
    return _span(made, slots.reshape(made.batch, -1))


def _node_data(made: Round) -> Inputs:
    store, sizes = made.store, np.full(made.batch, made.shape.verify)
    counts = np.full(made.batch, store.count)
    return {
        "cumu_tokens": store.tokens,
        "cumu_deltas": store.depths,
        "prev_indexs": store.prev,
        "node_count": counts,
        "selected": select(made.rng, store, counts, sizes),
        "seq_len": made.seq_len,
        "row_capacity": made.batch * made.shape.verify,
    }


def _replay(made: Round, rows: int) -> Inputs:
    values: Inputs = {
        "input_ids": made.tokens(rows),
        "positions": made.tokens(rows),
        "out_cache_loc": made.words(rows),
        "hidden": np.zeros((rows, made.shape.hidden), np.float16),
        "seq_len": made.seq_len,
        "req_pool_indices": made.pool,
    }
    static = {f"static_{name}": value.copy() for name, value in values.items()}
    return {**values, **static, "seq_len_fill": 1}


def _draft_replay(made: Round) -> Inputs:
    return {
        **_replay(made, made.batch * WIDTH),
        "tree_width": WIDTH,
        "buckets": (made.batch,),
    }


def _extend_replay(made: Round) -> Inputs:
    rows = made.batch * 4
    return {
        **_replay(made, rows),
        "extend_len": np.full(made.batch, 4),
        "static_extend_len": made.tokens(made.batch),
        "static_qo_indptr": made.words(made.batch + 1),
        "batch_buckets": (made.batch,),
        "row_buckets": (rows,),
    }


_BUILDERS: dict[str, Builder] = {
    "draft_tree_layer_score_index_gen_op": _layer_scores,
    "update_cumu_draft_state": _draft_state,
    "calculate_work_deltas": _work_deltas,
    "fused_tree_mask_operator": _tree_mask,
    "convert_logits_to_probas": _probabilities,
    "draft_tree_reject_sample": _reject_sample,
    "sample_target_tokens": lambda made: {
        **_probabilities(made),
        "positions": made.shape.context + made.layout.depths,
        "seed": np.arange(made.batch),
    },
    "update_verify_result": _verify_result,
    "compute_kv_indices": lambda made: {
        **made.texts,
        "kv_capacity": made.batch * made.shape.context,
    },
    "calculate_verify_kv_qo_ms": lambda made: {
        "verify_count": made.layout.rows.astype(np.int64),
        "seq_len": made.seq_len,
    },
    "assign_draft_cache_locs_operator": _draft_locs,
    "assign_req_to_token_pool_operator": lambda made: _span(
        made, np.arange(made.rows, dtype=np.int32)
    ),
    "update_node_data": _node_data,
    "draft_replay_input_operator": _draft_replay,
    "extend_replay_input_operator": _extend_replay,
    "build_active_slots": lambda made: {
        "finished": made.rng.random(made.batch) < 0.3,
        "seq_len": made.seq_len,
        "length_limit": made.seq_len + 100,
        "eos_terminated": made.flags(made.batch),
    },
}


def _n_blocks(made: Round) -> int:
    return -(-int(made.seq_len.max(initial=1)) // BLOCK)


def _pool(made: Round) -> Any:
    return np.zeros((LAYERS, int(made.table.max(initial=0)) + 1, HEADS, HEAD_SIZE), np.float32)


def _scored(made: Round) -> Inputs:
    queries = (LAYERS, made.batch, HEADS * GROUP, HEAD_SIZE)
    return {
        "queries": made.rng.standard_normal(queries, np.float32),
        "keys": _pool(made),
        **made.texts,
        "block_size": BLOCK,
        "n_blocks": _n_blocks(made),
    }


def _gathered(made: Round) -> Inputs:
    batch, n_chosen = made.batch, sum(KEPT.values())
    blocks = np.broadcast_to(
        np.arange(n_chosen, dtype=np.int32), (LAYERS, batch, HEADS, n_chosen)
    ).copy()
    width = n_chosen * BLOCK
    near = (LAYERS, 1 + batch * width, HEADS, HEAD_SIZE)
    return {
        "near_keys": np.zeros(near, np.float32),
        "near_values": np.zeros(near, np.float32),
        "keys": _pool(made),
        "values": _pool(made),
        "blocks": blocks,
        **made.texts,
        "near_table": np.arange(1, 1 + batch * width, dtype=np.int32).reshape(batch, width),
        "block_size": BLOCK,
    }


def _spliced(made: Round) -> Inputs:
    store, batch = made.store, made.batch
    room = ((0, 0), (0, RUN))
    arrays = {
        "cumu_tokens": store.tokens,
        "cumu_scores": store.scores.astype(np.float32),
        "cumu_deltas": store.depths,
        "prev_indexs": store.prev,
    }
    return {
        **{name: np.pad(array, room) for name, array in arrays.items()},
        "selected": made.flags(batch, store.tokens.shape[1] + RUN),
        "n_chosen": np.ones(batch, np.int32),
        "root_tokens": made.tokens(batch),
        "run_tokens": made.tokens(batch, RUN),
        "run_count": np.full(batch, RUN // 2),
        "node_count": store.count,
    }


PREVIEW_BUILDERS: dict[str, Builder] = {
    "weigh_kv_blocks": _scored,
    "bound_kv_blocks": _scored,
    "choose_kv_blocks": lambda made: {
        "block_scores": made.rng.random((LAYERS, made.batch, HEADS, _n_blocks(made)), np.float32),
        "seq_len": made.seq_len,
        "block_size": BLOCK,
        **KEPT,
    },
    "gather_kv_blocks": _gathered,
    "splice_drafted_run": _spliced,
}
