"""PyTorch R15 coins and R16 log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import Coins, LogProbabilities
from aerie.kernels.noise import COINS
from aerie.kernels.pytorch.noise import random_words
from aerie.kernels.pytorch.ragged import at_least_one
from aerie.kernels.pytorch.round_draft import best_ids


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
