"""The engine: submit, step, cancel; requests come and go between steps."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.config import EngineConfig, require
from aerie.engine.audit import audit_step
from aerie.engine.events import Event, FinishEvent, TokenEvent
from aerie.engine.params import SamplingParams
from aerie.engine.request import Job, Request, State
from aerie.engine.scheduler import Plan, Reading, Scheduler
from aerie.engine.step import Outcome, Parts, run
from aerie.engine.verify import path_logprobs
from aerie.kernels.status import MEANINGS, Status
from aerie.speculation.proposer import Features


@dataclass(frozen=True)
class Limits:
    """What a model and its memory allow one request."""

    context: int
    vocabulary: int
    eos_ids: tuple[int, ...]


class EngineCore:
    """Runs requests on token ids. Text, templates and loading live above it."""

    def __init__(self, config: EngineConfig, parts: Parts, limits: Limits, scratch: int) -> None:
        self.parts = parts
        self.limits = limits
        self._config = config
        self._scratch = scratch
        self._scheduler = Scheduler(config.scheduler, parts.memory, parts.kernels, scratch)
        self._requests: dict[int, Request] = {}
        self._next_id = 0
        self.last_outcome: Outcome | None = None

    def submit(self, prompt: Sequence[int], params: SamplingParams, sample_index: int = 0) -> int:
        """Queue a request; returns its id. Impossible ones raise UsageError and change nothing."""
        tokens = self._checked(prompt, params)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        stops = params.stop_token_ids + (() if params.ignore_eos else self.limits.eos_ids)
        job = Job(
            request_id=self._next_id,
            prompt=tokens,
            params=params,
            seed=seed,
            sample_index=sample_index,
            length_limit=min(len(tokens) + params.max_tokens, self.limits.context),
            stop_ids=tuple(dict.fromkeys(stops)),
        )
        counts = self._counts(tokens) if params.has_penalties else None
        request = Request(job, list(tokens), counts=counts)
        self._next_id += 1
        self._requests[job.request_id] = request
        self._scheduler.waiting.append(request)
        return job.request_id

    def cancel(self, request_id: int) -> None:
        """End a request before the next step; unknown or finished ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None and request.state is not State.FINISHED:
            request.is_cancelled = True

    def stop(self, request_id: int, n_tokens: int) -> FinishEvent:
        """End a request whose text met a stop string; its last `n_tokens` never happened."""
        request = self._requests[request_id]
        if n_tokens:
            del request.tokens[-n_tokens:]
            del request.logprobs[len(request.output) :]
        if request.state is State.FINISHED:
            request.ended = FinishEvent(request_id, "stop")
            return request.ended
        return self._finish(request, "stop")

    def request(self, request_id: int) -> Request:
        """A request, finished or not, until it is forgotten."""
        return self._requests[request_id]

    def forget(self, request_id: int) -> Request:
        """Drop a finished request and return it."""
        return self._requests.pop(request_id)

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return self._scheduler.is_idle

    def step(self) -> list[Event]:
        """One round for everyone who can run; what happened, in request order."""
        events = self._drop_cancelled()
        plan = self._scheduler.plan()
        if plan.is_empty:
            return events
        outcome = run(self.parts, plan)
        self.last_outcome = outcome
        self._write_reading(plan, outcome)
        for index, request in enumerate(plan.drafting):
            events += self._write_drafting(index, request, outcome)
        if self._config.audit:
            audit_step(plan.drafting, outcome)
            running = self._scheduler.running
            self.parts.memory.audit([r for r in running if r.state is not State.FINISHED])
        return events

    def _drop_cancelled(self) -> list[Event]:
        dropped = [
            request
            for request in (*self._scheduler.running, *self._scheduler.waiting)
            if request.is_cancelled and request.state is not State.FINISHED
        ]
        return [self._finish(request, "cancelled") for request in dropped]

    def _write_reading(self, plan: Plan, outcome: Outcome) -> None:
        """Prompt rows are committed as they are; their features wait for the next extend."""
        first = outcome.layout.draft_tokens.shape[0]
        for part in plan.reading:
            n_rows = part.end - part.start
            taps = outcome.taps[first : first + n_rows]
            first += n_rows
            self._read(part, taps)

    def _read(self, part: Reading, taps: Tensor) -> None:
        request = part.request
        following = request.tokens[part.start + 1 : part.end + 1]
        request.features = [Features(part.start, taps, torch.tensor(following, device=taps.device))]
        request.seq_len = part.end
        request.statistics.prefill_tokens += part.end - part.start
        if not request.n_unread:
            request.state = State.DECODING

    def _write_drafting(self, index: int, request: Request, outcome: Outcome) -> list[Event]:
        failure = self._failure(index, outcome)
        if failure and int(outcome.chosen[index].sum()) > 1:
            request.is_suspect = True
            return []
        if failure:
            return [self._finish(request, "error", failure)]
        request.is_suspect = False
        commit = outcome.commit
        span = slice(int(commit.out_indptr[index]), int(commit.out_indptr[index + 1]))
        tokens = commit.out_tokens[span]
        emitted = [int(token) for token in tokens]
        rows = commit.out_rows[int(commit.rows_indptr[index]) : int(commit.rows_indptr[index + 1])]
        self._count(index, request, outcome, len(emitted))
        if request.params.logprobs:
            path = outcome.verdict.accept_index[index, : len(emitted)]
            flat = path + int(outcome.layout.qo_indptr[index])
            request.logprobs += path_logprobs(outcome.logits, flat, tokens)
        request.features = [Features(request.seq_len, outcome.taps[rows], tokens.clone())]
        request.seq_len = int(commit.new_seq_len[index])
        request.tokens += emitted
        if request.counts is not None:
            request.counts[1].index_add_(
                0, tokens, torch.ones_like(tokens, dtype=request.counts.dtype)
            )
        events: list[Event] = []
        if emitted:
            events.append(TokenEvent(request.job.request_id, tuple(emitted)))
        if bool(commit.finished[index]):
            stopped = bool(emitted) and emitted[-1] in request.job.stop_ids
            events.append(self._finish(request, "stop" if stopped else "length"))
        return events

    def _failure(self, index: int, outcome: Outcome) -> str | None:
        """Why a request cannot go on: NaN logits, a broken layout. The others are not touched."""
        for status in (outcome.layout.status, outcome.verdict.status, outcome.commit.status):
            word = int(status[index])
            if word:
                return f"{MEANINGS[Status(word)].sentence} (status {Status(word).name})"
        return None

    def _count(self, index: int, request: Request, outcome: Outcome, n_emitted: int) -> None:
        statistics = request.statistics
        n_nodes = int(outcome.layout.qo_indptr[index + 1] - outcome.layout.qo_indptr[index]) - 1
        accepted = min(int(outcome.verdict.accept_count[index]), n_emitted)
        statistics.target_passes += 1
        statistics.num_draft_tokens += n_nodes
        if n_nodes:
            statistics.num_drafts += 1
            statistics.num_accepted_tokens += accepted
            for depth in range(1, accepted + 1):
                table = statistics.accepted_by_depth
                table[depth] = table.get(depth, 0) + 1

    def _finish(self, request: Request, reason: str, error: str | None = None) -> FinishEvent:
        self._scheduler.end(request)
        request.features.clear()
        request.ended = FinishEvent(request.job.request_id, reason, error)
        return request.ended

    def _checked(self, prompt: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
        tokens = tuple(int(token) for token in prompt)
        limits, memory = self.limits, self.parts.memory
        require(bool(tokens), "the prompt is empty: give at least one token")
        require(
            len(tokens) < limits.context,
            f"the prompt has {len(tokens)} tokens, the context holds {limits.context}:"
            " shorten it or use a model with a longer context",
        )
        for token in (*tokens, *params.stop_token_ids, *params.logit_bias):
            require(
                0 <= token < limits.vocabulary,
                f"token id {token} is outside the vocabulary of {limits.vocabulary}",
            )
        needed = min(len(tokens) + params.max_tokens, limits.context) + self._scratch
        available = (memory.ledger.n_pages - 1) * memory.ledger.page_size
        require(
            needed <= available,
            f"this request may need {needed} KV slots, the pool has {available}:"
            " raise cache.n_pages or lower max_tokens",
        )
        plain = params.repetition_penalty == 1 and not params.logit_bias
        filters = params.top_k or params.top_p < 1 or params.min_p or params.has_penalties
        require(
            self._config.speculation.rule != "coins" or (plain and not filters),
            "rule coins takes temperature and seed only; use rule match for the other options",
        )
        return tokens

    def _counts(self, prompt: tuple[int, ...]) -> Tensor:
        counts = torch.zeros((2, self.limits.vocabulary), dtype=torch.int32)
        counts[0] = torch.bincount(torch.tensor(prompt), minlength=self.limits.vocabulary).int()
        return counts.to(self.parts.memory.table.device)
