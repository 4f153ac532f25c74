"""NumPy R15 coins, R16 log-probabilities and R17 near ties."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Coins, LogProbabilities, NearTies
from aerie.kernels.noise import COINS, gumbel_of
from aerie.kernels.numpy_cpu.noise import random_words
from aerie.kernels.numpy_cpu.sampling import GREEDY, adjusted, filtered, words_of
from aerie.kernels.numpy_types import Bools, Floats, Ints, Words
from aerie.kernels.ragged import request_spans
from aerie.kernels.refusals import Refusals, outside

_EXPONENT = np.uint32(0x7F800000)
_LOWEST = np.finfo(np.float32).min  # all but -inf are at least that


@takes_call
def toss_coins(call: Coins) -> dict[str, Any]:
    """R15: 24 bits of a word for each coin."""
    count = call.tree_depth + 2
    words = random_words(count, call.seed, call.position, call.sample_index, COINS)[:, :count]
    return {"coins": (words >> 8).astype(np.float32) * np.float32(2.0**-24)}


@takes_call
def score_target_tokens(call: LogProbabilities) -> dict[str, Any]:
    """R16: log-probabilities of the tokens and of the best beside them."""
    n_rows, vocab = call.logits.shape
    chosen = np.zeros(call.rows.shape, np.float32)
    top_tokens = np.full((*call.rows.shape, call.top_n), -1, np.int32)
    top_logprobs = np.zeros((*call.rows.shape, call.top_n), np.float32)
    is_used = ~outside(call.rows, n_rows) & ~outside(call.tokens, vocab)
    is_used &= (call.wanted >= 0)[:, None]
    for b, place in zip(*(index.tolist() for index in is_used.nonzero()), strict=True):
        scored = _Row(call.logits[call.rows[b, place]])
        best = scored.best(min(int(call.wanted[b]), call.top_n, vocab))
        chosen[b, place] = scored.of(call.tokens[b, place])
        top_tokens[b, place, : len(best)] = best
        top_logprobs[b, place, : len(best)] = scored.of(best)
    return {"chosen_logprobs": chosen, "top_tokens": top_tokens, "top_logprobs": top_logprobs}


class _Row:
    """The logits of one row, and the logarithm of what lies beside their maximum."""

    def __init__(self, logits: Floats) -> None:
        first = int(logits.argmax())
        if not logits[first] < np.inf:  # a NaN is its row's maximum
            logits = np.where(logits < np.inf, logits, np.float32(-np.inf))
            first = int(logits.argmax())
        self._values = logits
        self._peak = float(logits[first]) if logits[first] > -np.inf else 0.0
        raised = np.exp(logits.astype(np.float64) - self._peak)
        raised[first] = 0
        self._rest = float(np.log1p(raised.sum()))

    def of(self, ids: Any) -> Any:
        """Log-probabilities of some ids."""
        exact = (self._values[ids].astype(np.float64) - self._peak) - self._rest
        with np.errstate(over="ignore"):  # -inf, where float32 ends
            return exact.astype(np.float32)

    def best(self, count: int) -> Ints:
        """The best ids, by value and then by id."""
        if not count:
            return np.zeros(0, np.int64)
        values = self._values
        least = np.partition(values, len(values) - count)[len(values) - count]
        able = (values >= least).nonzero()[0]
        return able[(-values[able]).argsort(kind="stable")[:count]]


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
    own = scores[token] + gumbel_of(words[token : token + 1])[0]
    # The noise falls as its word grows: a runner-up too far away with the largest needs none.
    able = (scores + gumbel_of(words.min(keepdims=True)) >= own - span).nonzero()[0]
    sums = scores[able] + gumbel_of(words[able])
    close = able[(sums >= own - span) & (sums <= own) & (sums > -np.inf) & (able != token)]
    # Few rows have any, so that filters, which sort, are asked last.
    return bool(len(close)) and bool((filtered(scores, request, call)[close] > -np.inf).any())
