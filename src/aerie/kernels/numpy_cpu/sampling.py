"""NumPy `sample_target_tokens`: penalties, filters, then argmax with keyed noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.call import takes_call
from aerie.kernels.cards.verdict import GREEDY_TEMPERATURE, POSSIBLE, Sampled, TargetTokens
from aerie.kernels.numpy_cpu.noise import best_with_noise, random_words
from aerie.kernels.numpy_types import Floats, Ints, Words
from aerie.kernels.ragged import Spans, request_spans
from aerie.kernels.refusals import Refusals, outside
from aerie.kernels.status import Status

GREEDY = np.float32(GREEDY_TEMPERATURE)


@takes_call
def sample_target_tokens(call: TargetTokens) -> dict[str, Any]:
    """The target's own token of every row; work that no argument asks for is not done."""
    refusals = Refusals(len(call.temperature))
    spans = request_spans(refusals, call.qo_indptr, len(call.logits))
    highest_heat = GREEDY if call.seed is None else np.inf
    is_possible = (call.temperature >= 0) & (call.temperature < highest_heat)
    for name, rule in POSSIBLE.items():
        if (values := getattr(call, name)) is not None:
            is_possible &= rule(values)
    refusals.add(Status.BAD_PARAMETER, ~is_possible, np.zeros(len(call.temperature), np.int64))
    scores = adjusted(refusals, spans, call)
    chosen = scores.argmax(axis=1)
    # A NaN is its row's maximum.
    peak = scores[spans.entries, chosen]
    if not np.isfinite(peak).all():
        for code, is_bad in (
            (Status.NOT_FINITE, ~(peak < np.inf)),
            (Status.ALL_MASKED, peak == -np.inf),
        ):
            refusals.add_at(code, spans.owner[is_bad], spans.flat[is_bad])
    if call.seed is not None:
        is_drawn = ~(call.temperature < GREEDY) & (refusals.status == 0)
        drawn = is_drawn[spans.owner].nonzero()[0]
        chosen[drawn] = _draw(scores, drawn, spans, call)
    if refusals.found:
        chosen[(refusals.status != 0)[spans.owner]] = -1
    return {"target_tokens": _by_row(chosen, spans, len(call.logits)), **refusals.words()}


def adjusted(refusals: Refusals, spans: Spans, call: Sampled) -> Floats:
    """Scores of every entry as filters and noise find them."""
    scores = spans.of(call.logits)
    path = np.zeros((2, 0), np.int64)
    if call.draft_tokens is not None:
        path = _path_tokens(refusals, spans, call)
    with np.errstate(all="ignore"):
        scores = _penalised(scores, spans, path, call)
        if call.floor_position is not None:
            scores = _without_stops(scores, spans, call)
        if call.seed is not None:
            heat = call.temperature.copy()
            heat[heat < GREEDY] = 1
            scores = scores / heat[spans.owner, None]
    return scores


def _by_row(chosen: Ints, spans: Spans, n_rows: int) -> Ints:
    """Tokens of the entries at their flat rows; rows of no request have -1."""
    if spans.is_whole:
        return chosen
    tokens = np.full(n_rows, -1)
    tokens[spans.flat] = chosen
    return tokens


def _path_tokens(refusals: Refusals, spans: Spans, call: Sampled) -> Ints:
    """(entry, token) of every row's ancestors and itself, without row 0, which is committed.

    Refuses requests with a path token outside the vocabulary. [2, n]
    """
    words = np.ascontiguousarray(spans.of(call.ancestor_bits))
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")  # [T, 128]
    bits[:, 0] = 0
    entry, row = bits.nonzero()
    is_row = row < spans.count[spans.owner[entry]]
    entry, row = entry[is_row], row[is_row]
    tokens = spans.of(call.draft_tokens)[spans.base[entry] + row]
    is_foreign = outside(tokens, call.logits.shape[1])
    if is_foreign.any():
        refusals.add_at(Status.OUT_OF_RANGE, spans.owner[entry[is_foreign]], tokens[is_foreign])
    return np.stack((entry, tokens))[:, ~is_foreign]


