"""Reference of a preview: R20 to R23 blocks of the KV and their copy, R24 the run it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards import partial_kv as cards
from aerie.kernels.numpy_types import Doubles, Floats, Ints, widened


@takes_call
def weigh_kv_blocks(call: cards.WeighedBlocks) -> dict[str, Any]:
    """R20: softmax of every query head, summed by block."""
    return {"block_scores": _by_block(call, np.float32(0), _mass)}


@takes_call
def bound_kv_blocks(call: cards.BoundedBlocks) -> dict[str, Any]:
    """R21: a query's products with the extremes of every block."""
    return {"block_scores": _by_block(call, np.float32(cards.BEHIND), _bound)}


def _by_block(call: cards.ScoredBlocks, fill: np.float32, score: Callable[..., Doubles]) -> Floats:
    """`score` of every layer, request and KV head, behind the text `fill`."""
    queries, keys, n_blocks, size = call.queries, call.keys, call.n_blocks, call.block_size
    (n_layers, batch), n_heads = queries.shape[:2], keys.shape[2]
    found = np.full((n_layers, batch, n_heads, n_blocks), fill, np.float32)
    group = queries.shape[2] // n_heads
    by_head = queries.reshape(n_layers, batch, n_heads, group, queries.shape[3])
    longest = min(call.req_to_token.shape[1], n_blocks * size)
    for b, length in enumerate(call.seq_len.clip(0, longest).tolist()):
        slots = call.req_to_token[call.req_pool_indices[b], :length]
        starts = np.arange(0, length, size)
        for y, g in np.ndindex(n_layers, n_heads):
            if length:
                own = widened(by_head[y, b, g])
                seen = widened(keys[y, slots, g])
                found[y, b, g, : len(starts)] = score(own, seen, starts)
    return found


def _mass(queries: Doubles, keys: Doubles, starts: Ints) -> Doubles:
    scores = queries @ keys.T  # [Q, positions]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mass: Doubles = np.add.reduceat(weights / weights.sum(axis=1, keepdims=True), starts, axis=1)
    total: Doubles = mass.sum(axis=0)
    return total


def _bound(queries: Doubles, keys: Doubles, starts: Ints) -> Doubles:
    highest, lowest = (np_op.reduceat(keys, starts, axis=0) for np_op in (np.maximum, np.minimum))
    bound: Doubles = np.maximum(queries @ highest.T, queries @ lowest.T).mean(axis=0)
    return bound


@takes_call
def choose_kv_blocks(call: cards.ChosenBlocks) -> dict[str, Any]:
    """R22: sinks, the best between, and the window."""
    n_layers, batch, n_heads, n_blocks = call.block_scores.shape
    most = call.n_sink + call.n_retrieval + call.n_window
    blocks = np.full((n_layers, batch, n_heads, most), -1, np.int32)
    near_len = np.zeros(batch, np.int64)
    for b, length in enumerate(call.seq_len.clip(0, n_blocks * call.block_size).tolist()):
        n_own = -(-length // call.block_size)
        sinks = range(min(call.n_sink, n_own))
        window = range(max(len(sinks), n_own - call.n_window), n_own)
        between = range(len(sinks), window.start)
        for y, g in np.ndindex(n_layers, n_heads):
            scores = call.block_scores[y, b, g]
            best = sorted(between, key=lambda j: (-scores[j], j))[: call.n_retrieval]
            chosen = sorted([*sinks, *best, *window])
            blocks[y, b, g, : len(chosen)] = chosen
        near_len[b] = length - (n_own - min(n_own, most)) * call.block_size
    return {"blocks": blocks, "near_len": near_len}


@takes_call
def gather_kv_blocks(call: cards.GatheredBlocks) -> dict[str, Any]:
    """R23: every chosen block into the slots listed for it."""
    n_layers, _, n_heads, n_chosen = call.blocks.shape
    step = np.arange(call.block_size)
    place = np.arange(n_chosen)[:, None] * call.block_size + step
    for b, length in enumerate(call.seq_len.clip(0, call.req_to_token.shape[1]).tolist()):
        text = call.req_to_token[call.req_pool_indices[b]]
        for y, g in np.ndindex(n_layers, n_heads):
            block = call.blocks[y, b, g].astype(np.int64)[:, None]
            position = block * call.block_size + step
            is_copied = (block >= 0) & (position < length)
            source, target = text[position[is_copied]], call.near_table[b, place[is_copied]]
            call.near_keys[y, target, g] = call.keys[y, source, g]
            call.near_values[y, target, g] = call.values[y, source, g]
    return {}


@takes_call
def splice_drafted_run(call: cards.SplicedRun) -> dict[str, Any]:
    """R24: the tree moves behind the run."""
    longest, count = call.run_tokens.shape[1], call.run_count[:, None]
    run, old = np.s_[:, 1 : 1 + longest], np.s_[:, 1 : call.node_count]
    new = np.s_[:, 1 + longest : call.node_count + longest]
    noted = np.zeros_like(call.cumu_deltas)
    noted[new] = call.cumu_deltas[old]
    parents = call.prev_indexs[old]
    call.prev_indexs[new] = np.where(parents > 0, parents + longest, count)
    call.cumu_deltas[new] = call.cumu_deltas[old] + count
    for array in (call.cumu_tokens, call.cumu_scores, call.selected):
        array[new] = array[old].copy()
    is_run = np.arange(longest) < count
    call.cumu_tokens[:, 0] = call.root_tokens
    call.cumu_tokens[run] = call.run_tokens
    call.cumu_scores[run], call.selected[run] = is_run, is_run
    call.cumu_deltas[run], call.prev_indexs[run] = np.arange(1, 1 + longest), np.arange(longest)
    call.n_chosen += call.run_count.astype(np.int32)
    return {"noted_depths": noted}
