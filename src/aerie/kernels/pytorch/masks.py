"""PyTorch masks: R26, logits without what grammars forbid."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Forbidden


@takes_call
def forbid_tokens(call: Forbidden) -> dict[str, Tensor]:
    """R26: the bit of every column's id."""
    (n_rows, vocabulary), batch, device = call.logits.shape, call.first.shape[0], call.logits.device
    values = call.logits.float()
    if not batch or not n_rows:
        return {"masked": values.clone() if values is call.logits else values}
    rows = torch.arange(n_rows, device=device)
    seat = (call.ends[None, :] <= rows[:, None]).sum(dim=1) - 1
    known = seat.clamp(0, batch - 1)
    begin = call.first[known].long()
    mask = begin + rows - call.ends[known]
    is_bound = (seat == known) & (begin > 0) & (mask > 0) & (mask < call.bits.shape[0])
    if call.token_ids is None:
        own = torch.arange(vocabulary, device=device).expand(n_rows, -1)
    else:
        own = call.token_ids[known.clamp_max(call.token_ids.shape[0] - 1)]
    is_id = (own >= 0) & (own < 32 * call.bits.shape[1])
    own = torch.where(is_id, own, 0)
    word = call.bits[torch.where(is_bound, mask, 0)].gather(1, own >> 5)
    allowed = is_id & ((word >> (own & 31).int()) & 1).bool()
    return {"masked": torch.where(is_bound[:, None] & ~allowed, -torch.inf, values)}
