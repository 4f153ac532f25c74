"""NumPy `sample_target_tokens`: penalties, filters, then argmax with keyed noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.numpy_cpu.noise import best_with_noise, random_words
from aerie.kernels.numpy_cpu.ragged import Spans, request_spans
from aerie.kernels.numpy_cpu.refusals import Refusals, outside
from aerie.kernels.status import Status

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Options = Mapping[str, NDArray[Any]]

GREEDY_TEMPERATURE = np.float32(1e-6)

# What an option's value must be; NaN fails every comparison.
_POSSIBLE: dict[str, Callable[[NDArray[Any]], Bools]] = {
    "top_k": lambda v: v >= 0,
    "top_p": lambda v: (v > 0) & (v <= 1),
    "min_p": lambda v: (v >= 0) & (v <= 1),
    "repetition_penalty": lambda v: (v > 0) & (v < np.inf),
    "presence_penalty": np.isfinite,
    "frequency_penalty": np.isfinite,
}
_PENALTIES = frozenset(("repetition_penalty", "presence_penalty", "frequency_penalty"))


def sample_target_tokens(
    *,
    logits: Floats,
    positions: Ints,
    temperature: Floats,
    qo_indptr: NDArray[np.int32],
    draft_tokens: Ints | None = None,
    ancestor_bits: NDArray[np.uint32] | None = None,
    **options: NDArray[Any],
) -> dict[str, Any]:
    """The target's own token of every row; work that no argument asks for is not done."""
    refusals = Refusals(len(temperature))
    spans = request_spans(refusals, qo_indptr, len(logits))
    highest_heat = np.inf if "seed" in options else GREEDY_TEMPERATURE
    is_possible = (temperature >= 0) & (temperature < highest_heat)
    for name in _POSSIBLE.keys() & options.keys():
        is_possible &= _POSSIBLE[name](options[name])
    refusals.add(Status.BAD_PARAMETER, ~is_possible, np.zeros(len(temperature), np.int64))
    layout = (draft_tokens, ancestor_bits)
    scores = adjusted(refusals, spans, logits, positions, temperature, layout, options)
    chosen = scores.argmax(axis=1)
    # A NaN is its row's maximum.
    peak = scores[spans.entries, chosen]
    if not np.isfinite(peak).all():
        for code, is_bad in (
            (Status.NOT_FINITE, ~(peak < np.inf)),
            (Status.ALL_MASKED, peak == -np.inf),
        ):
            refusals.add_at(code, spans.owner[is_bad], spans.flat[is_bad])
    if "seed" in options:
        is_drawn = ~(temperature < GREEDY_TEMPERATURE) & (refusals.status == 0)
        drawn = is_drawn[spans.owner].nonzero()[0]
        chosen[drawn] = _draw(scores, drawn, spans, positions, options)
    if refusals.found:
        chosen[(refusals.status != 0)[spans.owner]] = -1
    return {"target_tokens": _by_row(chosen, spans, len(logits)), **refusals.words()}


def adjusted(
    refusals: Refusals,
    spans: Spans,
    logits: Floats,
    positions: Ints,
    temperature: Floats,
    layout: tuple[Ints | None, NDArray[np.uint32] | None],
    options: Options,
) -> Floats:
    """Scores of every entry as filters and noise find them; `layout` is tokens and ancestors."""
    draft_tokens, ancestor_bits = layout
    if not options and draft_tokens is None:
        return spans.of(logits)
    path = np.zeros((2, 0), np.int64)
    if draft_tokens is not None and ancestor_bits is not None:
        path = _path_tokens(refusals, spans, draft_tokens, ancestor_bits, logits.shape[1])
    with np.errstate(all="ignore"):
        scores = _penalised(spans.of(logits), spans, path, options)
        if "floor_position" in options:
            scores = _without_stops(scores, spans, positions, options)
        if "seed" in options:
            heat = temperature.copy()
            heat[temperature < GREEDY_TEMPERATURE] = 1
            scores = scores / heat[spans.owner, None]
    return scores


