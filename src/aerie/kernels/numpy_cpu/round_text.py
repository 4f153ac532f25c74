"""NumPy text paths: R13 what followed a text's ending before, R14 as nodes of the tree."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Tokens = NDArray[np.int32]


def find_text_path(
    *,
    text: Tokens,
    req_pool_indices: Ints,
    text_len: Ints,
    longest: int,
    path_length: int,
    searched: int,
) -> dict[str, Any]:
    """R13: the longest known suffix, its latest earlier occurrence, what followed it."""
    batch = len(text_len)
    path_tokens = np.full((batch, path_length), -1, np.int64)
    path_len, match_len = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    lengths = text_len.tolist()
    for b, table_row in enumerate(req_pool_indices.tolist()):
        recent = text[table_row, max(lengths[b] - searched, 0) : lengths[b]]
        size, end = _latest(recent, longest)
        if size:
            path = recent[end : end + path_length]
            path_tokens[b, : len(path)] = path
            path_len[b], match_len[b] = len(path), size
    return {"path_tokens": path_tokens, "path_len": path_len, "match_len": match_len}


def _latest(recent: Tokens, longest: int) -> tuple[int, int]:
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


def merge_text_path(
    *,
    cumu_tokens: Ints,
    cumu_scores: Floats,
    cumu_deltas: Ints,
    prev_indexs: Ints,
    path_tokens: Ints,
    path_len: Ints,
    confidence: Floats,
    node_count: int,
) -> dict[str, Any]:
    """R14: walk what is there, append the rest."""
    batch, longest = path_tokens.shape
    new = slice(node_count, node_count + longest)
    cumu_tokens[:, new] = 0
    cumu_scores[:, new] = 0
    cumu_deltas[:, new] = 0
    prev_indexs[:, new] = -1
    if not path_len.any():
        return {"n_added": np.zeros(batch, np.int64)}
    old = slice(0, node_count)
    node_at, n_walked = _walked(
        cumu_tokens[:, old], cumu_deltas[:, old], prev_indexs[:, old], path_tokens, path_len
    )
    requests, depth = np.arange(batch)[:, None], np.arange(longest + 1)
    ends = n_walked[:, None]
    is_walked = depth <= ends
    is_new = ~is_walked & (depth <= path_len[:, None])
    scores = cumu_scores[requests, node_at] * is_walked
    is_scored = scores > 0
    base = np.maximum.accumulate(np.where(is_scored, depth, 0), axis=1)
    powers = np.ones((batch, longest + 1))
    powers[:, 1:] = confidence[:, None]
    np.multiply.accumulate(powers, axis=1, out=powers)
    worth = scores[requests, base].astype(np.float64) * powers[requests, depth - base]

    request, at = (is_walked & ~is_scored).nonzero()
    cumu_scores[request, node_at[request, at]] = worth[request, at]
    request, at = is_new.nonzero()
    place = request, at + (node_count - 1) - n_walked[request]
    cumu_tokens[place] = path_tokens[request, at - 1]
    cumu_scores[place] = worth[request, at]
    cumu_deltas[place] = at
    is_first = place[1] == node_count
    prev_indexs[place] = np.where(is_first, node_at[request, n_walked[request]], place[1] - 1)
    return {"n_added": np.add.reduce(is_new, axis=1, dtype=np.int64)}


def _walked(
    tokens: Ints, depths: Ints, parents: Ints, path_tokens: Ints, path_len: Ints
) -> tuple[Ints, Ints]:
    """The node that the path walks over at each depth [B, T+1], and how many it walks over [B]."""
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
