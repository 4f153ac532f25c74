"""PyTorch R15 coins, R16 log-probabilities, R17 near ties and R26 masks."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Coins, Forbidden, LogProbabilities, NearTies
from aerie.kernels.cards.verdict import GREEDY_TEMPERATURE
from aerie.kernels.noise import COINS
from aerie.kernels.pytorch.noise import random_words
from aerie.kernels.pytorch.ragged import at_least_one, request_spans
from aerie.kernels.pytorch.refusals import Refusals
from aerie.kernels.pytorch.round_draft import best_ids
from aerie.kernels.pytorch.sampling import Rows, adjusted, filtered, row_noise

_EXPONENT = 0x7F800000


@takes_call
def toss_coins(call: Coins) -> dict[str, Tensor]:
    """R15: 24 bits of a word for each coin."""
    words = random_words(call.tree_depth + 2, call.seed, call.position, call.sample_index, COINS)
    flat = torch.stack(words, dim=2).flatten(1)[:, : call.tree_depth + 2]
    return {"coins": (flat >> 8).float() * 2.0**-24}


@takes_call
def score_target_tokens(call: LogProbabilities) -> dict[str, Tensor]:
    """R16: log-probabilities of the tokens and of the best beside them."""
    (n_rows, vocab), (batch, run) = call.logits.shape, call.rows.shape
    is_used = (call.rows >= 0) & (call.rows < n_rows) & (call.tokens >= 0) & (call.tokens < vocab)
    is_used &= call.wanted[:, None] >= 0
    place = torch.where(is_used, call.rows, 0).flatten()
    values = at_least_one(call.logits).index_select(0, place)  # [B*n, V]
    values = torch.where(values < torch.inf, values, -torch.inf)
    exact = values.double()
    peak, first = exact.max(dim=1, keepdim=True)
    # A row without a finite logit has no differences: everything in it stays impossible.
    exact -= peak.clamp_min(torch.finfo(torch.float32).min)
    rest = exact.exp().scatter_(1, first, 0.0).sum(dim=1, keepdim=True)
    chosen = exact.gather(1, torch.where(is_used, call.tokens, 0).view(-1, 1)) - rest.log1p()
    n_best = min(call.top_n, vocab)
    best = best_ids(values, n_best)
    is_wanted = torch.arange(n_best, device=call.rows.device) < call.wanted[:, None, None]
    is_wanted = is_wanted & is_used[:, :, None]  # [B, n, n_best]
    shape = (batch, run, call.top_n)
    top_tokens = torch.full(shape, -1, dtype=torch.int32, device=call.rows.device)
    top_logprobs = torch.zeros(batch, run, call.top_n, device=call.rows.device)
    size = (batch, run, n_best)
    top_tokens[:, :, :n_best] = best.view(size).int().masked_fill(~is_wanted, -1)
    scores = (exact.gather(1, best) - rest.log1p()).float()
    top_logprobs[:, :, :n_best] = scores.view(size).masked_fill(~is_wanted, 0.0)
    return {
        "chosen_logprobs": chosen.float().view(batch, run).masked_fill(~is_used, 0.0),
        "top_tokens": top_tokens,
        "top_logprobs": top_logprobs,
    }


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
