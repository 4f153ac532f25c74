"""Triton R15 coins and R16 log-probabilities, streamed over the vocabulary.

R16 reads 4V bytes for every entry that is asked for, and nothing for the others. Sums go block by
block, however many programs share a row: the bits of a log-probability depend on its row alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Coins, LogProbabilities
from aerie.kernels.triton_gpu.draft_top import best_keys, id_of, sortable, value_of
from aerie.kernels.triton_gpu.launch import block, contiguous, launch
from aerie.kernels.triton_gpu.noise import COINS, NO_ID, words_of
from aerie.kernels.triton_gpu.sampling import MOST_PARTS, VOCAB_BLOCK, parts_of

K_BLOCK = 32
LOWEST = tl.constexpr(-(1 << 63))
NO_KEY = tl.constexpr((1 << 63) - 1)


@triton.jit(do_not_specialize=("count",))
def _coins_kernel(seed, sample_index, position, coins_out, count, C: tl.constexpr):
    """The coins of one request."""
    request = tl.program_id(0)
    number = tl.arange(0, C)
    word = words_of(
        number, tl.load(seed + request), tl.load(position + request),
        tl.load(sample_index + request), COINS,
    )  # fmt: skip
    coin = (word >> 8).to(tl.float32) * 2.0**-24
    tl.store(coins_out + request * count + number, coin, mask=number < count)


@takes_call
def toss_coins(call: Coins) -> dict[str, Tensor]:
    """R15: 24 bits of a word for each coin."""
    batch, count = call.seed.shape[0], call.tree_depth + 2
    coins = torch.empty(batch, count, device=call.seed.device)
    if batch:
        _coins_kernel[(batch,)](
            *contiguous(call.seed, call.sample_index, call.position), coins, count,
            C=block(count, 16),
        )  # fmt: skip
    return {"coins": coins}


@triton.jit
def _asked_of(entry, rows, tokens, wanted, n_rows, vocab, run, top_n):
    """Row and token of an entry, and how many best ones it wants; -1: it is unused."""
    row = tl.load(rows + entry)
    token = tl.load(tokens + entry)
    n_best = tl.load(wanted + entry // run)
    is_used = (row >= 0) & (row < n_rows) & (token >= 0) & (token < vocab) & (n_best >= 0)
    n_best = tl.minimum(tl.minimum(n_best, top_n), vocab)
    return tl.where(is_used, row, 0), tl.where(is_used, token, 0), tl.where(is_used, n_best, -1)


@triton.jit
def _possible(x):
    """Logits with NaN and +inf as impossible, and one number for both zeros."""
    return tl.where(x < float("inf"), x + 0.0, float("-inf"))


@triton.jit(do_not_specialize=("n_rows", "run", "top_n", "part_blocks", "n_parts", "n_blocks"))
def _part_kernel(
    logits, rows, tokens, wanted, peaks_out, rests_out, keys_out, n_rows, vocab, run, top_n,
    part_blocks, n_parts, n_blocks, V: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Maximum of each block of one part of an entry's row, what lies beside it, and best keys."""
    entry = tl.program_id(0)
    part = tl.program_id(1)
    row, _, n_best = _asked_of(entry, rows, tokens, wanted, n_rows, vocab, run, top_n)
    if n_best >= 0:
        place = tl.arange(0, K)
        best = tl.full([K], LOWEST, tl.int64)
        for tile in range(part * part_blocks, tl.minimum((part + 1) * part_blocks, n_blocks)):
            ids = tile * V + tl.arange(0, V)
            is_id = ids < vocab
            x = _possible(tl.load(logits + row * vocab + ids, mask=is_id, other=float("-inf")))
            top = tl.max(x, axis=0)
            first = tl.min(tl.where(x == top, ids, NO_ID), axis=0)
            # Nothing but -inf: differences from it would be NaN.
            base = tl.where(top == float("-inf"), 0.0, top).to(tl.float64)
            raised = tl.where(ids == first, 0.0, tl.exp(x.to(tl.float64) - base))
            tl.store(peaks_out + entry * n_blocks + tile, top)
            tl.store(rests_out + entry * n_blocks + tile, tl.sum(raised, axis=0))
            if n_best > 0:
                key = tl.where(is_id, sortable(x, ids), LOWEST)
                # Most blocks hold none of the best.
                if tl.max(key, axis=0) > tl.min(tl.where(place < n_best, best, NO_KEY), axis=0):
                    best = best_keys(key, best, n_best, K)
        if n_best > 0:
            tl.store(keys_out + (entry * n_parts + part) * K + place, best)


