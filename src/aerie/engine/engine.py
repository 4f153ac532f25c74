"""The engine: submit, step, cancel; requests come and go between steps."""

from __future__ import annotations

from typing import Any

import torch

from aerie.config import EngineConfig, require
from aerie.engine.audit import audit_decision
from aerie.engine.launch import Launcher
from aerie.engine.parts import Parts
from aerie.engine.report import Decision
from aerie.engine.scheduler import Plan, Scheduler
from aerie.errors import EngineFailedError, PerfModeError, UsageError
from aerie.kv.memory import Memory
from aerie.near_ties import NearTies, cell_of
from aerie.requests.admission import Asked, Room, check_request
from aerie.requests.admission import Limits as Limits
from aerie.requests.events import Event, FinishEvent, TokenEvent
from aerie.requests.params import MAX_STOPS, SamplingParams
from aerie.requests.request import Job, Request, State
from aerie.text.matcher import Compiled


class EngineCore:
    """Runs requests on token ids. Text, templates and loading live above it.

    What a step decides is told once, by the events it returns; if a step is interrupted (Ctrl-C),
    the next one returns what was decided. An exception ends the engine: `failure` says why.
    """

    def __init__(
        self,
        config: EngineConfig,
        launcher: Launcher,
        memory: Memory,
        limits: Limits,
        scratch: int,
    ) -> None:
        self.launcher = launcher
        self.memory = memory
        self.limits = limits
        self.config = config  # its policy and backend chosen
        self.failure: str | None = None
        self.next_id = 0  # of the next request
        self.near_ties = NearTies()  # of all requests so far
        self._room = Room(memory.ledger, scratch)
        chunks = config.graphs.chunks if config.engine == "graphs" else ()
        self._scheduler = Scheduler(config.scheduler, memory, scratch, chunks)
        self._asked: Asked | None = None  # the last one, of which there may be more samples
        self._requests: dict[int, Request] = {}
        self._events: list[Event] = []  # decided, and not told yet

    def submit(
        self,
        prompt: Any,
        params: SamplingParams,
        sample_index: int = 0,
        grammar: Compiled | None = None,
    ) -> int:
        """Queue a request; returns its id. Impossible ones raise UsageError and change nothing.

        `grammar` is that of the parameters, compiled for the model's tokenizer.
        """
        self.require_life()
        require((grammar is None) == (params.grammar is None), "a grammar must be compiled first")
        asked = None if self._asked is None else self._asked.another(prompt, params)
        if asked is None:
            asked = check_request(prompt, params, self.config, self.limits, self._room)
        self._asked = asked
        job = Job(
            request_id=self.next_id,
            prompt=asked.tokens,
            params=params,
            seed=asked.seed,
            sample_index=sample_index,
            length_limit=asked.length_limit,
            stop_ids=asked.stop_ids,
            grammar=grammar,
        )
        request = Request(job, list(asked.tokens))
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
            del request.scored[request.n_output :]
        if request.state is State.FINISHED:
            request.ended = FinishEvent(request_id, "stop")
            return request.ended
        return self._finish(request, "stop")

    def fail(self, request_id: int, error: str) -> FinishEvent:
        """End a request that cannot go on, and no other."""
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

    @property
    def parts(self) -> Parts:
        """What its rounds run on."""
        return self.launcher.parts

    def assume_read(self) -> None:
        """Take the prompts that wait as read: for measuring what contexts cost, never for text."""
        self._scheduler.assume_read()

    def is_covered(self, n_more: int) -> bool:
        """Whether no running request takes a page before it is so many tokens longer."""
        return self._scheduler.is_covered(n_more)

    @property
    def running(self) -> list[Request]:
        """Requests that hold memory and have not ended."""
        return [r for r in self._scheduler.running if r.state is not State.FINISHED]

    @property
    def waiting(self) -> list[Request]:
        """Requests that hold no memory yet, or gave it back."""
        return list(self._scheduler.waiting)

    @property
    def n_waiting(self) -> int:
        """How many those are."""
        return len(self._scheduler.waiting)

    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing runs and nothing is to be told."""
        return self._scheduler.is_idle and not self._events

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One round for all requests that can run; what happened, in request order."""
        self.require_life()
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
        decided = self.launcher.step(plan)
        for request, decision in decided:
            if self.config.audit:
                audit_decision(request, decision)
            self._write(request, decision, len(decided))
        self._end_scored(plan)
        if self.config.audit:
            self.memory.audit(self.running)

    def _write(self, request: Request, decision: Decision, batch: int) -> None:
        if decision.failure and self.config.model.perf_mode:
            raise PerfModeError(f"request {request.job.request_id}: {decision.failure}")
        if decision.failure and decision.n_nodes:
            return  # its next tree is the root alone: judged as plain decoding judges it
        if decision.failure:
            self._events.append(self._finish(request, "error", decision.failure))
            return
        tokens = _until_stop(decision.tokens, request)
        accepted = min(decision.n_accepted, len(tokens))
        request.statistics.count(decision.n_nodes, accepted, request.seq_len)
        request.statistics.previews.count(decision.n_run, decision.n_accepted)
        if decision.near:
            near = cell_of(request.seq_len, batch), len(tokens), sum(decision.near[: len(tokens)])
            for tally in (request.statistics.near_ties, self.near_ties):
                tally.count(*near)
        request.scored += decision.scored[: len(tokens)]
        request.seq_len, request.seen = decision.seq_len, decision.seen
        # From here on the tokens are decided, whatever interrupts: `_recover` tells what is left.
        request.tokens += tokens
        if request.held.pages:
            self.memory.index(request)
        self._tell(request)

    def _end_scored(self, plan: Plan) -> None:
        """A request for the scores of its prompt alone is done when that is read."""
        for part in plan.reading:
            if part.request.params.is_scoring and not part.request.n_unread:
                self._tell(part.request)

    def _tell(self, request: Request) -> None:
        """Events for what a request's text has and no event has told yet."""
        tokens = tuple(request.tokens[len(request.job.prompt) + request.n_told :])
        if tokens:
            self._events.append(TokenEvent(request.job.request_id, tokens))
            request.n_told += len(tokens)
        reason = request.end_reason
        if reason is not None and request.ended is None:
            self._events.append(self._finish(request, reason))

    def _finish(self, request: Request, reason: str, error: str | None = None) -> FinishEvent:
        self._scheduler.end(request)
        request.ended = FinishEvent(request.job.request_id, reason, error)
        return request.ended

    def _recover(self) -> None:
        """After an interruption nothing half-done is trusted: open requests read their texts again.

        Tokens that were decided stay decided. KV memory is handed out anew, prefixes are forgotten.
        """
        self.launcher.reset()
        self.memory.reset()
        left = [r for r in self._requests.values() if r.ended is None]
        self._scheduler.restart(left)
        for request in left:
            del request.scored[request.n_output :]
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

    def require_life(self) -> None:
        """Raise EngineFailedError if the engine has ended, or a part of its target is gone."""
        lost = self.parts.target.lost
        if lost is not None and self.failure is None:
            self._end(lost)
        if self.failure is not None:
            raise EngineFailedError(f"the engine ended: {self.failure}; load a new one")


def _until_stop(tokens: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """Tokens up to the first stop id: the device knows as many of those as K7 can hold."""
    if len(request.job.stop_ids) <= MAX_STOPS:
        return tokens
    for index, token in enumerate(tokens, 1):
        if token in request.job.stop_ids and request.n_output + index > request.params.floor:
            return tokens[:index]
    return tokens
