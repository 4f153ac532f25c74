"""NumPy R17: tokens whose choice numerics may turn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.numpy_cpu.noise import gumbel, random_words
from aerie.kernels.numpy_cpu.ragged import request_spans
from aerie.kernels.numpy_cpu.refusals import Refusals, outside
from aerie.kernels.numpy_cpu.sampling import GREEDY_TEMPERATURE, adjusted, filtered

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_EXPONENT = np.uint32(0x7F800000)


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
    """R17: greedy entries all at once, sampled ones one by one."""
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
    heat = temperature[request]
    is_hot = heat >= GREEDY_TEMPERATURE
    with np.errstate(all="ignore"):
        reach = limit[request] * power
        reach = np.where(is_hot, reach / np.where(is_hot, heat, np.float32(1)), reach)
        sums, own = scores[entry], scores[entry, token]
        for k in is_hot.nonzero()[0].tolist():
            where = positions[row[k]]
            sums[k], own[k] = _noisy(sums[k], token[k], request[k], where, reach[k], options)
        is_close = (sums >= (own - reach)[:, None]) & (sums <= own[:, None]) & (sums > -np.inf)
    is_close[np.arange(len(token)), token] = False
    near[request, place] = is_close.any(axis=1)
    return {"near_ties": near}


def _noisy(
    scores: Floats, token: Any, request: Any, position: Any, reach: np.float32, options: Any
) -> tuple[Floats, np.float32]:
    """Sums of what the filters keep, -inf where none comes near the token's; and its own."""
    index = options["sample_index"][request] if "sample_index" in options else np.int64(0)
    seed, place, sample = (np.array([n]) for n in (options["seed"][request], position, index))
    words = random_words(len(scores), seed, place, sample)[0, : len(scores)]
    own = scores[token] + gumbel(words[token : token + 1])[0]
    kept = filtered(scores, request, options)
    # The noise falls as its word grows: who is too far away with the largest needs none.
    able = (kept + gumbel(words.min(keepdims=True)) >= own - reach).nonzero()[0]
    sums = np.full_like(scores, -np.inf)
    sums[able] = kept[able] + gumbel(words[able])
    return sums, own
