"""Turns requests into the arrays of one step: rows to run, sampling options, limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from aerie.attention import host_rows
from aerie.attention.rows import Bounds, Rows, causal_rows, join_rows, ragged, tree_rows
from aerie.engine.memory import Memory
from aerie.engine.params import SamplingParams
from aerie.engine.request import Request
from aerie.engine.scheduler import Plan, Reading
from aerie.kernels.registry import Kernels
from aerie.speculation.policy import Situation
from aerie.speculation.proposer import Followed
from aerie.speculation.tree import Layout


@dataclass(frozen=True, eq=False)
class Batch:
    """The drafting requests of a step as arrays, and how the proposer sees everyone."""

    requests: tuple[Request, ...]
    reading: tuple[Reading, ...]
    drafting: list[Followed]
    waiting: list[Followed]
    seq_len: Tensor  # [B] i64
    table: Tensor  # [requests, positions] i32
    table_rows: Tensor  # [B] i64

    @property
    def device(self) -> torch.device:
        """Where the arrays live."""
        return self.table.device

    @property
    def situation(self) -> Situation:
        """What a policy plans from; a batch that wants no drafts is none to it."""
        if not any(request.params.speculative for request in self.requests):
            return Situation(0, 0.0)
        n_tokens = sum(request.seq_len for request in self.requests)
        return Situation(len(self.requests), n_tokens / len(self.requests))

    def trusted(self, chosen: Tensor) -> Tensor:
        """The choice [B, N] with suspects, and who wants no drafts, cut back to their roots.

        A draft token whose row is not a number must not fail a request that plain decoding would
        have finished; on its root alone the request is judged as plain decoding judges it.
        """
        if all(request.takes_drafts for request in self.requests):
            return chosen
        kept = chosen.clone()
        for index, request in enumerate(self.requests):
            kept[index, 1:] &= request.takes_drafts
        return kept


def gather(plan: Plan, memory: Memory) -> Batch:
    """Collect what a step needs from its requests."""
    device = memory.table.device
    return Batch(
        requests=plan.drafting,
        reading=plan.reading,
        drafting=[_followed(request, memory) for request in plan.drafting],
        waiting=[_followed(stretch.request, memory) for stretch in plan.reading],
        seq_len=torch.tensor([r.seq_len for r in plan.drafting], dtype=torch.int64, device=device),
        table=memory.table,
        table_rows=torch.tensor(
            [r.held.row for r in plan.drafting], dtype=torch.int64, device=device
        ),
    )


def _followed(request: Request, memory: Memory) -> Followed:
    return Followed(
        slots=memory.slots(request),
        seq_len=request.seq_len,
        text=request.tokens,
        features=tuple(request.features),
    )


def forward_rows(batch: Batch, layout: Layout, kernels: Kernels) -> Rows:
    """The trees of the drafting requests, then the prompt chunks of the reading ones."""
    parts = []
    if batch.requests:
        parts.append(_tree_rows(batch, layout, kernels))
    if batch.reading:
        parts.append(_chunk_rows(batch))
    return parts[0] if len(parts) == 1 else join_rows(parts)


def _tree_rows(batch: Batch, layout: Layout, kernels: Kernels) -> Rows:
    ends = layout.qo_indptr.tolist()
    counts = [end - start for start, end in pairwise(ends)]
    lengths = [r.seq_len + count for r, count in zip(batch.requests, counts, strict=True)]
    lists = kernels["compute_kv_indices"](
        req_to_token=batch.table,
        req_pool_indices=batch.table_rows,
        seq_len=torch.tensor(lengths, dtype=torch.int64, device=batch.device),
        kv_capacity=sum(lengths),
    )
    make = host_rows.tree_rows if batch.device.type == "cpu" else tree_rows
    return make(
        layout.draft_tokens,
        layout.positions,
        layout.ancestor_bits.view(torch.int32),
        layout.qo_indptr,
        lists.kv_indptr,
        lists.kv_indices,
        Bounds(max(counts), max(lengths), max(counts)),
    )


def _chunk_rows(batch: Batch) -> Rows:
    tokens, qo_indptr = ragged(
        [
            torch.tensor(part.request.tokens[part.start : part.end], device=batch.device)
            for part in batch.reading
        ]
    )
    slots = [batch.table[part.request.held.row, : part.end] for part in batch.reading]
    kv_indices, kv_indptr = ragged(slots)
    longest = max(part.end - part.start for part in batch.reading)
    bounds = Bounds(longest, max(part.end for part in batch.reading))
    return causal_rows(tokens, qo_indptr, kv_indptr, kv_indices, bounds)


# Option of sample_target_tokens, its neutral value and dtype, and how a request states it.
_OPTIONS: tuple[tuple[str, float, torch.dtype, Callable[[SamplingParams], float]], ...] = (
    ("top_k", 0, torch.int64, lambda p: p.top_k),
    ("top_p", 1.0, torch.float32, lambda p: p.top_p),
    ("min_p", 0.0, torch.float32, lambda p: p.min_p),
    ("repetition_penalty", 1.0, torch.float32, lambda p: p.repetition_penalty),
    ("presence_penalty", 0.0, torch.float32, lambda p: p.presence_penalty),
    ("frequency_penalty", 0.0, torch.float32, lambda p: p.frequency_penalty),
)


def sampling_options(
    requests: Sequence[Request], layout: Layout, vocabulary: int
) -> dict[str, Any]:
    """Keyword arguments of `sample_target_tokens`; what nobody asked for is left out."""
    device = layout.positions.device

    def column(values: list[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    options: dict[str, Any] = {
        "temperature": column([r.params.temperature for r in requests], torch.float32)
    }
    if any(r.params.temperature > 0 for r in requests):
        options["seed"] = column([r.job.seed for r in requests], torch.int64)
        options["sample_index"] = column([r.job.sample_index for r in requests], torch.int64)
    for name, neutral, dtype, read in _OPTIONS:
        values = [read(r.params) for r in requests]
        if any(value != neutral for value in values):
            options[name] = column(values, dtype)
    if any(r.params.has_penalties for r in requests):
        options |= _penalty_inputs(requests, layout, vocabulary)
    if any(r.params.logit_bias for r in requests):
        options["logit_bias"] = _bias(requests, vocabulary, device)
    return options


def _penalty_inputs(
    requests: Sequence[Request], layout: Layout, vocabulary: int
) -> dict[str, Tensor]:
    device = layout.positions.device
    none = torch.zeros((2, vocabulary), dtype=torch.int32, device=device)
    counts = torch.stack([none if r.counts is None else r.counts for r in requests])
    return {
        "prompt_counts": counts[:, 0].contiguous(),
        "output_counts": counts[:, 1].contiguous(),
        "draft_tokens": layout.draft_tokens,
        "ancestor_bits": layout.ancestor_bits,
    }


def _bias(requests: Sequence[Request], vocabulary: int, device: torch.device) -> Tensor:
    bias = torch.zeros((len(requests), vocabulary), device=device)
    for row, request in enumerate(requests):
        for token, value in request.params.logit_bias.items():
            bias[row, token] = value
    return bias


def stop_table(requests: Sequence[Request], device: torch.device) -> Tensor:
    """Stop ids of each request, -1 where there is none. [B, S] i64"""
    widest = max((len(r.job.stop_ids) for r in requests), default=0)
    rows = [[*r.job.stop_ids, *[-1] * (widest - len(r.job.stop_ids))] for r in requests]
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(requests), widest)