def _penalised(scores: Floats, spans: Spans, path: Ints, call: Sampled) -> Floats:
    """Penalties over committed and path tokens, then the bias; every step rounds to float32."""
    repetition, frequency = call.repetition_penalty, call.frequency_penalty
    presence = call.presence_penalty
    if not (repetition is None and frequency is None and presence is None):
        produced = np.zeros(scores.shape, np.int64)  # a count of int32's largest may grow
        if call.output_counts is not None:
            produced += call.output_counts[spans.owner]
        np.add.at(produced, (path[0], path[1]), 1)
        if repetition is not None:
            seen = produced > 0
            if call.prompt_counts is not None:
                seen |= call.prompt_counts[spans.owner] > 0
            penalty = repetition[spans.owner, None]
            penalised = np.where(scores > 0, scores / penalty, scores * penalty)
            scores = np.where(seen, penalised, scores)
        if frequency is not None:
            scores = scores - frequency[spans.owner, None] * produced.astype(np.float32)
        if presence is not None:
            penalty = presence[spans.owner, None]
            scores = scores - np.where(produced > 0, penalty, np.float32(0))
    if call.logit_bias is not None:
        scores = scores + call.logit_bias[spans.owner]
    return scores


def _without_stops(scores: Floats, spans: Spans, call: Sampled) -> Floats:
    """-inf at the stop tokens of every entry whose next token stands before its floor."""
    floor, position = call.floor_position[spans.owner], spans.of(call.positions)
    # Not the second comparison alone: behind int64's largest position comes its smallest.
    short = ((position < floor) & (position + 1 < floor)).nonzero()[0]
    if not len(short):
        return scores
    stops = call.stop_tokens[spans.owner[short]]  # [n, S]
    is_id = ~outside(stops, scores.shape[1])
    scores = scores.copy()
    scores[short[is_id.nonzero()[0]], stops[is_id]] = -np.inf
    return scores


def _draw(scores: Floats, drawn: Ints, spans: Spans, call: Sampled) -> Ints:
    """The token of each drawn entry: what the filters leave, plus its noise."""
    if not len(drawn):
        return drawn
    owner = spans.owner[drawn]
    words = words_of(call, owner, call.positions[spans.flat[drawn]])
    tokens = np.empty_like(drawn)
    for place, (entry, request) in enumerate(zip(drawn.tolist(), owner.tolist(), strict=True)):
        kept = filtered(scores[entry], request, call)
        tokens[place] = best_with_noise(kept, words[place, : scores.shape[1]])
    return tokens


def words_of(call: Sampled, owner: Ints, position: Ints) -> Words:
    """The words of the noise of every id, one row for each of these positions."""
    index = np.zeros_like(owner) if call.sample_index is None else call.sample_index[owner]
    return random_words(call.logits.shape[1], call.seed[owner], position, index)


def filtered(scores: Floats, request: int, call: Sampled) -> Floats:
    """-inf for ids that top-k, then top-p over what it leaves, then min-p remove."""
    top_k, top_p, min_p = (
        off if values is None else values.item(request)
        for values, off in ((call.top_k, 0), (call.top_p, 1.0), (call.min_p, 0.0))
    )
    if not (0 < top_k < len(scores) or top_p < 1 or min_p > 0):
        return scores
    is_kept = np.ones(len(scores), np.bool_)
    mass = np.exp((scores - scores.max()).astype(np.float64))
    if 0 < top_k < len(scores) or top_p < 1:
        # Value descending, id ascending: stable on the negated scores.
        order = (-scores).argsort(kind="stable")
        n_kept = min(top_k, len(scores)) if top_k > 0 else len(scores)
        if top_p < 1:
            # A token stays while the mass before it is below the share; before the first is none.
            running = mass[order[:n_kept]].cumsum()
            n_kept = 1 + int(np.searchsorted(running[:-1], top_p * running[-1]))
        is_kept[order[n_kept:]] = False
    if min_p > 0:
        is_kept &= mass >= min_p
    return np.where(is_kept, scores, np.float32(-np.inf))
