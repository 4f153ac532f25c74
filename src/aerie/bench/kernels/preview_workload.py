"""The shapes of a preview's kernels: blocks of long texts, and a run before a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aerie.bench.kernels.shape import Inputs, Round

LAYERS, HEADS, GROUP, HEAD_SIZE = 2, 2, 4, 64
BLOCK, RUN = 16, 24
KEPT = {"n_sink": 1, "n_retrieval": 8, "n_window": 2}  # a smaller share than of a real text


def _texts(made: Round) -> Inputs:
    return {
        "req_to_token": made.table,
        "req_pool_indices": made.pool,
        "seq_len": made.seq_len,
    }


def _n_blocks(made: Round) -> int:
    return -(-int(made.seq_len.max(initial=1)) // BLOCK)


def _pool(made: Round) -> Any:
    return np.zeros((LAYERS, int(made.table.max(initial=0)) + 1, HEADS, HEAD_SIZE), np.float32)


def _scored(made: Round) -> Inputs:
    queries = (LAYERS, made.shape.batch, HEADS * GROUP, HEAD_SIZE)
    return {
        "queries": made.rng.standard_normal(queries, np.float32),
        "keys": _pool(made),
        **_texts(made),
        "block_size": BLOCK,
        "n_blocks": _n_blocks(made),
    }


def _chosen(made: Round) -> Inputs:
    scores = (LAYERS, made.shape.batch, HEADS, _n_blocks(made))
    return {
        "block_scores": made.rng.random(scores, np.float32),
        "seq_len": made.seq_len,
        "block_size": BLOCK,
        **KEPT,
    }


def _gathered(made: Round) -> Inputs:
    batch, n_chosen = made.shape.batch, sum(KEPT.values())
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
        **_texts(made),
        "near_table": np.arange(1, 1 + batch * width, dtype=np.int32).reshape(batch, width),
        "block_size": BLOCK,
    }


def _spliced(made: Round) -> Inputs:
    store, batch = made.store, made.shape.batch
    room = ((0, 0), (0, RUN))
    arrays = {
        "cumu_tokens": store.tokens,
        "cumu_scores": store.scores.astype(np.float32),
        "cumu_deltas": store.depths,
        "prev_indexs": store.prev,
    }
    size = store.tokens.shape[1] + RUN
    return {
        **{name: np.pad(array, room) for name, array in arrays.items()},
        "selected": np.zeros((batch, size), np.bool_),
        "n_chosen": np.ones(batch, np.int32),
        "root_tokens": np.zeros(batch, np.int64),
        "run_tokens": np.zeros((batch, RUN), np.int64),
        "run_count": np.full(batch, RUN // 2),
        "node_count": store.count,
    }


PREVIEW_BUILDERS: dict[str, Callable[[Round], Inputs]] = {
    "weigh_kv_blocks": _scored,
    "bound_kv_blocks": _scored,
    "choose_kv_blocks": _chosen,
    "gather_kv_blocks": _gathered,
    "splice_drafted_run": _spliced,
}
