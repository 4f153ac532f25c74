"""PyTorch `sample_target_tokens`: penalties, filters, then argmax with keyed noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.kernels.pytorch.noise import gumbel
from aerie.kernels.pytorch.ragged import Spans, request_spans
from aerie.kernels.pytorch.refusals import Refusals, first_true
from aerie.kernels.pytorch.verdict import GREEDY_TEMPERATURE
from aerie.kernels.status import Status


@dataclass(frozen=True)
class _Rows:
    """The rows of the batch, the request each belongs to, and the tokens of their paths."""

    owner: Tensor  # [R] request of each row; 0 for rows of no request, which are dropped later
    tokens: Tensor | None = None  # [R, Q] tokens of the owner's rows, clamped to the vocabulary
    on_path: Tensor | None = None  # [R, Q] ancestors and the row itself, without row 0

    def of(self, option: Tensor) -> Tensor:
        """A per-request option `[B]` as a column of rows. [R, 1]"""
        return option.take(self.owner)[:, None]


def sample_target_tokens(
    *,
    logits: Tensor,
    positions: Tensor,
    temperature: Tensor,
    qo_indptr: Tensor,
    seed: Tensor | None = None,
    sample_index: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    repetition_penalty: Tensor | None = None,
    presence_penalty: Tensor | None = None,
    frequency_penalty: Tensor | None = None,
    prompt_counts: Tensor | None = None,
    output_counts: Tensor | None = None,
    logit_bias: Tensor | None = None,
    draft_tokens: Tensor | None = None,
    ancestor_bits: Tensor | None = None,
) -> dict[str, Tensor]:
    """The target's own token of every row; work that no argument asks for is not done."""
    n_rows, vocab = logits.shape
    batch = temperature.shape[0]
    refusals = Refusals(batch, logits.device)
    spans = request_spans(refusals, qo_indptr, n_rows)
    is_greedy = temperature < GREEDY_TEMPERATURE
    is_possible = (temperature >= 0) & (temperature < torch.inf)
    if seed is None:
        is_possible &= is_greedy
    if top_k is not None:
        is_possible &= top_k >= 0
    if top_p is not None:
        is_possible &= (top_p > 0) & (top_p <= 1)
    if min_p is not None:
        is_possible &= (min_p >= 0) & (min_p <= 1)
    if repetition_penalty is not None:
        is_possible &= (repetition_penalty > 0) & (repetition_penalty < torch.inf)
    for option in (presence_penalty, frequency_penalty):
        if option is not None:
            is_possible &= option.isfinite()
    refusals.add(Status.BAD_PARAMETER, ~is_possible, 0)
    if batch == 0 or n_rows == 0:
        return {"target_tokens": torch.full_like(positions, -1), **refusals.words()}

    owner = spans.owners()
    rows = _Rows(owner.clamp_min(0))
    if draft_tokens is not None and ancestor_bits is not None:
        rows = _with_paths(refusals, spans, rows.owner, draft_tokens, ancestor_bits, vocab)
    penalties = (repetition_penalty, presence_penalty, frequency_penalty)
    is_penalised = any(option is not None for option in penalties)
    produced = _produced(rows, output_counts, vocab) if is_penalised else None
    scores = logits
    if repetition_penalty is not None:
        seen = _seen(rows, produced, prompt_counts)
        scores = _repetition(scores, seen, rows.of(repetition_penalty))
    if frequency_penalty is not None and produced is not None:
        # Two roundings, as the card says: a fused multiply-add would have one.
        scores = scores - rows.of(frequency_penalty) * produced.float()
    if presence_penalty is not None and produced is not None:
        scores = scores - torch.where(produced > 0, rows.of(presence_penalty), 0.0)
    if logit_bias is not None:
        scores = scores + logit_bias.index_select(0, rows.owner)
    if seed is not None:
        scores = scores / rows.of(temperature.masked_fill(is_greedy, 1.0))
    # A NaN is its row's maximum.
    highest, chosen = scores.max(dim=1, keepdim=True)
    spans.refuse_rows(refusals, Status.NOT_FINITE, ~(highest < torch.inf)[:, 0])
    spans.refuse_rows(refusals, Status.ALL_MASKED, (highest == -torch.inf)[:, 0])
    if seed is not None:
        if top_k is not None or top_p is not None:
            scores = _keep_best(scores, highest, rows, top_k, top_p)
        if min_p is not None:
            mass = (scores - highest).double().exp_()
            scores = scores.masked_fill(mass < rows.of(min_p).double(), -torch.inf)
        index = None if sample_index is None else sample_index.take(rows.owner)
        noise = gumbel(vocab, seed.take(rows.owner), positions, index)
        drawn = noise.add_(scores).max(dim=1, keepdim=True).indices
        chosen = torch.where(rows.of(is_greedy), chosen, drawn)
    is_dead = (owner < 0) | refusals.refused.take(rows.owner)
    return {"target_tokens": chosen[:, 0].masked_fill(is_dead, -1), **refusals.words()}