@triton.jit
def _log1p(x):
    """log(1 + x) of a sum that may be far below 1: the rounding of 1 + x is taken back."""
    whole = 1.0 + x
    return tl.where(whole == 1.0, x, tl.log(whole) * (x / (whole - 1.0)))


@triton.jit(do_not_specialize=("n_rows", "run", "top_n", "n_parts", "n_blocks"))
def _join_kernel(
    logits, rows, tokens, wanted, peaks, rests, keys, chosen_out, top_tokens_out, top_logprobs_out,
    n_rows, vocab, run, top_n, n_parts, n_blocks,
    M: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Log-probabilities of one entry from the blocks and parts of its row."""
    entry = tl.program_id(0)
    row, token, n_best = _asked_of(entry, rows, tokens, wanted, n_rows, vocab, run, top_n)
    tile = tl.arange(0, M)
    is_tile = (tile < n_blocks) & (n_best >= 0)
    peak = tl.load(peaks + entry * n_blocks + tile, mask=is_tile, other=float("-inf"))
    rest = tl.load(rests + entry * n_blocks + tile, mask=is_tile, other=0.0)
    highest = tl.max(peak, axis=0)
    first = tl.min(tl.where(peak == highest, tile, M), axis=0)
    base = tl.where(highest == float("-inf"), 0.0, highest).to(tl.float64)
    # The maxima of all blocks but one lie beside the row's.
    away = (rest + 1.0) * tl.exp(peak.to(tl.float64) - base)
    beside = _log1p(tl.sum(tl.where(tile == first, rest, away), axis=0))

    value = _possible(tl.load(logits + row * vocab + token, mask=n_best >= 0, other=0.0))
    chosen = ((value.to(tl.float64) - base) - beside).to(tl.float32)
    tl.store(chosen_out + entry, tl.where(n_best >= 0, chosen, 0.0))
    rank = tl.arange(0, K)
    best = tl.full([K], LOWEST, tl.int64)
    if n_best > 0:
        piece = tl.arange(0, P * K)
        key = tl.load(keys + entry * n_parts * K + piece, mask=piece < n_parts * K, other=LOWEST)
        best = best_keys(key, best, n_best, K)
    found = tl.where(rank < n_best, id_of(best), -1)
    score = ((value_of(best).to(tl.float64) - base) - beside).to(tl.float32)
    at = entry * top_n + rank
    tl.store(top_tokens_out + at, found.to(tl.int32), mask=rank < top_n)
    tl.store(top_logprobs_out + at, tl.where(rank < n_best, score, 0.0), mask=rank < top_n)


@takes_call
def score_target_tokens(call: LogProbabilities) -> dict[str, Tensor]:
    """R16: log-probabilities of the tokens and of the best beside them."""
    (n_rows, vocab), (batch, run), device = call.logits.shape, call.rows.shape, call.logits.device
    n_entries, n_blocks = batch * run, triton.cdiv(vocab, VOCAB_BLOCK)
    # A round emits few of the tokens it may: programs of unused entries end at once.
    n_parts, part_size = parts_of(batch, vocab)
    shape = (batch, run, call.top_n)
    found = {
        "chosen_logprobs": torch.empty(batch, run, device=device),
        "top_tokens": torch.empty(shape, dtype=torch.int32, device=device),
        "top_logprobs": torch.empty(shape, device=device),
    }
    named = {
        "logits": call.logits.contiguous(), "rows": call.rows.contiguous(),
        "tokens": call.tokens.contiguous(), "wanted": call.wanted.contiguous(),
        "chosen": found["chosen_logprobs"], **found,
        "peaks": torch.empty(n_entries, n_blocks, device=device),
        "rests": torch.empty(n_entries, n_blocks, dtype=torch.float64, device=device),
        "keys": torch.empty(n_entries, n_parts, K_BLOCK, dtype=torch.int64, device=device),
        "n_rows": n_rows, "vocab": vocab, "run": run, "top_n": call.top_n, "n_parts": n_parts,
        "part_blocks": part_size // VOCAB_BLOCK, "n_blocks": n_blocks, "V": VOCAB_BLOCK,
        "M": block(n_blocks), "P": MOST_PARTS, "K": K_BLOCK,
    }  # fmt: skip
    if n_entries:
        launch(_part_kernel, (n_entries, n_parts), named)
        launch(_join_kernel, (n_entries,), named)
    return found
