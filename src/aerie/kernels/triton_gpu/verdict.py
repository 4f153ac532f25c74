"""Triton K5: softmax of ragged rows, streamed: statistics, refusals, then the probabilities."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MAX_BATCH, MAX_VERIFY
from aerie.kernels.cards.verdict import Probabilities
from aerie.kernels.triton_gpu.device import (
    ALL_MASKED,
    BAD_PARAMETER,
    FAR,
    NOT_FINITE,
    best_of,
    owner_of,
    refuse,
    request_span,
)
from aerie.kernels.triton_gpu.launch import contiguous, words
from aerie.kernels.triton_gpu.sampling import VOCAB_BLOCK, parts_of
from aerie.kernels.triton_gpu.sampling_order import GREEDY_TEMPERATURE


@triton.jit
def softmax_step(x, peak, mass):
    """Running maximum and float64 sum of exp(x - maximum) after one more block."""
    top = tl.maximum(peak, tl.max(tl.where(x == x, x, float("-inf")), axis=0))
    # Nothing but -inf so far: the differences would be NaN.
    base = tl.where(top == float("-inf"), 0.0, top)
    # Differences in float64: a part's own maximum must not round a term otherwise than the row's.
    scale = tl.exp(peak.to(tl.float64) - base.to(tl.float64))
    return top, mass * scale + tl.sum(tl.exp(x.to(tl.float64) - base.to(tl.float64)), axis=0)


@triton.jit
def softmax_join(peaks, masses):
    """Maximum and sum of a row from those of its parts."""
    peak = tl.max(peaks, axis=0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    return peak, tl.sum(masses * tl.exp(peaks.to(tl.float64) - base.to(tl.float64)), axis=0)


@triton.jit(do_not_specialize=("batch", "part_size", "n_parts"))
def _statistics_kernel(
    logits, temperature, qo_indptr, peaks_out, masses_out, ids_out, bad_out, batch, vocab,
    part_size, n_parts, V: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Maximum, its first id, sum and finiteness of one part of one row."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    owner = owner_of(row, qo_indptr, batch, B)
    if owner < B:
        heat = tl.load(temperature + owner)
        divisor = tl.zeros([V], tl.float32) + tl.where(heat >= GREEDY_TEMPERATURE, heat, 1.0)
        peak = tl.full([], float("-inf"), tl.float32)
        best = tl.full([], float("-inf"), tl.float32)
        mass = tl.zeros([], tl.float64)
        best_id = tl.zeros([], tl.int32)
        bad = tl.zeros([], tl.int32)
        for start in range(part * part_size, tl.minimum((part + 1) * part_size, vocab), V):
            ids = start + tl.arange(0, V)
            x = tl.load(
                logits + row.to(tl.int64) * vocab + ids, mask=ids < vocab, other=float("-inf")
            )
            x = tl.div_rn(x, divisor)
            is_bad = (x != x) | (x == float("inf"))
            bad |= tl.max(is_bad.to(tl.int32), axis=0)
            x = tl.where(is_bad, float("-inf"), x)
            best, best_id = best_of(x, ids, best, best_id)
            peak, mass = softmax_step(x, peak, mass)
        place = row * n_parts + part
        tl.store(peaks_out + place, peak)
        tl.store(masses_out + place, mass)
        tl.store(ids_out + place, best_id)
        tl.store(bad_out + place, bad)


@triton.jit(do_not_specialize=("n_rows", "n_parts"))
def _refusal_kernel(
    peaks, bad, temperature, qo_indptr, status_out, detail_out, n_rows, n_parts,
    B: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Why one request is refused, if it is."""
    request = tl.program_id(0)
    first, count, status, detail = request_span(qo_indptr, request, n_rows, 0, B, False)
    heat = tl.load(temperature + request)
    is_possible = (heat >= 0) & (heat < float("inf"))
    status, detail = refuse(status, detail, BAD_PARAMETER, is_possible == 0, 0)
    bad_row = tl.full([], FAR, tl.int64)
    masked_row = tl.full([], FAR, tl.int64)
    for start in range(0, count, Q):
        row = first + start + tl.arange(0, Q)
        is_row = start + tl.arange(0, Q) < count
        is_bad = tl.zeros([Q], tl.int32)
        peak = tl.full([Q], float("-inf"), tl.float32)
        for part in range(n_parts):
            place = row * n_parts + part
            is_bad |= tl.load(bad + place, mask=is_row, other=0)
            peak = tl.maximum(peak, tl.load(peaks + place, mask=is_row, other=float("-inf")))
        is_masked = is_row & (peak == float("-inf")) & (is_bad == 0)
        bad_row = tl.minimum(bad_row, tl.min(tl.where(is_row & (is_bad > 0), row, FAR), axis=0))
        masked_row = tl.minimum(masked_row, tl.min(tl.where(is_masked, row, FAR), axis=0))
    status, detail = refuse(status, detail, NOT_FINITE, bad_row < FAR, bad_row)
    status, detail = refuse(status, detail, ALL_MASKED, masked_row < FAR, masked_row)
    tl.store(status_out + request, status)
    tl.store(detail_out + request, detail)


