"""One step of the engine: propose, verify, commit. It never asks which algorithm runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from aerie.attention.pool import KVPool
from aerie.attention.rows import pad_rows
from aerie.engine.batch import Batch, forward_rows, gather, stop_table
from aerie.engine.decision import Decision, describe_failure
from aerie.engine.memory import Memory
from aerie.engine.request import Request
from aerie.engine.scheduler import Plan
from aerie.engine.verify import Verify, path_logprobs
from aerie.kernels.registry import Kernels
from aerie.models.decoder import Decoder
from aerie.speculation.policy import Policy
from aerie.speculation.proposer import Features, Proposer
from aerie.speculation.tree import DraftTree, Layout, Verdict


@dataclass(frozen=True, eq=False)
class Parts:
    """What a step runs on; wired once, in `assemble.py`."""

    target: Decoder
    pool: KVPool
    memory: Memory
    kernels: Kernels
    proposer: Proposer
    policy: Policy
    verify: Verify
    row_multiple: int  # rows of a forward are padded to it; 1 leaves them alone


@dataclass(frozen=True)
class Phases:
    """Seconds of a step's parts on the host's clock; a GPU runs behind it."""

    extend: float
    grow: float
    verify: float  # select, layout, target, verdict and commit


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one step decided, for `engine.py` to write into the requests."""

    layout: Layout
    tree: DraftTree
    chosen: Tensor  # [B, N] bool
    verdict: Verdict
    commit: Any  # the named result of K7
    logits: Tensor  # [tree rows, vocab] f32
    taps: Tensor  # [rows, captures, hidden]; tree rows first, then prompt rows
    is_extended: bool  # the draft took in the features of drafting requests that waited
    phases: Phases
    request_ids: tuple[int, ...]  # whose rows of the tree these are


def run(parts: Parts, plan: Plan) -> Outcome:
    """Run one step for everyone in the plan."""
    batch, clock = gather(plan, parts.memory), [perf_counter()]
    growth = parts.policy.open(batch.situation)
    # A round without drafts leaves the draft alone, unless following the target is free. Prompts
    # are always shown to it: pages of which it has seen a part only could not be reused.
    is_extended = growth is not None or not parts.proposer.taps
    roots = parts.proposer.extend(batch.drafting if is_extended else [], batch.waiting)
    clock.append(perf_counter())
    tree = parts.proposer.grow(batch.drafting, roots, growth)
    clock.append(perf_counter())
    # Policies decide on the host, wherever the trees are.
    seen = tree.on_host()
    chosen = batch.trusted(parts.policy.select(seen).to(batch.device))
    layout = lay_out(parts.kernels, tree, chosen, batch.seq_len)
    rows = pad_rows(forward_rows(batch, layout, parts.kernels), parts.row_multiple)
    tree_rows = torch.arange(layout.draft_tokens.shape[0], device=batch.device)
    output = parts.target.forward(rows, parts.pool, tree_rows, parts.proposer.taps)
    depth = int(tree.depths[chosen].max()) if batch.requests else 0
    verdict = parts.verify(parts.kernels, batch.requests, layout, output.logits, depth)
    committed = commit(parts.kernels, batch, layout, verdict)
    n_moves = int(committed.move_count)
    parts.pool.move(committed.kv_src[:n_moves].long(), committed.kv_dst[:n_moves].long())
    parts.policy.learn(seen, chosen.cpu(), verdict.on_host())
    phases = Phases(clock[1] - clock[0], clock[2] - clock[1], perf_counter() - clock[2])
    results = (layout, tree, chosen, verdict, committed, output.logits, output.taps)
    ids = tuple(request.job.request_id for request in batch.requests)
    return Outcome(*results, is_extended, phases, ids)


def lay_out(kernels: Kernels, tree: DraftTree, chosen: Tensor, seq_len: Tensor) -> Layout:
    """The chosen nodes as rows (K10c)."""
    rows = kernels["update_node_data"](
        cumu_tokens=tree.tokens,
        cumu_deltas=tree.depths,
        prev_indexs=tree.parents,
        node_count=tree.node_count,
        selected=chosen,
        seq_len=seq_len,
        row_capacity=int(chosen.sum()),
    )
    return Layout(
        qo_indptr=rows.qo_indptr,
        draft_tokens=rows.draft_tokens,
        positions=rows.positions,
        first_child_row=rows.first_child_row,
        next_sibling_row=rows.next_sibling_row,
        ancestor_bits=rows.ancestor_bits,
        status=rows.status,
    )


def commit(kernels: Kernels, batch: Batch, layout: Layout, verdict: Verdict) -> Any:
    """Clip, compact and plan the moves (K7). A request that failed emits nothing."""
    device = batch.device
    limits = [request.job.length_limit for request in batch.requests]
    return kernels["update_verify_result"](
        accept_index=verdict.accept_index,
        accept_count=verdict.accept_count,
        bonus_token=verdict.bonus_token,
        draft_tokens=layout.draft_tokens,
        qo_indptr=layout.qo_indptr,
        seq_len=batch.seq_len,
        length_limit=torch.tensor(limits, dtype=torch.int64, device=device),
        stop_tokens=stop_table(batch.requests, device),
        req_to_token=batch.table,
        req_pool_indices=batch.table_rows,
    )


def decisions(requests: Sequence[Request], outcome: Outcome) -> list[tuple[Request, Decision]]:
    """What an eager step decided for each request of its batch; every array is read once."""
    commit, layout, verdict = outcome.commit, outcome.layout, outcome.verdict
    ends, token_ends, row_ends = (
        array.tolist() for array in (layout.qo_indptr, commit.out_indptr, commit.rows_indptr)
    )
    words = zip(*(part.status.tolist() for part in (layout, verdict, commit)), strict=True)
    emitted, accepted = commit.out_tokens.tolist(), verdict.accept_count.tolist()
    lengths, finished = commit.new_seq_len.tolist(), commit.finished.tolist()
    found: list[tuple[Request, Decision]] = []
    for index, (request, own_words) in enumerate(zip(requests, words, strict=True)):
        failure = describe_failure(own_words)
        if failure is not None:
            # A refused layout has no rows: what counts is how many were asked for.
            n_asked = int(outcome.chosen[index].sum())
            found.append((request, Decision(n_nodes=n_asked - 1, failure=failure)))
            continue
        span = slice(token_ends[index], token_ends[index + 1])
        rows = commit.out_rows[row_ends[index] : row_ends[index + 1]]
        tokens = commit.out_tokens[span]
        logprobs: list[float] = []
        if request.params.logprobs:
            path = verdict.accept_index[index, : tokens.shape[0]] + ends[index]
            logprobs = path_logprobs(outcome.logits, path, tokens)
        decision = Decision(
            tokens=tuple(emitted[span]),
            n_nodes=ends[index + 1] - ends[index] - 1,
            n_accepted=accepted[index],
            seq_len=lengths[index],
            is_finished=finished[index],
            features=[Features(request.seq_len, outcome.taps[rows], tokens.clone())],
            is_extended=outcome.is_extended,
            logprobs=logprobs,
        )
        found.append((request, decision))
    return found
