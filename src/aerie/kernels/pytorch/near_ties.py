"""PyTorch R17: tokens whose choice numerics may turn."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import NearTies
from aerie.kernels.cards.verdict import GREEDY_TEMPERATURE
from aerie.kernels.pytorch.ragged import request_spans
from aerie.kernels.pytorch.refusals import Refusals
from aerie.kernels.pytorch.sampling import Rows, adjusted, filtered, row_noise

_EXPONENT = 0x7F800000


@takes_call
def find_near_ties(call: NearTies) -> dict[str, Tensor]:
    """R17: every sum of an entry's row is held against the sum of its token."""
    (n_rows, vocab), (batch, run) = call.logits.shape, call.rows.shape
    is_used = (call.rows >= 0) & (call.rows < n_rows) & (call.tokens >= 0) & (call.tokens < vocab)
    if batch == 0 or n_rows == 0:
        return {"near_ties": is_used}
    refusals = Refusals(batch, call.logits.device)
    spans = request_spans(refusals, call.qo_indptr, n_rows)
    _, scores = adjusted(refusals, spans, call)
    place = torch.where(is_used, call.rows, 0).flatten()
    token = torch.where(is_used, call.tokens, 0).view(-1, 1)
    request = torch.arange(batch, device=call.rows.device)[:, None].expand(batch, run)
    entries = Rows(request.flatten())
    scores = scores.index_select(0, place)  # [B*n, V]
    own_logit = call.logits.index_select(0, place).gather(1, token)
    power = (own_logit.view(torch.int32) & _EXPONENT).view(torch.float32)
    heat, reach = entries.of(call.temperature), entries.of(call.limit) * power
    is_hot = heat >= GREEDY_TEMPERATURE
    sums, own = scores, scores.gather(1, token)
    if call.seed is not None:
        reach = torch.where(is_hot, reach / heat, reach)
        highest = scores.max(dim=1, keepdim=True).values
        kept = filtered(scores, highest, entries, call)
        noise = row_noise(entries, call.positions.take(place), call)
        own = torch.where(is_hot, own + noise.gather(1, token), own)
        sums = torch.where(is_hot, kept + noise, scores)
    is_close = (sums >= own - reach) & (sums <= own) & (sums > -torch.inf)
    is_close.scatter_(1, token, False)
    return {"near_ties": is_close.any(dim=1).view(batch, run) & is_used}