def _with_paths(
    refusals: Refusals,
    spans: Spans,
    owner: Tensor,
    draft_tokens: Tensor,
    ancestor_bits: Tensor,
    vocab: int,
) -> _Rows:
    """Unpack the path of every row; refuses requests with a path token outside the vocabulary."""
    slots = spans.slots  # [Q]
    words = ancestor_bits.view(torch.int32).repeat_interleave(32, dim=1)[:, : slots.shape[0]]
    on_path = ((words >> (slots & 31).int()) & 1).bool()
    on_path &= (slots > 0) & (slots < spans.count.take(owner)[:, None])
    tokens = draft_tokens.take(spans.flat).index_select(0, owner)  # [R, Q]
    is_foreign = on_path & ((tokens < 0) | (tokens >= vocab))
    foreign = tokens.gather(1, first_true(is_foreign)[:, None])[:, 0]  # [R]
    found = spans.inside & is_foreign.any(dim=1)  # [B, R]
    refusals.add(Status.OUT_OF_RANGE, found.any(dim=1), foreign.take(first_true(found)))
    return _Rows(owner, tokens.clamp_(0, vocab - 1), on_path)


def _produced(rows: _Rows, output_counts: Tensor | None, vocab: int) -> Tensor | None:
    """How often each id stands in the committed output and the row's path. [R, V]"""
    if output_counts is None and rows.tokens is None:
        return None
    if output_counts is None:
        size = (rows.owner.shape[0], vocab)
        produced = torch.zeros(size, dtype=torch.int64, device=rows.owner.device)
    else:
        produced = output_counts.index_select(0, rows.owner).long()
    if rows.tokens is not None and rows.on_path is not None:
        produced.scatter_add_(1, rows.tokens, rows.on_path.long())
    return produced


def _seen(rows: _Rows, produced: Tensor | None, prompt_counts: Tensor | None) -> Tensor | None:
    """Ids of the prompt, the output or the row's path. [R, V]"""
    if prompt_counts is None:
        return None if produced is None else produced > 0
    prompt = (prompt_counts > 0).index_select(0, rows.owner)
    return prompt if produced is None else prompt | (produced > 0)


def _repetition(scores: Tensor, seen: Tensor | None, penalty: Tensor) -> Tensor:
    if seen is None:
        return scores
    penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
    return torch.where(seen, penalised, scores)


def _keep_best(
    scores: Tensor, highest: Tensor, rows: _Rows, top_k: Tensor | None, top_p: Tensor | None
) -> Tensor:
    """-inf for ids that top-k, then top-p over what it leaves, remove; stable, so by id on ties."""
    vocab = scores.shape[1]
    ordered, ids = torch.sort(scores, dim=1, descending=True, stable=True)
    n_kept = torch.full_like(highest, vocab, dtype=torch.int64)  # [R, 1]
    if top_k is not None:
        limit = rows.of(top_k)
        n_kept = torch.where(limit > 0, limit.clamp_max(vocab), vocab)
    if top_p is not None:
        share = rows.of(top_p).double()
        rank = torch.arange(vocab, device=scores.device)
        running = (ordered - highest).double().exp_()
        running = running.masked_fill_(rank >= n_kept, 0.0).cumsum_(dim=1)
        # A token is kept while the mass before it is below the share; before the first is none.
        is_below = running[:, :-1] < share * running[:, -1:]
        n_nucleus = is_below.sum(dim=1, keepdim=True) + 1
        n_kept = torch.where(share < 1, torch.minimum(n_kept, n_nucleus), n_kept)
    last_kept = n_kept - 1
    cut, cut_id = ordered.gather(1, last_kept), ids.gather(1, last_kept)
    is_cut_later = torch.arange(vocab, device=scores.device) > cut_id
    is_cut = (scores < cut) | ((scores == cut) & is_cut_later)
    return scores.masked_fill(is_cut, -torch.inf)
