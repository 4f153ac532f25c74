"""PyTorch R17: tokens whose choice numerics may turn."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.pytorch.ragged import request_spans
from aerie.kernels.pytorch.refusals import Refusals
from aerie.kernels.pytorch.sampling import Rows, adjusted, filtered, row_noise
from aerie.kernels.pytorch.verdict import GREEDY_TEMPERATURE

_EXPONENT = 0x7F800000


def find_near_ties(
    *,
    logits: Tensor,
    positions: Tensor,
    temperature: Tensor,
    qo_indptr: Tensor,
    rows: Tensor,
    tokens: Tensor,
    limit: Tensor,
    **options: Tensor,
) -> dict[str, Tensor]:
    """R17: every sum of an entry's row is held against the sum of its token."""
    (n_rows, vocab), (batch, run) = logits.shape, rows.shape
    is_used = (rows >= 0) & (rows < n_rows) & (tokens >= 0) & (tokens < vocab)
    if batch == 0 or n_rows == 0:
        return {"near_ties": is_used}
    refusals = Refusals(batch, logits.device)
    spans = request_spans(refusals, qo_indptr, n_rows)
    _, scores = adjusted(refusals, spans, logits, positions, temperature, options)
    place = torch.where(is_used, rows, 0).flatten()
    token = torch.where(is_used, tokens, 0).view(-1, 1)
    request = torch.arange(batch, device=rows.device)[:, None].expand(batch, run)
    entries = Rows(request.flatten())
    scores = scores.index_select(0, place)  # [B*n, V]
    own_logit = logits.index_select(0, place).gather(1, token)
    power = (own_logit.view(torch.int32) & _EXPONENT).view(torch.float32)
    heat, reach = entries.of(temperature), entries.of(limit) * power
    is_hot = heat >= GREEDY_TEMPERATURE
    sums, own = scores, scores.gather(1, token)
    if "seed" in options:
        reach = torch.where(is_hot, reach / heat, reach)
        highest = scores.max(dim=1, keepdim=True).values
        kept = filtered(scores, highest, entries, options)
        noise = row_noise(vocab, entries, positions.take(place), options)
        own = torch.where(is_hot, own + noise.gather(1, token), own)
        sums = torch.where(is_hot, kept + noise, scores)
    is_close = (sums >= own - reach) & (sums <= own) & (sums > -torch.inf)
    is_close.scatter_(1, token, False)
    return {"near_ties": is_close.any(dim=1).view(batch, run) & is_used}
