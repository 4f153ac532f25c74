"""NumPy R15 coins and R16 log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Coins, LogProbabilities
from aerie.kernels.noise import COINS
from aerie.kernels.numpy_cpu.noise import random_words
from aerie.kernels.numpy_types import Floats, Ints
from aerie.kernels.refusals import outside


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
