"""PyTorch R11 and R12: KV that moves, and the state a verdict leaves for the next round."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.report import REPORT


def move_kv_slots(
    *, keys: Tensor, values: Tensor, kv_src: Tensor, kv_dst: Tensor
) -> dict[str, Tensor]:
    """R11: all reads, then all writes."""
    # What is not moved carries the inert slot onto itself.
    source, destination = kv_src.clamp_min(0).long(), kv_dst.clamp_min(0).long()
    keys.index_copy_(1, destination, keys.index_select(1, source))
    values.index_copy_(1, destination, values.index_select(1, source))
    return {}


def hand_over_verdict(
    *,
    layout_status: Tensor,
    sample_status: Tensor,
    walk_status: Tensor,
    commit_status: Tensor,
    out_tokens: Tensor,
    out_indptr: Tensor,
    new_seq_len: Tensor,
    finished: Tensor,
    qo_indptr: Tensor,
    accept_index: Tensor,
    accept_count: Tensor,
    is_live: Tensor,
    seq_len: Tensor,
    cumu_tokens: Tensor,
    cumu_scores: Tensor,
    accepted_tokens: Tensor,
    accepted_count: Tensor,
    report: Tensor,
) -> dict[str, Tensor]:
    """R12: lengths, roots, emitted tokens, rows to take in, and the report."""
    batch, run = accepted_tokens.shape
    if not batch:
        return {name: torch.zeros_like(accepted_tokens) for name in ("kept_rows", "deciding_rows")}
    status = torch.where(walk_status != 0, walk_status, commit_status)
    status = torch.where(sample_status != 0, sample_status, status)
    status = torch.where(layout_status != 0, layout_status, status)
    is_decided = is_live & (status == 0)
    n_emitted = out_indptr.diff() * is_decided
    tokens = _unpack(out_tokens, out_indptr, run)
    accepted_tokens.copy_(tokens.clamp_min(0))
    length = torch.where(is_decided, new_seq_len, seq_len)
    n_kept = length - seq_len
    accepted_count.copy_(n_kept)
    kept = qo_indptr[:-1, None] + accept_index
    step = torch.arange(run, device=kept.device)
    kept_rows = kept * (step < n_kept[:, None])
    deciding_rows = torch.where(step < n_emitted[:, None], kept_rows, -1)
    seq_len.copy_(length)
    is_live.copy_(is_live & ~(is_decided & finished))
    last = tokens.gather(1, (n_emitted.long() - 1).clamp_min(0)[:, None])[:, 0]
    cumu_tokens[:, 0] = torch.where(n_emitted > 0, last, cumu_tokens[:, 0])
    cumu_scores[:, 1:].zero_()
    values = {
        "n_emitted": n_emitted,
        "is_finished": finished.int(),
        "status": status,
        "n_rows": qo_indptr.diff(),
        "n_accepted": accept_count.int(),
        "seq_len": length.int(),
        "n_chosen": torch.ones_like(status),  # the root; a choice writes what it chose
    }
    columns = torch.stack([values[name] for name in REPORT], dim=1)
    report.copy_(torch.cat((columns, tokens.int()), dim=1))
    return {"kept_rows": kept_rows, "deciding_rows": deciding_rows}


def _unpack(flat: Tensor, indptr: Tensor, run: int) -> Tensor:
    """Ragged runs as rows [B, run], 0 behind a run's end."""
    step = torch.arange(run, device=flat.device)
    place = (indptr[:-1, None] + step).clamp_max_(flat.shape[0] - 1)
    return flat[place] * (step < indptr.diff()[:, None])
