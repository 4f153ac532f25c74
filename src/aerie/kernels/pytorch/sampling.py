"""PyTorch `sample_target_tokens`: penalties, filters, then argmax with keyed noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.verdict import GREEDY_TEMPERATURE, POSSIBLE, Sampled, TargetTokens
from aerie.kernels.pytorch.noise import gumbel
from aerie.kernels.pytorch.ragged import Spans, request_spans
from aerie.kernels.pytorch.refusals import Refusals, first_true
from aerie.kernels.status import Status


@dataclass(frozen=True)
class Rows:
    """The rows of the batch, the request each belongs to, and the tokens of their paths."""

    owner: Tensor  # [R] request of each row; 0 for rows of no request, which are dropped later
    tokens: Tensor | None = None  # [R, Q] tokens of the owner's rows, clamped to the vocabulary
    on_path: Tensor | None = None  # [R, Q] ancestors and the row itself, without row 0

    def of(self, option: Tensor) -> Tensor:
        """A per-request option `[B]` as a column of rows. [R, 1]"""
        return option.take(self.owner)[:, None]


@takes_call
def sample_target_tokens(call: TargetTokens) -> dict[str, Tensor]:
    """The target's own token of every row; work that no argument asks for is not done."""
    n_rows, batch = call.logits.shape[0], call.temperature.shape[0]
    refusals = Refusals(batch, call.logits.device)
    spans = request_spans(refusals, call.qo_indptr, n_rows)
    refusals.add(Status.BAD_PARAMETER, ~_is_possible(call), 0)
    if batch == 0 or n_rows == 0:
        return {"target_tokens": torch.full_like(call.positions, -1), **refusals.words()}

    owner = spans.owners()
    rows, scores = adjusted(refusals, spans, call)
    # A NaN is its row's maximum.
    highest, chosen = scores.max(dim=1, keepdim=True)
    spans.refuse_rows(refusals, Status.NOT_FINITE, ~(highest < torch.inf)[:, 0])
    spans.refuse_rows(refusals, Status.ALL_MASKED, (highest == -torch.inf)[:, 0])
    if call.seed is not None:
        scores = filtered(scores, highest, rows, call)
        noise = row_noise(rows, call.positions, call)
        drawn = noise.add_(scores).max(dim=1, keepdim=True).indices
        chosen = torch.where(rows.of(call.temperature < GREEDY_TEMPERATURE), chosen, drawn)
    is_dead = (owner < 0) | refusals.refused.take(rows.owner)
    return {"target_tokens": chosen[:, 0].masked_fill(is_dead, -1), **refusals.words()}


def adjusted(refusals: Refusals, spans: Spans, call: Sampled) -> tuple[Rows, Tensor]:
    """The rows and their scores as filters and noise find them."""
    scores = call.logits
    rows = Rows(spans.owners().clamp_min(0))
    if call.ancestor_bits is not None:
        rows = _with_paths(refusals, spans, rows.owner, call)
    is_counted = not (call.presence_penalty is None and call.frequency_penalty is None)
    is_penalised = is_counted or call.repetition_penalty is not None
    produced = _produced(rows, call.output_counts, scores.shape[1]) if is_penalised else None
    if call.repetition_penalty is not None:
        seen = _seen(rows, produced, call.prompt_counts)
        scores = _repetition(scores, seen, rows.of(call.repetition_penalty))
    if call.frequency_penalty is not None and produced is not None:
        # Two roundings, as the card says: a fused multiply-add would have one.
        scores = scores - rows.of(call.frequency_penalty) * produced.float()
    if call.presence_penalty is not None and produced is not None:
        scores = scores - torch.where(produced > 0, rows.of(call.presence_penalty), 0.0)
    if call.logit_bias is not None:
        scores = scores + call.logit_bias.index_select(0, rows.owner)
    if call.floor_position is not None:
        is_short = _is_short(call.positions, call.floor_position.take(rows.owner))
        scores = _without(scores, call.stop_tokens.index_select(0, rows.owner), is_short)
    if call.seed is not None:
        is_greedy = call.temperature < GREEDY_TEMPERATURE
        scores = scores / rows.of(call.temperature.masked_fill(is_greedy, 1.0))
    return rows, scores


