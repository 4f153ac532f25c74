"""PyTorch verifying kernels: K5 probabilities and the K6 tree walk."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.verdict import GREEDY_TEMPERATURE, Probabilities, RejectSample
from aerie.kernels.pytorch.ragged import Spans, at_least_one, request_spans
from aerie.kernels.pytorch.refusals import Refusals, first_true
from aerie.kernels.pytorch.walk import Forest, plant
from aerie.kernels.status import Status


@takes_call
def convert_logits_to_probas(call: Probabilities) -> dict[str, Tensor]:
    """K5: softmax of each request's rows at its temperature; greedy rows are one-hot."""
    n_rows = call.logits.shape[0]
    batch = call.temperature.shape[0]
    refusals = Refusals(batch, call.logits.device)
    spans = request_spans(refusals, call.qo_indptr, n_rows, most=n_rows)
    is_possible = (call.temperature >= 0) & (call.temperature < torch.inf)
    refusals.add(Status.BAD_PARAMETER, ~is_possible, 0)
    if batch == 0 or n_rows == 0:
        return {"target_probas": torch.zeros_like(call.logits), **refusals.words()}
    is_greedy = call.temperature < GREEDY_TEMPERATURE
    owner = spans.owners()
    heat = call.temperature.masked_fill(is_greedy, 1.0).take(owner.clamp(0))[:, None]  # [R, 1]
    highest, best = call.logits.max(dim=1, keepdim=True)
    # Division by a positive number keeps the order, so this is the maximum of the quotients; a
    # NaN in the row is its maximum too.
    peak = highest / heat
    spans.refuse_rows(refusals, Status.NOT_FINITE, ~(peak < torch.inf)[:, 0])
    # Quotients may all overflow to -inf, which leaves as little to choose from.
    spans.refuse_rows(refusals, Status.ALL_MASKED, (peak == -torch.inf)[:, 0])

    probas = call.logits / heat
    probas.sub_(peak).exp_()
    total = probas.sum(dim=1, keepdim=True, dtype=torch.float64).float()
    is_dead = ((owner < 0) | refusals.refused.take(owner.clamp(0)))[:, None]
    is_one_hot = is_greedy.take(owner.clamp(0))[:, None]
    # What is divided by infinity is 0, and NaN stands in dead rows alone: on a CPU this is faster
    # than masking whole rows.
    probas.div_(total.masked_fill_(is_dead | is_one_hot, torch.inf)).nan_to_num_(0.0)
    at_best = probas.gather(1, best)
    probas.scatter_(1, best, at_best.masked_fill_(is_one_hot & ~is_dead, 1.0))
    return {"target_probas": probas, **refusals.words()}


@takes_call
def draft_tree_reject_sample(call: RejectSample) -> dict[str, Tensor]:
    """K6: the accepted root path of each request and the token after it."""
    batch = call.qo_indptr.shape[0] - 1
    refusals = Refusals(batch, call.qo_indptr.device)
    spans = request_spans(refusals, call.qo_indptr, call.draft_tokens.shape[0])
    forest = plant(refusals, spans, call.draft_tokens, call.first_child_row, call.next_sibling_row)
    n_slots = spans.slots.shape[0]
    if call.target_tokens is not None:
        path = forest.path_by_match(call.target_tokens, call.tree_depth)
    else:
        assert call.target_probas is not None and call.coins is not None
        _check_coins(refusals, forest, call.target_probas, call.coins)
        path = forest.path_by_coins(call.target_probas, call.coins, call.tree_depth)
    refusals.add(Status.TOO_DEEP, path[:, -1] < n_slots, call.tree_depth + 1)
    path = path[:, : call.tree_depth + 1]
    is_none = (refusals.refused | (spans.count == 0))[:, None]
    path.masked_fill_((path == n_slots) | is_none, -1)
    # Rows ascend along a path, so its last node is its largest row.
    node = path.amax(dim=1, keepdim=True).clamp_min_(0)
    if call.target_tokens is not None:
        bonus = forest.bonus_by_match(call.target_tokens, node)
    else:
        assert call.target_probas is not None and call.coins is not None
        bonus = forest.bonus_by_coins(call.target_probas, call.coins[:, -1].double(), node)
    return {
        "accept_index": path.contiguous(),
        "accept_count": (path > 0).sum(dim=1),
        "bonus_token": bonus.masked_fill_(is_none[:, 0], -1),
        **refusals.words(),
    }


def _check_coins(refusals: Refusals, forest: Forest, probas: Tensor, coins: Tensor) -> None:
    spans: Spans = forest.spans
    # The root's token was decided in an earlier round and is not looked up.
    is_looked_up = spans.is_row & (spans.slots > 0)
    is_foreign = is_looked_up & ((forest.tokens < 0) | (forest.tokens >= probas.shape[1]))
    foreign = forest.tokens.gather(1, first_true(is_foreign)[:, None])[:, 0]
    refusals.add(Status.OUT_OF_RANGE, is_foreign.any(dim=1), foreign)
    # NaN is both the least and the greatest of its row. On a CPU the two reductions apart take a
    # seventh of the time of aminmax (256 rows of 4096, torch 2.13, November 2026).
    rows = at_least_one(probas)
    is_bad = ~((rows.amin(dim=1) >= 0) & (rows.amax(dim=1) < torch.inf))  # [R]
    is_bad_row = is_bad.take(spans.flat) & spans.is_row
    refusals.add(Status.NOT_FINITE, is_bad_row.any(dim=1), first_true(is_bad_row))
    is_impossible = ~((coins >= 0) & (coins < 1))
    refusals.add(Status.BAD_PARAMETER, is_impossible.any(dim=1), first_true(is_impossible))
