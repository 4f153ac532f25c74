"""The engine: submit, step, cancel; requests come and go between steps."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.config import EngineConfig, require
from aerie.engine.audit import audit_decision, audit_step
from aerie.engine.decision import Decision, describe_failure
from aerie.engine.device_report import Decided
from aerie.engine.device_rounds import DeviceRounds
from aerie.engine.events import Event, FinishEvent, TokenEvent
from aerie.engine.params import SamplingParams
from aerie.engine.request import Job, Request, State
from aerie.engine.scheduler import Plan, Reading, Scheduler
from aerie.engine.step import Outcome, Parts, run
from aerie.engine.verify import path_logprobs
from aerie.errors import PerfModeError
from aerie.speculation.proposer import Features


@dataclass(frozen=True)
class Limits:
    """What a model and its memory allow one request."""

    context: int
    vocabulary: int
    eos_ids: tuple[int, ...]


class EngineCore:
    """Runs requests on token ids. Text, templates and loading live above it."""

    def __init__(
        self,
        config: EngineConfig,
        parts: Parts,
        limits: Limits,
        scratch: int,
        rounds: DeviceRounds | None = None,
    ) -> None:
        self.parts = parts
        self.rounds = rounds  # None: every round runs in the eager loop
        self.limits = limits
        self.config = config  # its policy and backend chosen
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

    def assume_read(self) -> None:
        """Take the prompts that wait as read: for measuring what contexts cost, never for text."""
        self._scheduler.assume_read()

    @property
    def running(self) -> list[Request]:
        """Requests that hold a slot."""
        return self._scheduler.running

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return self._scheduler.is_idle

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One round for everyone who can run; what happened, in request order."""
        events = self._drop_cancelled()
        plan = self._scheduler.plan()
        for request, decision in self._decide(plan):
            if self.config.audit:
                audit_decision(request, decision)
            events += self._write(request, decision)
        if self.config.audit:
            running = self._scheduler.running
            self.parts.memory.audit([r for r in running if r.state is not State.FINISHED])
        return events

    def _decide(self, plan: Plan) -> list[Decided]:
        """Run a plan in captured rounds where they compute what is asked, else eagerly."""
        rounds = self.rounds
        if rounds is None:
            return self._run(plan)
        is_covered = rounds.covers(plan.drafting)
        if not is_covered and not rounds.is_under_way:
            rounds.stand_up()
            return self._run(plan)
        self._run(Plan((), plan.reading))
        is_quiet = is_covered and not plan.reading and not self._scheduler.waiting
        return rounds.step(plan.drafting, is_quiet)

    def _run(self, plan: Plan) -> list[Decided]:
        """One eager step for everyone in the plan."""
        if plan.is_empty:
            return []
        outcome = run(self.parts, plan)
        self.last_outcome = outcome
        self._write_reading(plan, outcome)
        if self.config.audit:
            audit_step(plan.drafting, outcome)
        return _decisions(plan.drafting, outcome)

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
        features = Features(part.start, taps, torch.tensor(following, device=taps.device))
        request.follow([features], True, self.parts.proposer.remember)
        request.seq_len = part.end
        request.statistics.prefill_tokens += part.end - part.start
        if not request.n_unread:
            request.state = State.DECODING

    def _write(self, request: Request, decision: Decision) -> list[Event]:
        if decision.failure and self.config.model.perf_mode:
            raise PerfModeError(f"request {request.job.request_id}: {decision.failure}")
        if decision.failure and decision.n_nodes:
            request.is_suspect = True
            return []
        if decision.failure:
            return [self._finish(request, "error", decision.failure)]
        request.is_suspect = False
        _count(request, decision)
        request.logprobs += decision.logprobs
        remember = self.parts.proposer.remember
        request.follow(decision.features, decision.is_extended, remember)
        request.seq_len = decision.seq_len
        request.tokens += decision.tokens
        if request.counts is not None:
            tokens = torch.tensor(decision.tokens, dtype=torch.int64, device=request.counts.device)
            ones = torch.ones_like(tokens, dtype=request.counts.dtype)
            request.counts[1].index_add_(0, tokens, ones)
        events: list[Event] = []
        if decision.tokens:
            events.append(TokenEvent(request.job.request_id, decision.tokens))
        if decision.is_finished:
            stopped = bool(decision.tokens) and decision.tokens[-1] in request.job.stop_ids
            events.append(self._finish(request, "stop" if stopped else "length"))
        return events

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
            self.config.speculation.rule != "coins" or (plain and not filters),
            "rule coins takes temperature and seed only; use rule match for the other options",
        )
        return tokens

    def _counts(self, prompt: tuple[int, ...]) -> Tensor:
        counts = torch.zeros((2, self.limits.vocabulary), dtype=torch.int32)
        counts[0] = torch.bincount(torch.tensor(prompt), minlength=self.limits.vocabulary).int()
        return counts.to(self.parts.memory.table.device)


def _decisions(requests: Sequence[Request], outcome: Outcome) -> list[Decided]:
    """What an eager step decided for each request of its batch; every array is read once."""
    commit, layout, verdict = outcome.commit, outcome.layout, outcome.verdict
    ends, token_ends, row_ends = (
        array.tolist() for array in (layout.qo_indptr, commit.out_indptr, commit.rows_indptr)
    )
    words = zip(*(part.status.tolist() for part in (layout, verdict, commit)), strict=True)
    emitted, accepted = commit.out_tokens.tolist(), verdict.accept_count.tolist()
    lengths, finished = commit.new_seq_len.tolist(), commit.finished.tolist()
    found: list[Decided] = []
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


def _count(request: Request, decision: Decision) -> None:
    statistics = request.statistics
    accepted = min(decision.n_accepted, len(decision.tokens))
    statistics.target_passes += 1
    statistics.num_draft_tokens += decision.n_nodes
    if decision.n_nodes:
        statistics.num_drafts += 1
        statistics.num_accepted_tokens += accepted
        for depth in range(1, accepted + 1):
            table = statistics.accepted_by_depth
            table[depth] = table.get(depth, 0) + 1
