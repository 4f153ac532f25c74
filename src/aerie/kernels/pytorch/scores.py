"""PyTorch R15 coins and R16 log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.noise import COINS
from aerie.kernels.pytorch.noise import random_words
from aerie.kernels.pytorch.ragged import at_least_one
from aerie.kernels.pytorch.round_draft import best_ids


def toss_coins(
    *, seed: Tensor, sample_index: Tensor, position: Tensor, tree_depth: int
) -> dict[str, Tensor]:
    """R15: 24 bits of a word for each coin."""
    words = random_words(tree_depth + 2, seed, position, sample_index, COINS)
    flat = torch.stack(words, dim=2).flatten(1)[:, : tree_depth + 2]
    return {"coins": (flat >> 8).float() * 2.0**-24}


def score_target_tokens(
    *, logits: Tensor, rows: Tensor, tokens: Tensor, wanted: Tensor, top_n: int
) -> dict[str, Tensor]:
    """R16: log-probabilities of the tokens and of the best beside them."""
    (n_rows, vocab), (batch, run) = logits.shape, rows.shape
    is_used = (rows >= 0) & (rows < n_rows) & (tokens >= 0) & (tokens < vocab)
    is_used &= wanted[:, None] >= 0
    place = torch.where(is_used, rows, 0).flatten()
    values = at_least_one(logits).index_select(0, place)  # [B*n, V]
    values = torch.where(values < torch.inf, values, -torch.inf)
    exact = values.double()
    peak, first = exact.max(dim=1, keepdim=True)
    # A row without a finite logit has no differences: everything in it stays impossible.
    exact -= peak.clamp_min(torch.finfo(torch.float32).min)
    rest = exact.exp().scatter_(1, first, 0.0).sum(dim=1, keepdim=True)
    chosen = exact.gather(1, torch.where(is_used, tokens, 0).view(-1, 1)) - rest.log1p()
    n_best = min(top_n, vocab)
    best = best_ids(values, n_best)
    is_wanted = torch.arange(n_best, device=rows.device) < wanted[:, None, None]
    is_wanted = is_wanted & is_used[:, :, None]  # [B, n, n_best]
    top_tokens = torch.full((batch, run, top_n), -1, dtype=torch.int32, device=rows.device)
    top_logprobs = torch.zeros(batch, run, top_n, device=rows.device)
    size = (batch, run, n_best)
    top_tokens[:, :, :n_best] = best.view(size).int().masked_fill(~is_wanted, -1)
    scores = (exact.gather(1, best) - rest.log1p()).float()
    top_logprobs[:, :, :n_best] = scores.view(size).masked_fill(~is_wanted, 0.0)
    return {
        "chosen_logprobs": chosen.float().view(batch, run).masked_fill(~is_used, 0.0),
        "top_tokens": top_tokens,
        "top_logprobs": top_logprobs,
    }
