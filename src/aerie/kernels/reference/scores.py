"""Reference of what goes with a round's tokens: R15 coins, R16 scores, R17 near ties, R26 masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Coins, Forbidden, LogProbabilities, NearTies
from aerie.kernels.noise import COINS, random_words
from aerie.kernels.numpy_types import Doubles, Floats, as_float32
from aerie.kernels.reference.sampling import Sampler
from aerie.kernels.reference.verdict import paths_of


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


@takes_call
def find_near_ties(call: NearTies) -> dict[str, Any]:
    """R17: every sum of an entry's row is held against the sum of its token."""
    n_rows, vocabulary = call.logits.shape
    near = np.zeros(call.rows.shape, np.bool_)
    for entry in np.ndindex(call.rows.shape):
        row, token, b = int(call.rows[entry]), int(call.tokens[entry]), entry[0]
        if not 0 <= row < n_rows or not 0 <= token < vocabulary:
            continue
        sampler = Sampler.of_request(b, call)
        own = range(int(call.qo_indptr[b]), int(call.qo_indptr[b + 1]))
        path = paths_of(own, call)[row - own.start]
        position = int(call.positions[row])
        scores = sampler.adjust(call.logits[row], path, position)
        reach = sampler.reach(call.logits[row, token], np.float32(call.limit[b]))
        near[entry] = sampler.is_near_tie(scores, token, position, reach)
    return {"near_ties": near}


@takes_call
def forbid_tokens(call: Forbidden) -> dict[str, Any]:
    """R26: only rows that have a mask are looked at."""
    masked = as_float32(call.logits)
    rows = np.arange(len(call.logits))
    seat = np.searchsorted(np.sort(call.ends), rows, side="right") - 1
    known = np.minimum(np.maximum(seat, 0), max(len(call.first) - 1, 0))
    begin = call.first[known] if len(call.first) else np.zeros(len(rows), np.int32)
    mask = begin.astype(np.int64) + rows - call.ends[known]
    is_mask = (begin > 0) & (mask > 0) & (mask < len(call.bits))
    is_bound = is_mask & (seat == known) & (len(call.first) > 0)
    for r in np.flatnonzero(is_bound).tolist():
        # Bytes of a little-endian word stand in the order of its bits.
        words = np.ascontiguousarray(call.bits[mask[r]]).view(np.uint8)
        allowed = np.unpackbits(words, bitorder="little").view(np.bool_)
        if call.token_ids is None:
            n_known = min(len(allowed), masked.shape[1])
            masked[r, :n_known][~allowed[:n_known]] = -np.inf
            masked[r, n_known:] = -np.inf
        else:
            own = call.token_ids[min(seat[r], len(call.token_ids) - 1)]
            is_id = (own >= 0) & (own < len(allowed))
            masked[r, ~(is_id & allowed[np.where(is_id, own, 0)])] = -np.inf
    return {"masked": masked}
