"""Triton K13: one program lists the active slots, the others empty the dead ones."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.replay import ActiveSlots
from aerie.kernels.triton_gpu.launch import as_bytes, block, write_back

ROW_BLOCK = 1024


@triton.jit
def _is_dead(finished, ended, seq_len, limit, slot, is_slot):
    dead = tl.load(finished + slot, mask=is_slot, other=1) != 0
    dead |= tl.load(ended + slot, mask=is_slot, other=1) != 0
    return dead | (
        tl.load(seq_len + slot, mask=is_slot, other=0)
        >= tl.load(limit + slot, mask=is_slot, other=0)
    )


@triton.jit(do_not_specialize=("n_slots", "n_rows"))
def _active_kernel(
    finished, ended, seq_len, limit, accept_count, tokens, bits, active_out, inverse_out,
    count_out, n_slots, n_rows, HAS_COUNT: tl.constexpr, HAS_TOKENS: tl.constexpr,
    HAS_BITS: tl.constexpr, S: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Program 0 lists; program i > 0 empties rows [(i - 1) * R, i * R) of dead slots."""
    if tl.program_id(0) == 0:
        slot = tl.arange(0, S)
        is_slot = slot < n_slots
        is_active = is_slot & (_is_dead(finished, ended, seq_len, limit, slot, is_slot) == 0)
        rank = tl.cumsum(is_active.to(tl.int32), axis=0)
        count = tl.sum(is_active.to(tl.int32), axis=0)
        tl.store(active_out + rank - 1, slot, mask=is_active)
        tl.store(active_out + slot, tl.full([S], -1, tl.int32), mask=is_slot & (slot >= count))
        tl.store(inverse_out + slot, tl.where(is_active, rank - 1, -1), mask=is_slot)
        tl.store(count_out, count)
        if HAS_COUNT:
            none = tl.zeros([S], tl.int64)
            tl.store(accept_count + slot, none, mask=is_slot & (is_active == 0))
    else:
        entry = (tl.program_id(0) - 1) * R + tl.arange(0, R)
        is_entry = entry < n_slots * n_rows
        is_emptied = _is_dead(finished, ended, seq_len, limit, entry // n_rows, is_entry) & is_entry
        if HAS_TOKENS:
            tl.store(tokens + entry, tl.full([R], -1, tl.int64), mask=is_emptied)
        if HAS_BITS:
            for word in tl.static_range(4):
                tl.store(bits + entry * 4 + word, tl.zeros([R], tl.int32), mask=is_emptied)


@takes_call
def build_active_slots(call: ActiveSlots) -> dict[str, Tensor]:
    """K13: active slots to the front, their inverse, and dead slots emptied."""
    n_slots, device = call.finished.shape[0], call.finished.device
    outputs = {
        "active_slots": torch.empty(n_slots, dtype=torch.int32, device=device),
        "active_inverse": torch.empty(n_slots, dtype=torch.int32, device=device),
        "active_count": torch.empty(1, dtype=torch.int32, device=device),
    }
    rows = call.draft_tokens if call.draft_tokens is not None else call.ancestor_bits
    n_rows = 1 if rows is None else rows.shape[1]
    n_clearing = 0 if rows is None else triton.cdiv(n_slots * n_rows, ROW_BLOCK)
    bits = None if call.ancestor_bits is None else call.ancestor_bits.view(torch.int32)
    lengths = call.seq_len.contiguous()
    emptied = (call.accept_count, call.draft_tokens, bits)
    # An array that is not given is never touched; any other stands in its place.
    packed = [lengths if array is None else array.contiguous() for array in emptied]
    _active_kernel[(1 + n_clearing,)](
        as_bytes(call.finished), as_bytes(call.eos_terminated), lengths,
        call.length_limit.contiguous(), *packed, *outputs.values(), n_slots, n_rows,
        HAS_COUNT=call.accept_count is not None, HAS_TOKENS=call.draft_tokens is not None,
        HAS_BITS=bits is not None,
        S=block(n_slots, 256), R=ROW_BLOCK,
    )  # fmt: skip
    write_back(packed, emptied)
    return outputs
