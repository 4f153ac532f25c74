"""The engine: submit, step, cancel; requests come and go between steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aerie.config import EngineConfig
from aerie.engine.admission import Limits as Limits
from aerie.engine.admission import Room, check_request
from aerie.engine.audit import audit_decision, audit_step
from aerie.engine.decision import Decision
from aerie.engine.device_report import Decided
from aerie.engine.device_rounds import DeviceRounds
from aerie.engine.events import Event, FinishEvent, TokenEvent
from aerie.engine.params import SamplingParams
from aerie.engine.request import Job, Request, State
from aerie.engine.scheduler import Plan, Reading, Scheduler
from aerie.engine.step import Outcome, Parts, decisions, run
from aerie.errors import EngineFailedError, PerfModeError, UsageError
from aerie.speculation.proposer import Features


class EngineCore:
    """Runs requests on token ids. Text, templates and loading live above it.

    What a step decides is told once, by the events it returns; if a step is interrupted (Ctrl-C),
    the next one returns what was decided. An exception ends the engine: `failure` says why.
    """

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
        self.failure: str | None = None
        self._room = Room(parts.memory.ledger, scratch)
        self._scheduler = Scheduler(config.scheduler, parts.memory, parts.kernels, scratch)
        self._requests: dict[int, Request] = {}
        self._events: list[Event] = []  # decided, and not told yet
        self.next_id = 0  # of the next request
        self.last_outcome: Outcome | None = None

    def submit(self, prompt: Any, params: SamplingParams, sample_index: int = 0) -> int:
        """Queue a request; returns its id. Impossible ones raise UsageError and change nothing."""
        self._require_life()
        asked = check_request(prompt, params, self.config, self.limits, self._room)
        job = Job(
            request_id=self.next_id,
            prompt=asked.tokens,
            params=params,
            seed=asked.seed,
            sample_index=sample_index,
            length_limit=asked.length_limit,
            stop_ids=asked.stop_ids,
        )
        request = Request(job, list(asked.tokens))
        request.counts = self._counts(request)
        self.next_id += 1
        self._requests[job.request_id] = request
        self._scheduler.waiting.append(request)
        return job.request_id

    def cancel(self, request_id: int) -> None:
        """End a request now; the next step tells it. Unknown and finished ones are ignored."""
        request = self._requests.get(request_id)
        if request is not None and request.state is not State.FINISHED:
            self._events.append(self._finish(request, "cancelled"))

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

    def fail(self, request_id: int, error: str) -> FinishEvent:
        """End a request that cannot go on, and nobody else's."""
        return self._finish(self._requests[request_id], "error", error)

    def request(self, request_id: int) -> Request:
        """A request, finished or not, until it is forgotten."""
        if request_id not in self._requests:
            raise UsageError(
                f"there is no request {request_id!r:.60}: it was never submitted, or was collected"
                " or abandoned"
            )
        return self._requests[request_id]

    def forget(self, request_id: int) -> Request:
        """Drop a finished request and return it."""
        request = self.request(request_id)
        self.discard(request_id)
        return request

    def discard(self, request_id: int) -> None:
        """Drop a request; one that still runs ends here, untold. Unknown ones are ignored."""
        request = self._requests.get(request_id)
        if request is not None and request.state is not State.FINISHED:
            self._finish(request, "cancelled")
        self._requests.pop(request_id, None)

    def assume_read(self) -> None:
        """Take the prompts that wait as read: for measuring what contexts cost, never for text."""
        self._scheduler.assume_read()

    @property
    def running(self) -> list[Request]:
        """Requests that hold a slot and have not ended."""
        return [r for r in self._scheduler.running if r.state is not State.FINISHED]

    @property
    def waiting(self) -> list[Request]:
        """Requests that have no slot yet, or gave it back."""
        return list(self._scheduler.waiting)

    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing runs and nothing is to be told."""
        return self._scheduler.is_idle and not self._events

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One round for everyone who can run; what happened, in request order."""
        self._require_life()
        try:
            self._advance()
        except PerfModeError as error:
            self._end(error)
            raise
        except Exception as error:
            self._end(error)
            raise EngineFailedError(f"the engine ended: {self.failure}") from error
        except BaseException:
            self._recover()
            raise
        return self.take_events()

    def take_events(self) -> list[Event]:
        """What was decided and not told; after a failure also how every request ended."""
        events, self._events = self._events, []
        return events

    def _advance(self) -> None:
        plan = self._scheduler.plan()
        for request, decision in self._decide(plan):
            if self.config.audit:
                audit_decision(request, decision)
            self._write(request, decision)
        if self.config.audit:
            self.parts.memory.audit(self.running)

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
        return decisions(plan.drafting, outcome)

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

    def _write(self, request: Request, decision: Decision) -> None:
        if decision.failure and self.config.model.perf_mode:
            raise PerfModeError(f"request {request.job.request_id}: {decision.failure}")
        if decision.failure and decision.n_nodes:
            request.is_suspect = True
            return
        if decision.failure:
            self._events.append(self._finish(request, "error", decision.failure))
            return
        request.is_suspect = False
        accepted = min(decision.n_accepted, len(decision.tokens))
        request.statistics.count(decision.n_nodes, accepted)
        request.logprobs += decision.logprobs
        remember = self.parts.proposer.remember
        request.follow(decision.features, decision.is_extended, remember)
        request.seq_len = decision.seq_len
        if request.counts is not None:
            tokens = torch.tensor(decision.tokens, dtype=torch.int64, device=request.counts.device)
            ones = torch.ones_like(tokens, dtype=request.counts.dtype)
            request.counts[1].index_add_(0, tokens, ones)
        # From here on the tokens are decided, whatever interrupts: `_recover` tells what is left.
        request.tokens += decision.tokens
        self._tell(request)

    def _tell(self, request: Request) -> None:
        """Events for what a request's text has and nobody was told."""
        tokens = tuple(request.output[request.n_told :])
        if tokens:
            self._events.append(TokenEvent(request.job.request_id, tokens))
            request.n_told += len(tokens)
        reason = request.end_reason
        if reason is not None and request.ended is None:
            self._events.append(self._finish(request, reason))

    def _finish(self, request: Request, reason: str, error: str | None = None) -> FinishEvent:
        self._scheduler.end(request)
        request.features.clear()
        request.ended = FinishEvent(request.job.request_id, reason, error)
        return request.ended

    def _recover(self) -> None:
        """After an interruption nothing half-done is trusted: whoever has not ended reads again.

        Tokens that were decided stay decided. KV memory is handed out anew, prefixes are forgotten.
        """
        if self.rounds is not None:
            self.rounds.reset()
        self.parts.memory.reset()
        left = [r for r in self._requests.values() if r.ended is None]
        for request in left:
            del request.logprobs[len(request.output) :]
            request.counts = self._counts(request)
        self._scheduler.restart(left)
        for request in left:
            self._tell(request)

    def _end(self, error: Exception) -> None:
        """Nothing runs any more: every request that has not ended gets the error."""
        self.failure = f"{type(error).__name__}: {error}"
        for request in self._requests.values():
            if request.ended is None:
                request.state = State.FINISHED
                request.ended = FinishEvent(request.job.request_id, "error", self.failure)
                self._events.append(request.ended)
        self._scheduler.restart([])

    def _require_life(self) -> None:
        if self.failure is not None:
            raise EngineFailedError(f"the engine ended: {self.failure}; load a new one")

    def _counts(self, request: Request) -> Tensor | None:
        """How often each token stands in prompt and output. [2, vocab] i32; None: nobody asks."""
        if not request.params.has_penalties:
            return None
        parts = (request.job.prompt, request.output)
        size = self.limits.vocabulary
        counts = [torch.bincount(torch.tensor(part).long(), minlength=size) for part in parts]
        return torch.stack(counts).int().to(self.parts.memory.table.device)
