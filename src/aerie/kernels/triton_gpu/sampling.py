"""Triton `sample_target_tokens` without penalties and filters: a streaming argmax with noise.

The noise of a token is made where it is added and never stored. Two launches: the best of every
(row, part of the vocabulary), then the best of each row and the refusals of each request.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.triton_gpu.device import (
    ALL_MASKED,
    BAD_PARAMETER,
    NOT_FINITE,
    best_of,
    first_where,
    owner_of,
    refuse,
    request_span,
)
from aerie.kernels.triton_gpu.launch import MAX_BATCH, MAX_VERIFY, words

# Below this temperature a request is greedy.
GREEDY_TEMPERATURE = tl.constexpr(1e-6)
# What a rough sum of value and noise may lack: the noise's own error and one rounding of the sum.
ROUGH_ERROR = tl.constexpr(1e-3)
ROUGH_SHARE = tl.constexpr(1e-6)
VOCAB_BLOCK = 2048
# Enough programs for every multiprocessor of a large card several times over.
PROGRAMS = 512
MOST_PARTS = 64


def parts_of(n_rows: int, vocab: int) -> tuple[int, int]:
    """Into how many parts a row is cut, and how long one is: a multiple of the block."""
    n_blocks = triton.cdiv(vocab, VOCAB_BLOCK)
    n_parts = max(1, min(n_blocks, MOST_PARTS, PROGRAMS // max(n_rows, 1)))
    blocks_each = triton.cdiv(n_blocks, n_parts)
    return triton.cdiv(n_blocks, blocks_each), blocks_each * VOCAB_BLOCK


@triton.jit
def _words(start, seed, position, sample, V: tl.constexpr):
    """Random words of the ids from `start` on, a multiple of 4: one Philox call for four. [V]"""
    group = (start // 4 + tl.arange(0, V // 4)).to(tl.uint32)
    second = tl.zeros([V // 4], tl.uint32) + (position + 1).to(tl.uint32)
    third = tl.zeros([V // 4], tl.uint32) + sample.to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, group, second, third, tl.zeros([V // 4], tl.uint32))
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [V]).to(tl.uint32)


@triton.jit
def _gumbel(word):
    """Noise of random words, in float64 and rounded once."""
    # 1 - v is a multiple of 2^-33 and therefore exact in float64, so log(1 - v) is log1p(-v).
    rest = (1.0 - 2.0**-33) - word.to(tl.float64) * 2.0**-32
    return (-tl.log(-tl.log(rest))).to(tl.float32)


@triton.jit
def _rough_gumbel(word):
    """The same noise in float32 with fast logarithms: within 1e-4 of it, see the test. [V]"""
    v = (word.to(tl.float32) + 0.5) * 2.0**-32
    # 1 - v from the word's complement: a difference in float32 would lose a small rest.
    rest = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.0**-32
    # A logarithm near 1 has few digits, so small v take the series of -log(1 - v).
    series = v * (1 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4 + v * (1 / 5 + v / 6)))))
    return -tl.log(tl.where(v < 0.0625, series, -tl.log(rest)))


@triton.jit(do_not_specialize=("batch", "part_size", "n_parts"))
def _best_kernel(
    logits, positions, temperature, qo_indptr, seed, sample_index, values_out, ids_out, bad_out,
    tokens_out, batch, vocab, part_size, n_parts,
    NOISE: tl.constexpr, SAMPLES: tl.constexpr, V: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Best value and id of one part of one row, and whether it holds NaN or +inf."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    owner = owner_of(row, qo_indptr, batch, B)
    if part == 0:
        tl.store(tokens_out + row, -1)
    if owner < B:
        heat = tl.load(temperature + owner)
        is_hot = heat >= GREEDY_TEMPERATURE
        divisor = tl.where(is_hot, heat, 1.0)
        best = tl.full([], float("-inf"), tl.float32)
        best_id = tl.zeros([], tl.int32)
        bad = tl.zeros([], tl.int32)
        end = tl.minimum((part + 1) * part_size, vocab)
        for start in range(part * part_size, end, V):
            ids = start + tl.arange(0, V)
            x = tl.load(
                logits + row.to(tl.int64) * vocab + ids, mask=ids < vocab, other=float("-inf")
            )
            if NOISE:
                x = tl.div_rn(x, tl.zeros([V], tl.float32) + divisor)
            bad |= tl.max(((x != x) | (x == float("inf"))).to(tl.int32), axis=0)
            if NOISE:
                if is_hot:
                    index = tl.zeros([], tl.int64)
                    if SAMPLES:
                        index = tl.load(sample_index + owner)
                    key = tl.load(seed + owner)
                    word = _words(start, key, tl.load(positions + row), index, V)
                    # Float64 logarithms cost ten times the rest: only where they may decide.
                    rough = tl.max(tl.where(x == x, x + _rough_gumbel(word), best), axis=0)
                    if rough + ROUGH_ERROR + tl.abs(rough) * ROUGH_SHARE >= best:
                        best, best_id = best_of(x + _gumbel(word), ids, best, best_id)
                else:
                    best, best_id = best_of(x, ids, best, best_id)
            else:
                best, best_id = best_of(x, ids, best, best_id)
        place = row * n_parts + part
        tl.store(values_out + place, best)
        tl.store(ids_out + place, best_id)
        tl.store(bad_out + place, bad)


@triton.jit(do_not_specialize=("n_rows", "n_parts"))
def _choose_kernel(
    values, ids, bad, temperature, qo_indptr, tokens_out, status_out, detail_out, n_rows, n_parts,
    NOISE: tl.constexpr, B: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Best of each row of one request, and why the request is refused if it is."""
    request = tl.program_id(0)
    first, count, status, detail = request_span(qo_indptr, request, n_rows, Q, B, True)
    heat = tl.load(temperature + request)
    is_possible = (heat >= 0) & (heat < float("inf"))
    if not NOISE:
        is_possible &= heat < GREEDY_TEMPERATURE
    status, detail = refuse(status, detail, BAD_PARAMETER, is_possible == 0, 0)
    row = first + tl.arange(0, Q)
    is_row = tl.arange(0, Q) < count
    best = tl.full([Q], float("-inf"), tl.float32)
    best_id = tl.zeros([Q], tl.int32)
    is_bad = tl.zeros([Q], tl.int32)
    for part in range(n_parts):
        place = row * n_parts + part
        value = tl.load(values + place, mask=is_row, other=float("-inf"))
        found = tl.load(ids + place, mask=is_row, other=0)
        is_bad |= tl.load(bad + place, mask=is_row, other=0)
        # Later parts hold higher ids, so an equal value does not displace.
        best_id = tl.where(value > best, found, best_id)
        best = tl.maximum(best, value)
    is_any, bad_row = first_where(is_row & (is_bad > 0), row, Q)
    status, detail = refuse(status, detail, NOT_FINITE, is_any, bad_row)
    is_any, masked_row = first_where(is_row & (best == float("-inf")), row, Q)
    status, detail = refuse(status, detail, ALL_MASKED, is_any, masked_row)
    tl.store(tokens_out + row, best_id.to(tl.int64), mask=is_row & (status == 0))
    tl.store(status_out + request, status)
    tl.store(detail_out + request, detail)