def _by_row(chosen: Ints, spans: Spans, n_rows: int) -> Ints:
    """Tokens of the entries at their flat rows; rows of no request have -1."""
    if spans.is_whole:
        return chosen
    tokens = np.full(n_rows, -1)
    tokens[spans.flat] = chosen
    return tokens


def _path_tokens(
    refusals: Refusals, spans: Spans, draft_tokens: Ints, ancestor_bits: Any, vocab: int
) -> Ints:
    """(entry, token) of every row's ancestors and itself, without row 0, which is committed.

    Refuses requests with a path token outside the vocabulary. [2, n]
    """
    words = np.ascontiguousarray(spans.of(ancestor_bits))
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")  # [T, 128]
    bits[:, 0] = 0
    entry, row = bits.nonzero()
    is_row = row < spans.count[spans.owner[entry]]
    entry, row = entry[is_row], row[is_row]
    tokens = spans.of(draft_tokens)[spans.base[entry] + row]
    is_foreign = outside(tokens, vocab)
    if is_foreign.any():
        refusals.add_at(Status.OUT_OF_RANGE, spans.owner[entry[is_foreign]], tokens[is_foreign])
    return np.stack((entry, tokens))[:, ~is_foreign]


def _penalised(scores: Floats, spans: Spans, path: Ints, options: Options) -> Floats:
    """Penalties over committed and path tokens, then the bias; every step rounds to float32."""
    if _PENALTIES & options.keys():
        produced = np.zeros(scores.shape, np.int64)  # a count of int32's largest may grow
        if "output_counts" in options:
            produced += options["output_counts"][spans.owner]
        np.add.at(produced, (path[0], path[1]), 1)
        if "repetition_penalty" in options:
            seen = produced > 0
            if "prompt_counts" in options:
                seen |= options["prompt_counts"][spans.owner] > 0
            penalty = options["repetition_penalty"][spans.owner, None]
            penalised = np.where(scores > 0, scores / penalty, scores * penalty)
            scores = np.where(seen, penalised, scores)
        if "frequency_penalty" in options:
            penalty = options["frequency_penalty"][spans.owner, None]
            scores = scores - penalty * produced.astype(np.float32)
        if "presence_penalty" in options:
            penalty = options["presence_penalty"][spans.owner, None]
            scores = scores - np.where(produced > 0, penalty, np.float32(0))
    if "logit_bias" in options:
        scores = scores + options["logit_bias"][spans.owner]
    return scores


def _without_stops(scores: Floats, spans: Spans, positions: Ints, options: Options) -> Floats:
    """-inf at the stop tokens of every entry whose next token stands before its floor."""
    floor, position = options["floor_position"][spans.owner], spans.of(positions)
    # Not the second comparison alone: behind int64's largest position comes its smallest.
    short = ((position < floor) & (position + 1 < floor)).nonzero()[0]
    if not len(short):
        return scores
    stops = options["stop_tokens"][spans.owner[short]]  # [n, S]
    is_id = ~outside(stops, scores.shape[1])
    scores = scores.copy()
    scores[short[is_id.nonzero()[0]], stops[is_id]] = -np.inf
    return scores


def _draw(scores: Floats, drawn: Ints, spans: Spans, positions: Ints, options: Options) -> Ints:
    """The token of each drawn entry: what the filters leave, plus its noise."""
    if not len(drawn):
        return drawn
    owner = spans.owner[drawn]
    index = options["sample_index"][owner] if "sample_index" in options else np.zeros_like(owner)
    position = positions[spans.flat[drawn]]
    words = random_words(scores.shape[1], options["seed"][owner], position, index)
    tokens = np.empty_like(drawn)
    for place, (entry, request) in enumerate(zip(drawn.tolist(), owner.tolist(), strict=True)):
        kept = filtered(scores[entry], request, options)
        tokens[place] = best_with_noise(kept, words[place, : scores.shape[1]])
    return tokens


def filtered(scores: Floats, request: int, options: Options) -> Floats:
    """-inf for ids that top-k, then top-p over what it leaves, then min-p remove."""
    top_k, top_p, min_p = (
        options[name].item(request) if name in options else off
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))
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
