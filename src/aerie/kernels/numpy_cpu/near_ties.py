"""NumPy R17: tokens whose choice numerics may turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import NearTies
from aerie.kernels.numpy_cpu.noise import gumbel
from aerie.kernels.numpy_cpu.sampling import GREEDY, adjusted, filtered, words_of
from aerie.kernels.numpy_types import Bools, Floats, Ints, Words
from aerie.kernels.ragged import request_spans
from aerie.kernels.refusals import Refusals, outside

_EXPONENT = np.uint32(0x7F800000)
_LOWEST = np.finfo(np.float32).min  # all but -inf are at least that


@takes_call
def find_near_ties(call: NearTies) -> dict[str, Any]:
    """R17: greedy entries all at once, sampled ones one by one; their noise together."""
    near = np.zeros(call.rows.shape, np.bool_)
    is_used = ~outside(call.rows, len(call.logits)) & ~outside(call.tokens, call.logits.shape[1])
    request, place = is_used.nonzero()
    if not len(request):
        return {"near_ties": near}
    refusals = Refusals(len(call.temperature))
    spans = request_spans(refusals, call.qo_indptr, len(call.logits))
    scores = adjusted(refusals, spans, call)
    row, token = call.rows[request, place], call.tokens[request, place]
    entry = row if spans.is_whole else np.searchsorted(spans.flat, row)
    power = (call.logits[row, token].view(np.uint32) & _EXPONENT).view(np.float32)
    hot = (call.temperature[request] >= GREEDY).nonzero()[0]
    with np.errstate(all="ignore"):
        reach = call.limit[request] * power
        if len(hot) < len(request):  # of what is drawn this is overwritten
            near[request, place] = _are_close(scores[entry], token, reach)
        if len(hot):
            owner = request[hot]
            span = reach[hot] / call.temperature[owner]
            words = words_of(call, owner, call.positions[row[hot]])
            drawn = zip(scores[entry[hot]], token[hot], words, owner, span, strict=True)
            near[owner, place[hot]] = [_is_drawn_closely(call, *each) for each in drawn]
    return {"near_ties": near}


def _are_close(sums: Floats, tokens: Ints, reach: Floats) -> Bools:
    """Whether each of these best tokens is a near tie; one row of sums for each."""
    each = np.arange(len(tokens))
    own = sums[each, tokens]
    low = np.maximum(own - reach, _LOWEST)
    is_close: Bools = (sums >= low[:, None]) & (sums <= own[:, None])
    is_close[each, tokens] = False
    found: Bools = np.logical_or.reduce(is_close, axis=1)
    return found


def _is_drawn_closely(
    call: NearTies, scores: Floats, token: int, words: Words, request: int, span: np.float32
) -> bool:
    """Whether a sampled token is a near tie, by the scores of its row and their noise's words."""
    words = words[: len(scores)]
    own = scores[token] + gumbel(words[token : token + 1])[0]
    # The noise falls as its word grows: a runner-up too far away with the largest needs none.
    able = (scores + gumbel(words.min(keepdims=True)) >= own - span).nonzero()[0]
    sums = scores[able] + gumbel(words[able])
    close = able[(sums >= own - span) & (sums <= own) & (sums > -np.inf) & (able != token)]
    # Few rows have any, so that filters, which sort, are asked last.
    return bool(len(close)) and bool((filtered(scores, request, call)[close] > -np.inf).any())
