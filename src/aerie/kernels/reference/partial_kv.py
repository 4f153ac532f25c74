"""Reference of a preview: R20 to R23 blocks of the KV and their copy, R24 the run it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.reference.round_draft import as_float32

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]
Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
BEHIND = np.float32(-3e38)  # bound of a block behind the text


def weigh_kv_blocks(*, n_blocks: int, **given: Any) -> dict[str, Any]:
    """R20: softmax of every query head, summed by block."""
    return {"block_scores": _by_block(given, n_blocks, np.float32(0), _mass)}


def bound_kv_blocks(*, n_blocks: int, **given: Any) -> dict[str, Any]:
    """R21: a query's products with the extremes of every block."""
    return {"block_scores": _by_block(given, n_blocks, BEHIND, _bound)}


def _by_block(
    given: dict[str, Any], n_blocks: int, fill: np.float32, score: Callable[..., Wide]
) -> Floats:
    """`score` of every layer, request and KV head, behind the text `fill`."""
    queries, keys, size = given["queries"], given["keys"], given["block_size"]
    (n_layers, batch), n_heads = queries.shape[:2], keys.shape[2]
    found = np.full((n_layers, batch, n_heads, n_blocks), fill, np.float32)
    group = queries.shape[2] // n_heads
    by_head = queries.reshape(n_layers, batch, n_heads, group, queries.shape[3])
    longest = min(given["req_to_token"].shape[1], n_blocks * size)
    for b, length in enumerate(given["seq_len"].clip(0, longest).tolist()):
        slots = given["req_to_token"][given["req_pool_indices"][b], :length]
        starts = np.arange(0, length, size)
        for y, g in np.ndindex(n_layers, n_heads):
            if length:
                own = as_float32(by_head[y, b, g]).astype(np.float64)
                seen = as_float32(keys[y, slots, g]).astype(np.float64)
                found[y, b, g, : len(starts)] = score(own, seen, starts)
    return found


def _mass(queries: Wide, keys: Wide, starts: Ints) -> Wide:
    scores = queries @ keys.T  # [Q, positions]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mass: Wide = np.add.reduceat(weights / weights.sum(axis=1, keepdims=True), starts, axis=1)
    total: Wide = mass.sum(axis=0)
    return total


def _bound(queries: Wide, keys: Wide, starts: Ints) -> Wide:
    highest, lowest = (np_op.reduceat(keys, starts, axis=0) for np_op in (np.maximum, np.minimum))
    bound: Wide = np.maximum(queries @ highest.T, queries @ lowest.T).mean(axis=0)
    return bound


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
    n_layers, batch, n_heads, n_blocks = block_scores.shape
    blocks = np.full((n_layers, batch, n_heads, n_sink + n_retrieval + n_window), -1, np.int32)
    near_len = np.zeros(batch, np.int64)
    for b, length in enumerate(seq_len.clip(0, n_blocks * block_size).tolist()):
        n_own = -(-length // block_size)
        sinks = range(min(n_sink, n_own))
        window = range(max(len(sinks), n_own - n_window), n_own)
        between = range(len(sinks), window.start)
        for y, g in np.ndindex(n_layers, n_heads):
            scores = block_scores[y, b, g]
            best = sorted(between, key=lambda j: (-scores[j], j))[:n_retrieval]
            chosen = sorted([*sinks, *best, *window])
            blocks[y, b, g, : len(chosen)] = chosen
        n_chosen = min(n_own, n_sink + n_retrieval + n_window)
        near_len[b] = length - (n_own - n_chosen) * block_size
    return {"blocks": blocks, "near_len": near_len}


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
        text = req_to_token[req_pool_indices[b]]
        for y, g in np.ndindex(n_layers, n_heads):
            for place, block in enumerate(blocks[y, b, g].tolist()):
                if block < 0:
                    continue
                begin = block * block_size
                source = text[begin : min(begin + block_size, length)]
                first = place * block_size
                target = near_table[b, first : first + len(source)]
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
    batch, longest = run_tokens.shape
    noted = np.zeros_like(cumu_deltas)
    run, old = slice(1, 1 + longest), slice(1, node_count)
    new = slice(1 + longest, node_count + longest)
    for b in range(batch):
        count = int(run_count[b])
        noted[b, new] = cumu_deltas[b, old]
        parents = prev_indexs[b, old].copy()
        prev_indexs[b, new] = np.where(parents > 0, parents + longest, count)
        cumu_deltas[b, new] = cumu_deltas[b, old] + count
        for array in (cumu_tokens, cumu_scores, selected):
            array[b, new] = array[b, old].copy()
        cumu_tokens[b, 0] = root_tokens[b]
        cumu_tokens[b, run] = run_tokens[b]
        cumu_deltas[b, run] = np.arange(1, 1 + longest)
        prev_indexs[b, run] = np.arange(longest)
        selected[b, run] = cumu_scores[b, run] = np.arange(longest) < count
        n_chosen[b] += count
    return {"noted_depths": noted}
