"""NumPy preview: R20 to R23 blocks of the KV and their copy, R24 the run it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]
Floats = NDArray[np.float32]


def weigh_kv_blocks(*, n_blocks: int, **given: Any) -> dict[str, Any]:
    """R20: softmax of every query head, summed by block."""
    found = np.zeros(_shape(given, n_blocks), np.float32)
    for place, queries, keys, starts in _texts(given, n_blocks):
        scores = queries @ keys.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        found[place][: len(starts)] = np.add.reduceat(weights.sum(axis=0), starts)
    return {"block_scores": found}


def bound_kv_blocks(*, n_blocks: int, **given: Any) -> dict[str, Any]:
    """R21: a query's products with the extremes of every block."""
    found = np.full(_shape(given, n_blocks), -3e38, np.float32)
    for place, queries, keys, starts in _texts(given, n_blocks):
        highest, lowest = (ufunc.reduceat(keys, starts) for ufunc in (np.maximum, np.minimum))
        bounds = np.maximum(queries @ highest.T, queries @ lowest.T)
        found[place][: len(starts)] = bounds.mean(axis=0)
    return {"block_scores": found}


def _shape(given: dict[str, Any], n_blocks: int) -> tuple[int, ...]:
    return (*given["queries"].shape[:2], given["keys"].shape[2], n_blocks)


def _texts(given: dict[str, Any], n_blocks: int) -> Any:
    """Where a text's scores go, its queries, its keys and where its blocks begin."""
    queries, keys = given["queries"], given["keys"]
    heads = keys.shape[2], queries.shape[2] // keys.shape[2]
    queries = queries.reshape(*queries.shape[:2], *heads, queries.shape[3])
    longest = min(given["req_to_token"].shape[1], n_blocks * given["block_size"])
    for b, length in enumerate(given["seq_len"].clip(0, longest).tolist()):
        slots = given["req_to_token"][given["req_pool_indices"][b], :length]
        starts = np.arange(0, length, given["block_size"])
        for y, g in np.ndindex(*((queries.shape[0], queries.shape[2]) if length else (0, 0))):
            yield (y, b, g), _floats(queries[y, b, g]), _floats(keys[y, slots, g]), starts


def _floats(values: NDArray[Any]) -> Floats:
    """Any dtype as float32; bfloat16 comes as its bit patterns."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def choose_kv_blocks(
    *,
    block_scores: Floats,
    seq_len: Ints,
    block_size: int,
    n_sink: int,
    n_retrieval: int,
    n_window: int,
) -> dict[str, Any]:
    """R22: sinks, the best between, and the window."""
    n_chosen, n_blocks = n_sink + n_retrieval + n_window, block_scores.shape[-1]
    block, seq_len = np.arange(n_blocks), seq_len.clip(0, n_blocks * block_size)
    n_own = (seq_len + block_size - 1) // block_size
    is_own = (block < n_own[:, None])[None, :, None]
    is_fixed = ((block < n_sink) | (block >= (n_own - n_window)[:, None]))[None, :, None]
    scores = np.where(is_own, np.where(is_fixed, np.inf, block_scores), -np.inf)
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :n_chosen]
    best = np.sort(np.where(best < n_own[None, :, None, None], best, n_blocks), axis=-1)
    blocks = np.full((*best.shape[:3], n_chosen), -1, np.int32)
    blocks[..., : best.shape[-1]] = np.where(best < n_blocks, best, -1)
    return {"blocks": blocks, "near_len": seq_len - np.maximum(n_own - n_chosen, 0) * block_size}


def gather_kv_blocks(
    *,
    near_keys: NDArray[Any],
    near_values: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    blocks: Slots,
    req_to_token: Slots,
    req_pool_indices: Ints,
    seq_len: Ints,
    near_table: Slots,
    block_size: int,
) -> dict[str, Any]:
    """R23: every chosen block into the slots listed for it."""
    n_layers, _, n_heads, _ = blocks.shape
    for b, length in enumerate(seq_len.clip(0, req_to_token.shape[1]).tolist()):
        text = req_to_token[req_pool_indices[b], :length]
        for y, g in np.ndindex(n_layers, n_heads):
            own = blocks[y, b, g]
            position = (own[own >= 0, None] * block_size + np.arange(block_size)).reshape(-1)
            # Chosen blocks stand first and ascend: only the last one may be cut.
            source = text[position[position < length]]
            target = near_table[b, : len(source)]
            near_keys[y, target, g] = keys[y, source, g]
            near_values[y, target, g] = values[y, source, g]
    return {}


def splice_drafted_run(
    *,
    cumu_tokens: Ints,
    cumu_scores: Floats,
    cumu_deltas: Ints,
    prev_indexs: Ints,
    selected: NDArray[np.bool_],
    n_chosen: Slots,
    root_tokens: Ints,
    run_tokens: Ints,
    run_count: Ints,
    node_count: int,
) -> dict[str, Any]:
    """R24: the tree moves behind the run."""
    longest, count = run_tokens.shape[1], run_count[:, None]
    run, old = np.s_[:, 1 : 1 + longest], np.s_[:, 1:node_count]
    new = np.s_[:, 1 + longest : node_count + longest]
    noted = np.zeros_like(cumu_deltas)
    noted[new] = cumu_deltas[old]
    parents = prev_indexs[old]
    prev_indexs[new] = np.where(parents > 0, parents + longest, count)
    cumu_deltas[new] = cumu_deltas[old] + count
    for array in (cumu_tokens, cumu_scores, selected):
        array[new] = array[old].copy()
    is_run = np.arange(longest) < count
    cumu_tokens[:, 0] = root_tokens
    cumu_tokens[run], cumu_scores[run], selected[run] = run_tokens, is_run, is_run
    cumu_deltas[run], prev_indexs[run] = np.arange(1, 1 + longest), np.arange(longest)
    n_chosen += run_count.astype(np.int32)
    return {"noted_depths": noted}