def filtered(scores: Tensor, highest: Tensor, rows: Rows, call: Sampled) -> Tensor:
    """-inf for ids that the filters remove, of sampled rows and of greedy ones."""
    if call.top_k is not None or call.top_p is not None:
        scores = _keep_best(scores, highest, rows, call)
    if call.min_p is not None:
        mass = (scores - highest).double().exp_()
        scores = scores.masked_fill(mass < rows.of(call.min_p).double(), -torch.inf)
    return scores


def row_noise(rows: Rows, positions: Tensor, call: Sampled) -> Tensor:
    """The noise of every id, by row. [R, V]"""
    index = None if call.sample_index is None else call.sample_index.take(rows.owner)
    return gumbel(call.logits.shape[1], call.seed.take(rows.owner), positions, index)


def _is_possible(call: Sampled) -> Tensor:
    """Whether every option of a request lies in its range; NaN fails each comparison. [B]"""
    is_possible = (call.temperature >= 0) & (call.temperature < torch.inf)
    if call.seed is None:
        is_possible &= call.temperature < GREEDY_TEMPERATURE
    for name, rule in POSSIBLE.items():
        if (values := getattr(call, name)) is not None:
            is_possible &= rule(values)
    return is_possible


def _with_paths(refusals: Refusals, spans: Spans, owner: Tensor, call: Sampled) -> Rows:
    """Unpack the path of every row; refuses requests with a path token outside the vocabulary."""
    slots, vocab = spans.slots, call.logits.shape[1]  # [Q]
    words = call.ancestor_bits.view(torch.int32).repeat_interleave(32, dim=1)[:, : slots.shape[0]]
    on_path = ((words >> (slots & 31).int()) & 1).bool()
    on_path &= (slots > 0) & (slots < spans.count.take(owner)[:, None])
    tokens = call.draft_tokens.take(spans.flat).index_select(0, owner)  # [R, Q]
    is_foreign = on_path & ((tokens < 0) | (tokens >= vocab))
    foreign = tokens.gather(1, first_true(is_foreign)[:, None])[:, 0]  # [R]
    found = spans.inside & is_foreign.any(dim=1)  # [B, R]
    refusals.add(Status.OUT_OF_RANGE, found.any(dim=1), foreign.take(first_true(found)))
    return Rows(owner, tokens.clamp_(0, vocab - 1), on_path)


def _produced(rows: Rows, output_counts: Tensor | None, vocab: int) -> Tensor | None:
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


def _seen(rows: Rows, produced: Tensor | None, prompt_counts: Tensor | None) -> Tensor | None:
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


def _is_short(position: Tensor, floor: Tensor) -> Tensor:
    """Whether the token after `position` stands before `floor`. [R]"""
    # Not the second comparison alone: behind int64's largest position comes its smallest.
    return (position < floor) & (position + 1 < floor)


def _without(scores: Tensor, stops: Tensor, applies: Tensor) -> Tensor:
    """-inf at the ids `stops[R, S]` of the rows where `applies[R]` holds."""
    n_rows, vocab = scores.shape
    is_id = (stops >= 0) & (stops < vocab) & applies[:, None]
    # One column more takes what is no id.
    is_stop = torch.zeros(n_rows, vocab + 1, dtype=torch.bool, device=scores.device)
    is_stop.scatter_(1, torch.where(is_id, stops, vocab), True)
    return scores.masked_fill(is_stop[:, :vocab], -torch.inf)


def _keep_best(scores: Tensor, highest: Tensor, rows: Rows, call: Sampled) -> Tensor:
    """-inf for ids that top-k, then top-p over what it leaves, remove; stable, so by id on ties."""
    vocab = scores.shape[1]
    ordered, ids = torch.sort(scores, dim=1, descending=True, stable=True)
    n_kept = torch.full_like(highest, vocab, dtype=torch.int64)  # [R, 1]
    if call.top_k is not None:
        limit = rows.of(call.top_k)
        n_kept = torch.where(limit > 0, limit.clamp_max(vocab), vocab)
    if call.top_p is not None:
        share = rows.of(call.top_p).double()
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
