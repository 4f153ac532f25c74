"""Reference of text paths: R13 what followed a text's ending before, R14 as nodes of the tree."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def find_text_path(
    *,
    text: NDArray[np.int32],
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
    for b in range(batch):
        recent = text[req_pool_indices[b], : text_len[b]][-searched:].tolist()
        size, end = _latest(recent, longest)
        path = recent[end : end + path_length] if size else []
        path_tokens[b, : len(path)] = path
        path_len[b], match_len[b] = len(path), size
    return {"path_tokens": path_tokens, "path_len": path_len, "match_len": match_len}


def _latest(recent: list[int], longest: int) -> tuple[int, int]:
    """Length of the suffix that is found, 0 for none, and where its latest occurrence ends."""
    for size in range(min(longest, len(recent) - 1), 0, -1):
        for start in range(len(recent) - size - 1, -1, -1):
            if recent[start : start + size] == recent[-size:]:
                return size, start + size
    return 0, 0


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
    unused = slice(node_count, node_count + longest)
    for array, fill in ((cumu_tokens, 0), (cumu_scores, 0), (cumu_deltas, 0), (prev_indexs, -1)):
        array[:, unused] = fill
    n_added = np.zeros(batch, np.int64)
    for b in range(batch):
        node, base, power = 0, float(cumu_scores[b, 0]), 1.0
        for depth, token in enumerate(path_tokens[b, : path_len[b]], start=1):
            is_child = (prev_indexs[b, :node_count] == node) & (
                cumu_deltas[b, :node_count] == depth
            )
            is_child &= cumu_tokens[b, :node_count] == token
            known = [int(child) for child in np.nonzero(is_child)[0] if child > 0]
            child = known[0] if known else node_count + int(n_added[b])
            if not known:
                cumu_tokens[b, child] = token
                cumu_deltas[b, child] = depth
                prev_indexs[b, child] = node
                n_added[b] += 1
            if known and cumu_scores[b, child] > 0:
                base, power = float(cumu_scores[b, child]), 1.0
            else:
                power *= float(confidence[b])
                cumu_scores[b, child] = base * power
            node = child
    return {"n_added": n_added}