def sample_target_tokens(
    *,
    logits: Tensor,
    positions: Tensor,
    temperature: Tensor,
    qo_indptr: Tensor,
    seed: Tensor | None = None,
    sample_index: Tensor | None = None,
) -> dict[str, Tensor]:
    """The target's own token of every row, greedy or at a temperature with keyed noise."""
    n_rows, vocab = logits.shape
    batch, device = temperature.shape[0], logits.device
    tokens = torch.empty(n_rows, dtype=torch.int64, device=device)
    found = words(batch, device)
    n_parts, part_size = parts_of(n_rows, vocab)
    values = torch.empty(n_rows, n_parts, device=device)
    ids = torch.empty(n_rows, n_parts, dtype=torch.int32, device=device)
    bad = torch.empty_like(ids)
    noise = {"NOISE": seed is not None, "B": MAX_BATCH}
    heat, indptr = temperature.contiguous(), qo_indptr.contiguous()
    if n_rows:
        _best_kernel[(n_rows, n_parts)](
            logits.contiguous(), positions.contiguous(), heat, indptr,
            positions if seed is None else seed.contiguous(),
            positions if sample_index is None else sample_index.contiguous(),
            values, ids, bad, tokens, batch, vocab, part_size, n_parts,
            SAMPLES=sample_index is not None, V=VOCAB_BLOCK, **noise,
        )  # fmt: skip
    if batch:
        _choose_kernel[(batch,)](
            values, ids, bad, heat, indptr, tokens, *found.values(), n_rows, n_parts,
            Q=MAX_VERIFY, **noise,
        )  # fmt: skip
    return {"target_tokens": tokens, **found}