@triton.jit(do_not_specialize=("batch", "part_size", "n_parts"))
def _write_kernel(
    logits, temperature, qo_indptr, peaks, masses, ids, status, probas_out, batch, vocab,
    part_size, n_parts, V: tl.constexpr, B: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Probabilities of one part of one row; zeros where the row has no standing request."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    owner = owner_of(row, qo_indptr, batch, B)
    is_dead = owner >= B
    if owner < B:
        is_dead = tl.load(status + owner) != 0
    asked = tl.minimum(owner, batch - 1)
    heat = tl.load(temperature + asked)
    is_greedy = heat < GREEDY_TEMPERATURE
    divisor = tl.zeros([V], tl.float32) + tl.where(is_greedy | is_dead, 1.0, heat)
    piece = tl.arange(0, S)
    is_piece = (piece < n_parts) & (is_dead == 0)
    place = row * n_parts + piece
    found = tl.load(peaks + place, mask=is_piece, other=float("-inf"))
    peak, mass = softmax_join(found, tl.load(masses + place, mask=is_piece, other=0.0))
    best = tl.min(
        tl.where(is_piece & (found == peak), tl.load(ids + place, mask=is_piece, other=0), vocab),
        axis=0,
    )
    base = row.to(tl.int64) * vocab
    for start in range(part * part_size, tl.minimum((part + 1) * part_size, vocab), V):
        at = start + tl.arange(0, V)
        x = tl.load(logits + base + at, mask=at < vocab, other=float("-inf"))
        raised = tl.exp((tl.div_rn(x, divisor) - peak).to(tl.float64))
        p = tl.where(is_greedy, (at == best).to(tl.float32), (raised / mass).to(tl.float32))
        tl.store(probas_out + base + at, tl.where(is_dead, 0.0, p), mask=at < vocab)


@takes_call
def convert_logits_to_probas(call: Probabilities) -> dict[str, Tensor]:
    """K5: softmax of each request's rows at its temperature; greedy rows are one-hot."""
    n_rows, vocab = call.logits.shape
    batch, device = call.temperature.shape[0], call.logits.device
    probas = torch.empty(n_rows, vocab, device=device)
    found = words(batch, device)
    if batch == 0:
        return {"target_probas": probas.zero_(), **found}
    n_parts, part_size = parts_of(n_rows, vocab)
    peaks = torch.empty(n_rows, n_parts, device=device)
    masses = torch.empty(n_rows, n_parts, dtype=torch.float64, device=device)
    ids = torch.empty(n_rows, n_parts, dtype=torch.int32, device=device)
    bad = torch.empty_like(ids)
    rows, heat, indptr = contiguous(call.logits, call.temperature, call.qo_indptr)
    sizes = (batch, vocab, part_size, n_parts)
    if n_rows:
        _statistics_kernel[(n_rows, n_parts)](
            rows, heat, indptr, peaks, masses, ids, bad, *sizes, V=VOCAB_BLOCK, B=MAX_BATCH
        )
    _refusal_kernel[(batch,)](
        peaks, bad, heat, indptr, *found.values(), n_rows, n_parts, B=MAX_BATCH, Q=MAX_VERIFY
    )
    if n_rows:
        _write_kernel[(n_rows, n_parts)](
            rows, heat, indptr, peaks, masses, ids, found["status"], probas, *sizes,
            V=VOCAB_BLOCK, B=MAX_BATCH, S=64,
        )  # fmt: skip
    return {"target_probas": probas, **found}
