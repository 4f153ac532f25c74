"""PyTorch masks: R26, logits without what grammars forbid."""

from __future__ import annotations

import torch
from torch import Tensor


def forbid_tokens(
    *, logits: Tensor, ends: Tensor, first: Tensor, bits: Tensor, token_ids: Tensor | None = None
) -> dict[str, Tensor]:
    """R26: the bit of every column's id."""
    (n_rows, vocabulary), batch, device = logits.shape, first.shape[0], logits.device
    values = logits.float()
    if not batch or not n_rows:
        return {"masked": values.clone() if values is logits else values}
    rows = torch.arange(n_rows, device=device)
    seat = (ends[None, :] <= rows[:, None]).sum(dim=1) - 1
    known = seat.clamp(0, batch - 1)
    begin = first[known].long()
    mask = begin + rows - ends[known]
    is_bound = (seat == known) & (begin > 0) & (mask > 0) & (mask < bits.shape[0])
    if token_ids is None:
        own = torch.arange(vocabulary, device=device).expand(n_rows, -1)
    else:
        own = token_ids[known.clamp_max(token_ids.shape[0] - 1)]
    is_id = (own >= 0) & (own < 32 * bits.shape[1])
    own = torch.where(is_id, own, 0)
    word = bits[torch.where(is_bound, mask, 0)].gather(1, own >> 5)
    allowed = is_id & ((word >> (own & 31).int()) & 1).bool()
    return {"masked": torch.where(is_bound[:, None] & ~allowed, -torch.inf, values)}
