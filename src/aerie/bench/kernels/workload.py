"""Inputs of every kernel at a batch size and a verify budget, as one round would call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aerie.bench.kernels.preview_workload import PREVIEW_BUILDERS
from aerie.bench.kernels.round_workload import ROUND_BUILDERS
from aerie.bench.kernels.shape import DEPTH, LEVELS, TOP_K, WIDTH, Inputs, Round, Shape
from aerie.kernels.cases.trees import Plan, best_scores, draw_candidates, grow, select
from aerie.kernels.cases.trees import lay_out as lay_out_trees


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
    scores = np.zeros((made.shape.batch, verify), np.float32)
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
    new = np.sort(made.rng.random((made.shape.batch, TOP_K)).astype(np.float32))[:, ::-1]
    scores = np.concatenate([old, new], axis=1)
    return {"work_scores": scores, "node_top_k": TOP_K, "verify_num": made.shape.verify}


def _tree_mask(made: Round) -> Inputs:
    columns = made.shape.context + made.shape.verify
    mask_bytes = (made.shape.verify * columns + 7) // 8
    return {
        "req_to_token": made.table,
        "req_pool_indices": made.pool,
        "seq_len": made.seq_len,
        "qo_indptr": made.layout.indptr,
        "ancestor_bits": made.layout.bits,
        "kv_capacity": made.shape.batch * columns,
        "mask_capacity": made.shape.batch * mask_bytes,
    }


def _probabilities(made: Round) -> Inputs:
    logits = made.rng.standard_normal((made.rows, made.shape.vocabulary), np.float32) * 4
    heat = np.full(made.shape.batch, 0.7, np.float32)
    return {"logits": logits, "temperature": heat, "qo_indptr": made.layout.indptr}


def _links(made: Round) -> Inputs:
    return {
        "qo_indptr": made.layout.indptr,
        "draft_tokens": made.layout.tokens,
        "first_child_row": made.layout.first_child,
        "next_sibling_row": made.layout.next_sibling,
        "tree_depth": int(made.layout.depths.max(initial=0)),
    }


def _reject_sample(made: Round) -> Inputs:
    return {**_links(made), "target_tokens": _followed(made)}


def _followed(made: Round) -> Any:
    """Target tokens that follow the first child of every row: the longest walks."""
    starts = np.repeat(made.layout.indptr[:-1], made.layout.rows)
    child = np.where(made.layout.first_child >= 0, starts + made.layout.first_child, 0)
    return made.layout.tokens[child]


def _target_tokens(made: Round) -> Inputs:
    return {
        **_probabilities(made),
        "positions": made.shape.context + made.layout.depths,
        "seed": np.arange(made.shape.batch),
    }


def _verify_result(made: Round) -> Inputs:
    batch = made.shape.batch
    index = np.full((batch, DEPTH + 1), -1, np.int64)
    for request in range(batch):
        path = made.layout.path(made.rng, request, 3)
        index[request, : len(path)] = path
    return {
        "accept_index": index,
        "accept_count": (index >= 0).sum(1) - 1,
        "bonus_token": np.full(batch, 5),
        "draft_tokens": made.layout.tokens,
        "qo_indptr": made.layout.indptr,
        "seq_len": made.seq_len,
        "length_limit": made.seq_len + 4096,
        "stop_tokens": np.full((batch, 2), -1),
        "req_to_token": made.table,
        "req_pool_indices": made.pool,
    }


def _kv_indices(made: Round) -> Inputs:
    return {
        "req_to_token": made.table,
        "req_pool_indices": made.pool,
        "seq_len": made.seq_len,
        "kv_capacity": made.shape.batch * made.shape.context,
    }


def _offsets(made: Round) -> Inputs:
    return {"verify_count": made.layout.rows.astype(np.int64), "seq_len": made.seq_len}


def _span(made: Round) -> Inputs:
    return {
        "req_to_token": made.table,
        "req_pool_indices": made.pool,
        "start": made.seq_len,
        "end": made.seq_len + made.shape.verify,
    }


def _draft_locs(made: Round) -> Inputs:
    slots = np.arange(made.shape.batch * made.shape.verify, dtype=np.int32)
    return {**_span(made), "out_cache_loc": slots.reshape(made.shape.batch, -1)}


def _pool_locs(made: Round) -> Inputs:
    return {**_span(made), "out_cache_loc": np.arange(made.rows, dtype=np.int32)}


def _node_data(made: Round) -> Inputs:
    store, sizes = made.store, np.full(made.shape.batch, made.shape.verify)
    counts = np.full(made.shape.batch, store.count)
    return {
        "cumu_tokens": store.tokens,
        "cumu_deltas": store.depths,
        "prev_indexs": store.prev,
        "node_count": counts,
        "selected": select(made.rng, store, counts, sizes),
        "seq_len": made.seq_len,
        "row_capacity": made.shape.batch * made.shape.verify,
    }


def _replay(made: Round, rows: int) -> Inputs:
    width = made.shape.hidden
    values: Inputs = {
        "input_ids": np.zeros(rows, np.int64),
        "positions": np.zeros(rows, np.int64),
        "out_cache_loc": np.zeros(rows, np.int32),
        "hidden": np.zeros((rows, width), np.float16),
        "seq_len": made.seq_len,
        "req_pool_indices": made.pool,
    }
    static = {f"static_{name}": value.copy() for name, value in values.items()}
    return {**values, **static, "seq_len_fill": 1}


def _draft_replay(made: Round) -> Inputs:
    buckets = {"tree_width": WIDTH, "buckets": (made.shape.batch,)}
    return {**_replay(made, made.shape.batch * WIDTH), **buckets}


def _extend_replay(made: Round) -> Inputs:
    batch, rows = made.shape.batch, made.shape.batch * 4
    return {
        **_replay(made, rows),
        "extend_len": np.full(batch, 4),
        "static_extend_len": np.zeros(batch, np.int64),
        "static_qo_indptr": np.zeros(batch + 1, np.int32),
        "batch_buckets": (batch,),
        "row_buckets": (rows,),
    }


def _active_slots(made: Round) -> Inputs:
    return {
        "finished": made.rng.random(made.shape.batch) < 0.3,
        "seq_len": made.seq_len,
        "length_limit": made.seq_len + 100,
        "eos_terminated": np.zeros(made.shape.batch, np.bool_),
    }


_BUILDERS: dict[str, Callable[[Round], Inputs]] = {
    "draft_tree_layer_score_index_gen_op": _layer_scores,
    "update_cumu_draft_state": _draft_state,
    "calculate_work_deltas": _work_deltas,
    "fused_tree_mask_operator": _tree_mask,
    "convert_logits_to_probas": _probabilities,
    "draft_tree_reject_sample": _reject_sample,
    "sample_target_tokens": _target_tokens,
    "update_verify_result": _verify_result,
    "compute_kv_indices": _kv_indices,
    "calculate_verify_kv_qo_ms": _offsets,
    "assign_draft_cache_locs_operator": _draft_locs,
    "assign_req_to_token_pool_operator": _pool_locs,
    "update_node_data": _node_data,
    "draft_replay_input_operator": _draft_replay,
    "extend_replay_input_operator": _extend_replay,
    "build_active_slots": _active_slots,
}
