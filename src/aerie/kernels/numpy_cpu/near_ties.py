"""NumPy R17: tokens whose choice numerics may turn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.numpy_cpu.noise import gumbel, random_words
from aerie.kernels.numpy_cpu.ragged import request_spans
from aerie.kernels.numpy_cpu.refusals import Refusals, outside
from aerie.kernels.numpy_cpu.sampling import GREEDY_TEMPERATURE, Options, adjusted, filtered

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_EXPONENT = np.uint32(0x7F800000)
_LOWEST = np.finfo(np.float32).min  # all but -inf are at least that


def find_near_ties(
    *,
    logits: Floats,
    positions: Ints,
    temperature: Floats,
    qo_indptr: NDArray[np.int32],
    rows: Ints,
    tokens: Ints,
    limit: Floats,
    draft_tokens: Ints | None = None,
    ancestor_bits: NDArray[np.uint32] | None = None,
    **options: NDArray[Any],
) -> dict[str, Any]:
    """R17: greedy entries all at once, sampled ones one by one; their noise together."""
    near = np.zeros(rows.shape, np.bool_)
    is_used = ~outside(rows, len(logits)) & ~outside(tokens, logits.shape[1])
    request, place = is_used.nonzero()
    if not len(request):
        return {"near_ties": near}
    refusals = Refusals(len(temperature))
    spans = request_spans(refusals, qo_indptr, len(logits))
    layout = (draft_tokens, ancestor_bits)
    scores = adjusted(refusals, spans, logits, positions, temperature, layout, options)
    row, token = rows[request, place], tokens[request, place]
    entry = row if spans.is_whole else np.searchsorted(spans.flat, row)
    power = (logits[row, token].view(np.uint32) & _EXPONENT).view(np.float32)
    hot = (temperature[request] >= GREEDY_TEMPERATURE).nonzero()[0]
    with np.errstate(all="ignore"):
        reach = limit[request] * power
        if len(hot) < len(request):  # of what is drawn this is overwritten
            near[request, place] = _are_close(scores[entry], token, reach)
        if len(hot):
            owner = request[hot]
            span, position = reach[hot] / temperature[owner], positions[row[hot]]
            near[owner, place[hot]] = _drawn_closely(
                scores[entry[hot]], token[hot], owner, position, span, options
            )
    return {"near_ties": near}


def _are_close(sums: Floats, tokens: Ints, reach: Floats) -> NDArray[np.bool_]:
    """Whether each of these best tokens is a near tie; one row of sums for each."""
    each = np.arange(len(tokens))
    own = sums[each, tokens]
    low = np.maximum(own - reach, _LOWEST)
    is_close: NDArray[np.bool_] = (sums >= low[:, None]) & (sums <= own[:, None])
    is_close[each, tokens] = False
    found: NDArray[np.bool_] = np.logical_or.reduce(is_close, axis=1)
    return found


def _drawn_closely(
    scores: Floats, tokens: Ints, request: Ints, position: Ints, reach: Floats, options: Options
) -> list[bool]:
    """Whether each of these sampled tokens is a near tie; one row of scores for each."""
    index = options["sample_index"][request] if "sample_index" in options else 0 * request
    words = random_words(scores.shape[1], options["seed"][request], position, index)
    found = []
    for x, token, word, b, span in zip(scores, tokens, words, request, reach, strict=True):
        word = word[: len(x)]
        own = x[token] + gumbel(word[token : token + 1])[0]
        # The noise falls as its word grows: a runner-up too far away with the largest needs none.
        able = (x + gumbel(word.min(keepdims=True)) >= own - span).nonzero()[0]
        sums = x[able] + gumbel(word[able])
        close = able[(sums >= own - span) & (sums <= own) & (sums > -np.inf) & (able != token)]
        # Few rows have any, so that filters, which sort, are asked last.
        found.append(bool(len(close)) and bool((filtered(x, b, options)[close] > -np.inf).any()))
    return found
