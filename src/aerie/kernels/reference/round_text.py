"""Reference of text paths: R13 what followed a text's ending before, R14 as nodes of the tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_text import FoundPath, MergedPath


@takes_call
def find_text_path(call: FoundPath) -> dict[str, Any]:
    """R13: the longest known suffix, its latest earlier occurrence, what followed it."""
    batch = len(call.text_len)
    path_tokens = np.full((batch, call.path_length), -1, np.int64)
    path_len, match_len = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    for b in range(batch):
        recent = call.text[call.req_pool_indices[b], : call.text_len[b]][-call.searched :].tolist()
        size, end = _latest(recent, call.longest)
        path = recent[end : end + call.path_length] if size else []
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


@takes_call
def merge_text_path(call: MergedPath) -> dict[str, Any]:
    """R14: walk what is there, append the rest."""
    batch, longest = call.path_tokens.shape
    unused = slice(call.node_count, call.node_count + longest)
    for array in (call.cumu_tokens, call.cumu_scores, call.cumu_deltas):
        array[:, unused] = 0
    call.prev_indexs[:, unused] = -1
    n_added = np.zeros(batch, np.int64)
    for b in range(batch):
        node, base, power = 0, float(call.cumu_scores[b, 0]), 1.0
        for depth, token in enumerate(call.path_tokens[b, : call.path_len[b]], start=1):
            is_child = (call.prev_indexs[b, : call.node_count] == node) & (
                call.cumu_deltas[b, : call.node_count] == depth
            )
            is_child &= call.cumu_tokens[b, : call.node_count] == token
            known = [int(child) for child in np.nonzero(is_child)[0] if child > 0]
            child = known[0] if known else call.node_count + int(n_added[b])
            if not known:
                call.cumu_tokens[b, child] = token
                call.cumu_deltas[b, child] = depth
                call.prev_indexs[b, child] = node
                n_added[b] += 1
            if known and call.cumu_scores[b, child] > 0:
                base, power = float(call.cumu_scores[b, child]), 1.0
            else:
                power *= float(call.confidence[b])
                call.cumu_scores[b, child] = base * power
            node = child
    return {"n_added": n_added}
