"""Reference of what a sampled round needs beside its tokens: R15 coins, R16 log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Coins, LogProbabilities
from aerie.kernels.noise import COINS, random_words
from aerie.kernels.numpy_types import Doubles, Floats


@takes_call
def toss_coins(call: Coins) -> dict[str, Any]:
    """R15: 24 bits of a word for each coin."""
    coins = np.zeros((len(call.seed), call.tree_depth + 2), np.float32)
    for b, (key, sample, place) in enumerate(
        zip(call.seed.tolist(), call.sample_index.tolist(), call.position.tolist(), strict=True)
    ):
        words = random_words(call.tree_depth + 2, key, place, sample, COINS)
        coins[b] = (words >> np.uint64(8)) * 2.0**-24
    return {"coins": coins}


@takes_call
def score_target_tokens(call: LogProbabilities) -> dict[str, Any]:
    """R16: log-probabilities of the tokens and of the best beside them."""
    n_rows, vocabulary = call.logits.shape
    chosen = np.zeros(call.rows.shape, np.float32)
    top_tokens = np.full((*call.rows.shape, call.top_n), -1, np.int32)
    top_logprobs = np.zeros((*call.rows.shape, call.top_n), np.float32)
    for entry in np.ndindex(call.rows.shape):
        row, token = int(call.rows[entry]), int(call.tokens[entry])
        n_wanted = int(call.wanted[entry[0]])
        if n_wanted < 0 or not 0 <= row < n_rows or not 0 <= token < vocabulary:
            continue
        exact = np.where(call.logits[row] < np.inf, call.logits[row], -np.inf).astype(np.float64)
        scores = _log_probabilities(exact)
        # Stable on the negated logits: equal ones keep the order of their ids.
        best = np.argsort(-exact, kind="stable")[: min(n_wanted, call.top_n)]
        chosen[entry] = scores[token]
        top_tokens[entry][: len(best)] = best
        top_logprobs[entry][: len(best)] = scores[best]
    return {"chosen_logprobs": chosen, "top_tokens": top_tokens, "top_logprobs": top_logprobs}


def _log_probabilities(exact: Doubles) -> Floats:
    """Of every id of one row of logits."""
    first = int(np.argmax(exact))
    if exact[first] == -np.inf:
        return np.full(len(exact), -np.inf, np.float32)
    away = exact - exact[first]
    rest = np.delete(np.exp(away), first).sum()
    with np.errstate(over="ignore"):  # -inf, where float32 ends
        return (away - np.log1p(rest)).astype(np.float32)
