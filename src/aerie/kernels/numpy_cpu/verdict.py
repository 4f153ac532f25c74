"""NumPy K6: the accepted root path of each request and the token after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.verdict import RejectSample
from aerie.kernels.numpy_cpu.ragged import request_spans
from aerie.kernels.numpy_cpu.refusals import Refusals
from aerie.kernels.numpy_cpu.walk import BrokenTreeError, Tree


@takes_call
def draft_tree_reject_sample(call: RejectSample) -> dict[str, Any]:
    """K6: the accepted root path of each request and the token after it."""
    batch = len(call.qo_indptr) - 1
    refusals = Refusals(batch)
    spans = request_spans(refusals, call.qo_indptr, len(call.draft_tokens))
    links = (call.draft_tokens, call.first_child_row, call.next_sibling_row)
    rows = [array.tolist() for array in links]
    paths = [[-1] * (call.tree_depth + 1) for _ in range(batch)]
    counts, bonus = [0] * batch, [-1] * batch
    said = None if call.target_tokens is None else call.target_tokens.tolist()
    for b, (first, count) in enumerate(zip(*spans.lists(), strict=True)):
        span = slice(first, first + count)
        tree = Tree(*(array[span] for array in rows))
        try:
            tree.check()
            if said is not None:
                verdict = tree.match(said[span], call.tree_depth)
            else:
                assert call.target_probas is not None and call.coins is not None
                coins = call.coins[b].tolist()
                verdict = tree.toss(call.target_probas[span], coins, call.tree_depth)
        except BrokenTreeError as broken:
            refusals.refuse(b, broken.code, broken.value)
            continue
        if count and not refusals.status[b]:
            path, bonus[b] = verdict
            paths[b][: len(path)] = path
            counts[b] = len(path) - 1
    return {
        "accept_index": np.array(paths, np.int64).reshape(batch, call.tree_depth + 1),
        "accept_count": np.array(counts, np.int64),
        "bonus_token": np.array(bonus, np.int64),
        **refusals.words(),
    }
