"""Triton R26: logits without what grammars forbid, one pass over them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Forbidden
from aerie.kernels.triton_gpu.launch import block, contiguous
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn

VOCAB_BLOCK = 2048


@triton.jit(do_not_specialize=("batch", "n_masks", "n_maps"))
def _forbid_kernel(
    logits, ends, first, bits, token_ids, masked_out, batch, vocab, n_masks, n_words, n_maps,
    MAPPED: tl.constexpr, S: tl.constexpr, V: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One part of one row."""
    take_turn(OVERLAP)
    row = tl.program_id(0)
    place = tl.arange(0, S)
    end = tl.load(ends + place, mask=place <= batch, other=2147483647)
    seat = tl.sum((end <= row).to(tl.int32), axis=0) - 1
    is_seat = (seat >= 0) & (seat < batch)
    begin = tl.load(first + seat, mask=is_seat, other=0)
    own_mask = begin + row - tl.load(ends + seat, mask=is_seat, other=0)
    is_bound = is_seat & (begin > 0) & (own_mask > 0) & (own_mask < n_masks)
    column = tl.program_id(1) * V + tl.arange(0, V)
    is_column = column < vocab
    at = row.to(tl.int64) * vocab + column
    x = tl.load(logits + at, mask=is_column, other=0.0).to(tl.float32)
    # A row without a mask reads neither ids nor bits: its logits are copied.
    is_asked = is_column & is_bound
    if MAPPED:
        own_map = tl.minimum(tl.maximum(seat, 0), n_maps - 1).to(tl.int64)
        own = tl.load(token_ids + own_map * vocab + column, mask=is_asked, other=0)
    else:
        own = column.to(tl.int64)
    is_id = (own >= 0) & (own < 32 * n_words)
    word_at = own_mask.to(tl.int64) * n_words + (own >> 5)
    word = tl.load(bits + word_at, mask=is_asked & is_id, other=0)
    allowed = ((word >> (own & 31).to(tl.int32)) & 1) != 0
    x = tl.where(is_asked & ~allowed, float("-inf"), x)
    tl.store(masked_out + at, x, mask=is_column)


@takes_call
def forbid_tokens(call: Forbidden) -> dict[str, Tensor]:
    """R26: the bit of every column's id."""
    n_rows, vocab = call.logits.shape
    masked = torch.empty(n_rows, vocab, device=call.logits.device)
    if n_rows:
        ids, n_maps = masked, 1
        if call.token_ids is not None:
            ids, n_maps = call.token_ids.contiguous(), call.token_ids.shape[0]
        _forbid_kernel[(n_rows, triton.cdiv(vocab, VOCAB_BLOCK))](
            *contiguous(call.logits, call.ends, call.first, call.bits), ids, masked,
            call.first.shape[0], vocab, *call.bits.shape, n_maps,
            MAPPED=call.token_ids is not None, S=block(call.first.shape[0] + 1, 2), V=VOCAB_BLOCK,
            **overlapped(call.logits),
        )  # fmt: skip
    return {"masked": masked}
