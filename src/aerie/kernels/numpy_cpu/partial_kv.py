"""NumPy preview, R20 to R22: blocks of the KV, and which of them are looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.call import takes_call
from aerie.kernels.cards import partial_kv as cards
from aerie.kernels.numpy_types import Floats


@takes_call
def weigh_kv_blocks(call: cards.WeighedBlocks) -> dict[str, Any]:
    """R20: softmax of every query head, summed by block."""
    found = np.zeros(_shape(call), np.float32)
    for place, queries, keys, starts in _texts(call):
        scores = queries @ keys.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        found[place][: len(starts)] = np.add.reduceat(weights.sum(axis=0), starts)
    return {"block_scores": found}


@takes_call
def bound_kv_blocks(call: cards.BoundedBlocks) -> dict[str, Any]:
    """R21: a query's products with the extremes of every block."""
    found = np.full(_shape(call), cards.BEHIND, np.float32)
    for place, queries, keys, starts in _texts(call):
        highest, lowest = (ufunc.reduceat(keys, starts) for ufunc in (np.maximum, np.minimum))
        bounds = np.maximum(queries @ highest.T, queries @ lowest.T)
        found[place][: len(starts)] = bounds.mean(axis=0)
    return {"block_scores": found}


def _shape(call: cards.ScoredBlocks) -> tuple[int, ...]:
    return (*call.queries.shape[:2], call.keys.shape[2], call.n_blocks)


def _texts(call: cards.ScoredBlocks) -> Any:
    """Where a text's scores go, its queries, its keys and where its blocks begin."""
    queries, keys, size = call.queries, call.keys, call.block_size
    heads = keys.shape[2], queries.shape[2] // keys.shape[2]
    queries = queries.reshape(*queries.shape[:2], *heads, queries.shape[3])
    longest = min(call.req_to_token.shape[1], call.n_blocks * size)
    for b, length in enumerate(call.seq_len.clip(0, longest).tolist()):
        slots = call.req_to_token[call.req_pool_indices[b], :length]
        starts = np.arange(0, length, size)
        for y, g in np.ndindex(*((queries.shape[0], queries.shape[2]) if length else (0, 0))):
            yield (y, b, g), _floats(queries[y, b, g]), _floats(keys[y, slots, g]), starts


def _floats(values: NDArray[Any]) -> Floats:
    """Any dtype as float32; bfloat16 comes as its bit patterns."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


@takes_call
def choose_kv_blocks(call: cards.ChosenBlocks) -> dict[str, Any]:
    """R22: sinks, the best between, and the window."""
    n_chosen, n_blocks = call.n_sink + call.n_retrieval + call.n_window, call.block_scores.shape[-1]
    block, seq_len = np.arange(n_blocks), call.seq_len.clip(0, n_blocks * call.block_size)
    n_own = (seq_len + call.block_size - 1) // call.block_size
    is_own = (block < n_own[:, None])[None, :, None]
    is_fixed = ((block < call.n_sink) | (block >= (n_own - call.n_window)[:, None]))[None, :, None]
    scores = np.where(is_own, np.where(is_fixed, np.inf, call.block_scores), -np.inf)
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :n_chosen]
    best = np.sort(np.where(best < n_own[None, :, None, None], best, n_blocks), axis=-1)
    blocks = np.full((*best.shape[:3], n_chosen), -1, np.int32)
    blocks[..., : best.shape[-1]] = np.where(best < n_blocks, best, -1)
    near_len = seq_len - np.maximum(n_own - n_chosen, 0) * call.block_size
    return {"blocks": blocks, "near_len": near_len}
