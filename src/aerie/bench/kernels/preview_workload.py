"""The shapes of a preview's kernels: blocks of long texts, and a run before a tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.bench.kernels.shape import Builder, Inputs, Round

LAYERS, HEADS, GROUP, HEAD_SIZE = 2, 2, 4, 64
BLOCK, RUN = 16, 24
KEPT = {"n_sink": 1, "n_retrieval": 8, "n_window": 2}  # a smaller share than of a real text


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
