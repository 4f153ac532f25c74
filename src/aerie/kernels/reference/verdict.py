"""Reference of the verifying kernels: K5 probabilities, K6 walk, the target's own tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.verdict import (
    GREEDY_TEMPERATURE,
    Probabilities,
    RejectSample,
    Sampled,
    TargetTokens,
)
from aerie.kernels.numpy_types import Doubles, Floats, Ints, Words
from aerie.kernels.reference.ragged import request_rows
from aerie.kernels.reference.refusals import Refusals
from aerie.kernels.reference.sampling import Sampler
from aerie.kernels.reference.walk import Walk
from aerie.kernels.status import Status


@takes_call
def convert_logits_to_probas(call: Probabilities) -> dict[str, Any]:
    """K5: softmax of each request's rows at its temperature; greedy rows are one-hot."""
    refusals = Refusals(len(call.temperature))
    probas = np.zeros(call.logits.shape, np.float32)
    for b, heat in enumerate(call.temperature):
        rows = request_rows(refusals, b, call.qo_indptr, len(call.logits), most=len(call.logits))
        if not 0 <= heat < np.inf:
            refusals.add(b, Status.BAD_PARAMETER, 0)
        if refusals.refused(b):
            continue
        is_greedy = heat < np.float32(GREEDY_TEMPERATURE)
        own = {row: call.logits[row] for row in rows}
        scaled = own if is_greedy else {row: _divide(own[row], heat) for row in rows}
        for row in rows:
            if np.isnan(scaled[row]).any() or (scaled[row] == np.inf).any():
                refusals.add(b, Status.NOT_FINITE, row)
        for row in rows:
            # Quotients may all overflow to -inf, which leaves as little to choose from.
            if (scaled[row] == -np.inf).all():
                refusals.add(b, Status.ALL_MASKED, row)
        for row in rows if not refusals.refused(b) else ():
            if is_greedy:
                probas[row, np.argmax(call.logits[row])] = 1.0
                continue
            raised = _raised(scaled[row])
            probas[row] = (raised / raised.sum()).astype(np.float32)
    return {"target_probas": probas, **refusals.words()}


def _divide(logits: Floats, temperature: np.float32) -> Floats:
    with np.errstate(over="ignore"):
        return logits / temperature


def _raised(scaled: Floats) -> Doubles:
    with np.errstate(over="ignore"):
        return np.exp((scaled - scaled.max()).astype(np.float64))


@takes_call
def draft_tree_reject_sample(call: RejectSample) -> dict[str, Any]:
    """K6: the accepted root path of each request and the token after it."""
    batch = len(call.qo_indptr) - 1
    refusals = Refusals(batch)
    accept_index = np.full((batch, call.tree_depth + 1), -1, np.int64)
    accept_count = np.zeros(batch, np.int64)
    bonus_token = np.full(batch, -1, np.int64)
    for b in range(batch):
        rows = request_rows(refusals, b, call.qo_indptr, len(call.draft_tokens))
        span = slice(rows.start, rows.stop)
        links = call.first_child_row[span], call.next_sibling_row[span]
        walk = Walk(call.draft_tokens[span], *links)
        walk.check(refusals, b)
        if call.target_probas is not None and call.coins is not None:
            _check_coins(refusals, b, walk.tokens, call.target_probas[span], call.coins[b])
        if refusals.refused(b) or not len(rows):
            continue
        if call.target_tokens is not None:
            verdict = walk.match(call.target_tokens[span], call.tree_depth)
        else:
            assert call.target_probas is not None and call.coins is not None
            verdict = walk.toss(call.target_probas[span], call.coins[b], call.tree_depth)
        if verdict is None:
            refusals.add(b, Status.TOO_DEEP, call.tree_depth + 1)
            continue
        path, bonus = verdict
        accept_index[b, : len(path)] = path
        accept_count[b] = len(path) - 1
        bonus_token[b] = bonus
    return {
        "accept_index": accept_index,
        "accept_count": accept_count,
        "bonus_token": bonus_token,
        **refusals.words(),
    }


def _check_coins(refusals: Refusals, b: int, tokens: Ints, probas: Floats, coins: Floats) -> None:
    vocabulary = probas.shape[1]
    # The root's token was decided in an earlier round and is not looked up.
    for token in tokens[1:]:
        if not 0 <= token < vocabulary:
            refusals.add(b, Status.OUT_OF_RANGE, int(token))
    for row, row_probas in enumerate(probas):
        if not (np.isfinite(row_probas) & (row_probas >= 0)).all():
            refusals.add(b, Status.NOT_FINITE, row)
    for column, coin in enumerate(coins):
        if not 0.0 <= coin < 1.0:
            refusals.add(b, Status.BAD_PARAMETER, column)


@takes_call
def sample_target_tokens(call: TargetTokens) -> dict[str, Any]:
    """The target's own token of every row: penalties, filters, then argmax with keyed noise."""
    refusals = Refusals(len(call.temperature))
    chosen = np.full(len(call.logits), -1, np.int64)
    for b in range(len(call.temperature)):
        sampler = Sampler.of_request(b, call)
        rows = request_rows(refusals, b, call.qo_indptr, len(call.logits))
        if not sampler.is_possible():
            refusals.add(b, Status.BAD_PARAMETER, 0)
        paths = paths_of(rows, call)
        for token in (token for path in paths for token in path):
            if not 0 <= token < call.logits.shape[1]:
                refusals.add(b, Status.OUT_OF_RANGE, token)
        if refusals.refused(b):
            continue
        scores = [
            sampler.adjust(call.logits[row], path, int(call.positions[row]))
            for row, path in zip(rows, paths, strict=True)
        ]
        for row, row_scores in zip(rows, scores, strict=True):
            if np.isnan(row_scores).any() or (row_scores == np.inf).any():
                refusals.add(b, Status.NOT_FINITE, row)
        for row, row_scores in zip(rows, scores, strict=True):
            if (row_scores == -np.inf).all():
                refusals.add(b, Status.ALL_MASKED, row)
        if not refusals.refused(b):
            for row, row_scores in zip(rows, scores, strict=True):
                chosen[row] = sampler.choose(row_scores, int(call.positions[row]))
    return {"target_tokens": chosen, **refusals.words()}


def paths_of(rows: range, call: Sampled) -> list[list[int]]:
    """Tokens of the path of every row of one request."""
    if call.draft_tokens is None:
        return [[] for _ in rows]
    tokens = call.draft_tokens[rows.start : rows.stop]
    return [_path_tokens(call.ancestor_bits[row], tokens) for row in rows]


def _path_tokens(bits: Words, tokens: Ints) -> list[int]:
    """Tokens of a row's ancestors and itself, without row 0: the root is already committed."""
    return [
        int(token)
        for j, token in enumerate(tokens)
        if j > 0 and (int(bits[j // 32]) >> (j % 32)) & 1
    ]
