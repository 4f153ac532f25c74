"""PyTorch R11 and R12: KV that moves, and the state a verdict leaves for the next round."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_verdict import HandedOver, MovedSlots
from aerie.kernels.report import REPORT


@takes_call
def move_kv_slots(call: MovedSlots) -> dict[str, Tensor]:
    """R11: all reads, then all writes."""
    # What is not moved carries the inert slot onto itself.
    source, destination = call.kv_src.clamp_min(0).long(), call.kv_dst.clamp_min(0).long()
    call.keys.index_copy_(1, destination, call.keys.index_select(1, source))
    call.values.index_copy_(1, destination, call.values.index_select(1, source))
    return {}


@takes_call
def hand_over_verdict(call: HandedOver) -> dict[str, Tensor]:
    """R12: lengths, roots, emitted tokens, rows to take in, and the report."""
    batch, run = call.accepted_tokens.shape
    if not batch:
        nothing = torch.zeros_like(call.accepted_tokens)
        return {"kept_rows": nothing, "deciding_rows": nothing.clone()}
    status = torch.where(call.walk_status != 0, call.walk_status, call.commit_status)
    status = torch.where(call.sample_status != 0, call.sample_status, status)
    status = torch.where(call.layout_status != 0, call.layout_status, status)
    is_decided = call.is_live & (status == 0)
    n_emitted = call.out_indptr.diff() * is_decided
    tokens = _unpack(call.out_tokens, call.out_indptr, run)
    call.accepted_tokens.copy_(tokens.clamp_min(0))
    length = torch.where(is_decided, call.new_seq_len, call.seq_len)
    n_kept = length - call.seq_len
    call.accepted_count.copy_(n_kept)
    kept = call.qo_indptr[:-1, None] + call.accept_index
    step = torch.arange(run, device=kept.device)
    kept_rows = kept * (step < n_kept[:, None])
    deciding_rows = torch.where(step < n_emitted[:, None], kept_rows, -1)
    call.seq_len.copy_(length)
    call.is_live.copy_(call.is_live & ~(is_decided & call.finished))
    last = tokens.gather(1, (n_emitted.long() - 1).clamp_min(0)[:, None])[:, 0]
    call.cumu_tokens[:, 0] = torch.where(n_emitted > 0, last, call.cumu_tokens[:, 0])
    call.cumu_scores[:, 1:].zero_()
    values = {
        "n_emitted": n_emitted,
        "is_finished": call.finished.int(),
        "status": status,
        "n_rows": call.qo_indptr.diff(),
        "n_accepted": call.accept_count.int(),
        "seq_len": length.int(),
        "n_chosen": torch.ones_like(status),  # the root; a choice writes what it chose
    }
    columns = torch.stack([values[name] for name in REPORT], dim=1)
    call.report.copy_(torch.cat((columns, tokens.int()), dim=1))
    return {"kept_rows": kept_rows, "deciding_rows": deciding_rows}


def _unpack(flat: Tensor, indptr: Tensor, run: int) -> Tensor:
    """Ragged runs as rows [B, run], 0 behind a run's end."""
    step = torch.arange(run, device=flat.device)
    place = (indptr[:-1, None] + step).clamp_max_(flat.shape[0] - 1)
    return flat[place] * (step < indptr.diff()[:, None])
