"""NumPy text paths: R13 what followed a text's ending before, R14 as nodes of the tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_text import FoundPath, MergedPath
from aerie.kernels.numpy_types import Int32s, Ints


@takes_call
def find_text_path(call: FoundPath) -> dict[str, Any]:
    """R13: the longest known suffix, its latest earlier occurrence, what followed it."""
    batch = len(call.text_len)
    path_tokens = np.full((batch, call.path_length), -1, np.int64)
    path_len, match_len = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    lengths = call.text_len.tolist()
    for b, table_row in enumerate(call.req_pool_indices.tolist()):
        recent = call.text[table_row, max(lengths[b] - call.searched, 0) : lengths[b]]
        size, end = _latest(recent, call.longest)
        if size:
            path = recent[end : end + call.path_length]
            path_tokens[b, : len(path)] = path
            path_len[b], match_len[b] = len(path), size
    return {"path_tokens": path_tokens, "path_len": path_len, "match_len": match_len}


def _latest(recent: Int32s, longest: int) -> tuple[int, int]:
    """Length of the suffix that is found, 0 for none, and where its latest occurrence ends."""
    if len(recent) < 2:
        return 0, 0
    # Where the last token occurs: few places, of which those stay that match one token more.
    ends = (recent[:-1] == recent[-1]).nonzero()[0] + 1
    if not len(ends):
        return 0, 0
    size, end = 1, ends.item(-1)
    while size < longest:
        ends = ends[ends > size]
        if len(ends):
            ends = ends[recent[ends - 1 - size] == recent[-1 - size]]
        if not len(ends):
            break
        size, end = size + 1, ends.item(-1)
    return size, end


@takes_call
def merge_text_path(call: MergedPath) -> dict[str, Any]:
    """R14: walk what is there, append the rest."""
    batch, longest = call.path_tokens.shape
    new = slice(call.node_count, call.node_count + longest)
    call.cumu_tokens[:, new] = 0
    call.cumu_scores[:, new] = 0
    call.cumu_deltas[:, new] = 0
    call.prev_indexs[:, new] = -1
    if not call.path_len.any():
        return {"n_added": np.zeros(batch, np.int64)}
    node_at, n_walked = _walked(call)
    requests, depth = np.arange(batch)[:, None], np.arange(longest + 1)
    ends = n_walked[:, None]
    is_walked = depth <= ends
    is_new = ~is_walked & (depth <= call.path_len[:, None])
    scores = call.cumu_scores[requests, node_at] * is_walked
    is_scored = scores > 0
    base = np.maximum.accumulate(np.where(is_scored, depth, 0), axis=1)
    powers = np.ones((batch, longest + 1))
    powers[:, 1:] = call.confidence[:, None]
    np.multiply.accumulate(powers, axis=1, out=powers)
    worth = scores[requests, base].astype(np.float64) * powers[requests, depth - base]

    request, at = (is_walked & ~is_scored).nonzero()
    call.cumu_scores[request, node_at[request, at]] = worth[request, at]
    request, at = is_new.nonzero()
    place = request, at + (call.node_count - 1) - n_walked[request]
    call.cumu_tokens[place] = call.path_tokens[request, at - 1]
    call.cumu_scores[place] = worth[request, at]
    call.cumu_deltas[place] = at
    is_first = place[1] == call.node_count
    call.prev_indexs[place] = np.where(is_first, node_at[request, n_walked[request]], place[1] - 1)
    return {"n_added": np.add.reduce(is_new, axis=1, dtype=np.int64)}


def _walked(call: MergedPath) -> tuple[Ints, Ints]:
    """The node that the path walks over at each depth [B, T+1], and how many it walks over [B]."""
    nodes = (call.cumu_tokens, call.cumu_deltas, call.prev_indexs)
    tokens, depths, parents = (array[:, : call.node_count] for array in nodes)
    path_tokens, path_len = call.path_tokens, call.path_len
    batch, longest = path_tokens.shape
    node_at, n_walked = np.zeros((batch, longest + 1), np.int64), np.zeros(batch, np.int64)
    # Those still inside their trees, a step at a time: few paths stay there for long.
    inside = path_len.nonzero()[0]
    for step in range(longest):
        is_child = parents[inside] == node_at[inside, step, None]
        is_child &= tokens[inside] == path_tokens[inside, step, None]
        is_child &= depths[inside] == step + 1
        child = is_child.argmax(axis=1)
        is_found = (child > 0) & (path_len[inside] > step)
        inside, child = inside[is_found], child[is_found]
        if not len(inside):
            break
        node_at[inside, step + 1] = child
        n_walked[inside] = step + 1
    return node_at, n_walked
