"""Reference of the verifying kernels: K5 probabilities, K6 walk, the target's own tokens."""

from __future__ import annotations

from collections.abc import Mapping
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
from aerie.kernels.ragged import request_spans
from aerie.kernels.reference.sampling import Sampler
from aerie.kernels.reference.walk import BrokenTreeError, Tree
from aerie.kernels.refusals import Refusals
from aerie.kernels.status import Status


@takes_call
def convert_logits_to_probas(call: Probabilities) -> dict[str, Any]:
    """K5: softmax of each request's rows at its temperature; greedy rows are one-hot."""
    refusals = Refusals(len(call.temperature))
    probas = np.zeros(call.logits.shape, np.float32)
    spans = request_spans(refusals, call.qo_indptr, len(call.logits), most=len(call.logits))
    for b, (heat, rows) in enumerate(zip(call.temperature, spans.ranges(), strict=True)):
        if not 0 <= heat < np.inf:
            refusals.refuse(b, Status.BAD_PARAMETER, 0)
        if refusals.status[b]:
            continue
        is_greedy = heat < np.float32(GREEDY_TEMPERATURE)
        own = {row: call.logits[row] for row in rows}
        scaled = own if is_greedy else {row: _divide(own[row], heat) for row in rows}
        _check_rows(refusals, b, scaled)
        for row in rows if not refusals.status[b] else ():
            if is_greedy:
                probas[row, np.argmax(call.logits[row])] = 1.0
                continue
            raised = _raised(scaled[row])
            probas[row] = (raised / raised.sum()).astype(np.float32)
    return {"target_probas": probas, **refusals.words()}


def _check_rows(refusals: Refusals, b: int, scores: Mapping[int, Floats]) -> None:
    """Refuse a request by its rows as they are chosen from."""
    for row, own in scores.items():
        if np.isnan(own).any() or (own == np.inf).any():
            refusals.refuse(b, Status.NOT_FINITE, row)
    for row, own in scores.items():
        # Quotients may all overflow to -inf, which leaves as little to choose from.
        if (own == -np.inf).all():
            refusals.refuse(b, Status.ALL_MASKED, row)


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
    spans = request_spans(refusals, call.qo_indptr, len(call.draft_tokens))
    links = (call.draft_tokens, call.first_child_row, call.next_sibling_row)
    rows = [array.tolist() for array in links]
    paths = [[-1] * (call.tree_depth + 1) for _ in range(batch)]
    counts, bonus = [0] * batch, [-1] * batch
    said = None if call.target_tokens is None else call.target_tokens.tolist()
    for b, own in enumerate(spans.ranges()):
        span = slice(own.start, own.stop)
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
        if len(own) and not refusals.status[b]:
            path, bonus[b] = verdict
            paths[b][: len(path)] = path
            counts[b] = len(path) - 1
    return {
        "accept_index": np.array(paths, np.int64).reshape(batch, call.tree_depth + 1),
        "accept_count": np.array(counts, np.int64),
        "bonus_token": np.array(bonus, np.int64),
        **refusals.words(),
    }


@takes_call
def sample_target_tokens(call: TargetTokens) -> dict[str, Any]:
    """The target's own token of every row: penalties, filters, then argmax with keyed noise."""
    refusals = Refusals(len(call.temperature))
    chosen = np.full(len(call.logits), -1, np.int64)
    spans = request_spans(refusals, call.qo_indptr, len(call.logits))
    for b, rows in enumerate(spans.ranges()):
        sampler = Sampler.of_request(b, call)
        if not sampler.is_possible():
            refusals.refuse(b, Status.BAD_PARAMETER, 0)
        paths = paths_of(rows, call)
        for token in (token for path in paths for token in path):
            if not 0 <= token < call.logits.shape[1]:
                refusals.refuse(b, Status.OUT_OF_RANGE, token)
        if refusals.status[b]:
            continue
        scores = {
            row: sampler.adjust(call.logits[row], path, int(call.positions[row]))
            for row, path in zip(rows, paths, strict=True)
        }
        _check_rows(refusals, b, scores)
        for row, own in scores.items() if not refusals.status[b] else ():
            chosen[row] = sampler.choose(own, int(call.positions[row]))
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
