"""The scheduler: which requests read, which draft, and which give memory back when it is short."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from aerie.config import SchedulerConfig
from aerie.engine.graphs import smallest
from aerie.kv.memory import Memory
from aerie.requests.request import Holding, Request, State

# Steps, as far as a chunk may grow. In process, an H200, fresh prompts of 1,024 tokens: 4 steps, 2
# and 1 gave 32 clients 5,651, 5,804 and 5,652 tokens/s and first tokens after 127, 102 and 106 ms,
# 64 clients 6,258, 6,327 and 6,358 and 305, 201 and 165 ms; 8 clients 39, 39 and 56 ms (2026-11).
READ_WITHIN = 2
FORESEEN = 3  # rounds whose pages are taken ahead: as many as may be under way


@dataclass(frozen=True, eq=False)
class Reading:
    """A stretch of a prompt to prefill: tokens [start, end)."""

    request: Request
    start: int
    end: int
    completes: bool  # nothing is left to read, and there is room for a first round


@dataclass(frozen=True, eq=False)
class Plan:
    """One step: these requests draft and verify, those read a chunk of their prompt."""

    drafting: tuple[Request, ...]
    reading: tuple[Reading, ...] = ()
    is_quiet: bool = True  # no request reads and none waits

    @property
    def decoding(self) -> tuple[Request, ...]:
        """The requests that decode once the prompts are read so far."""
        return (*self.drafting, *(part.request for part in self.reading if part.completes))


class Scheduler:
    """First come, first served. Finished requests are not in any plan: they cost nothing."""

    def __init__(
        self, config: SchedulerConfig, memory: Memory, scratch: int, chunks: Sequence[int] = ()
    ) -> None:
        self._config = config
        self._memory = memory
        self._scratch = scratch  # positions a round may use beyond seq_len
        self._sizes = chunks  # that chunks are padded to; none: they fit exactly
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def plan(self) -> Plan:
        """Drop the dead, admit what fits, make room for what runs, cut the prompts into chunks."""
        self._compact()
        self._admit()
        drafting = self._with_room([r for r in self.running if r.state is State.DECODING])
        reading = self._chunks(bool(drafting))
        return Plan(tuple(drafting), tuple(reading), not reading and not self.waiting)

    def assume_read(self) -> None:
        """Admit what waits and take the prompts as read, though their KV was not computed."""
        self._admit()
        for request in self.running:
            if request.state is State.READING and self._memory.cover(request, len(request.tokens)):
                request.seq_len = len(request.tokens) - 1
                request.state = State.DECODING

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and every request that still has a slot has finished."""
        return not self.waiting and all(r.state is State.FINISHED for r in self.running)

    def end(self, request: Request) -> None:
        """Release a request's memory; its slot is gone with the next plan."""
        # Most that end do not wait: a queue is long where it is longest looked through.
        if request.state is State.WAITING and request in self.waiting:
            self.waiting.remove(request)
        self._memory.release(request)
        request.state = State.FINISHED

    def restart(self, requests: Iterable[Request]) -> None:
        """No request runs; these wait, first come first, and read everything again."""
        self.running = []
        self.waiting = deque(requests)
        for request in self.waiting:
            request.statistics.preemptions += bool(request.held.pages)
            request.held = Holding()
            request.forget_kv()
            request.state = State.WAITING

    def _compact(self) -> None:
        """Keep the active slots alone (K13): a finished request costs nothing from here on."""
        running = self.running
        # Only an end leaves a slot dead.
        if not any(r.state is State.FINISHED for r in running):
            return
        found = self._memory.kernels["build_active_slots"](
            finished=torch.tensor([r.state is State.FINISHED for r in running]),
            seq_len=torch.tensor([r.seq_len for r in running]),
            length_limit=torch.tensor([r.job.length_limit for r in running]),
            eos_terminated=torch.tensor([r.ended is not None for r in running]),
        )
        self.running = [running[slot] for slot in found.active_slots.tolist() if slot >= 0]

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._config.max_batch:
            request = self.waiting[0]
            # Everything it has so far, the root and one round's scratch must fit at once, or it
            # would be preempted right away.
            if not self._memory.start(request, len(request.tokens) + self._scratch):
                return
            self.waiting.popleft()
            request.state = State.READING if request.n_unread else State.DECODING
            self.running.append(request)

    def _with_room(self, drafting: list[Request]) -> list[Request]:
        """Cover seq_len and one round's scratch for each; the youngest make room for the oldest."""
        kept: list[Request] = []
        for request in drafting:
            while request.state is State.DECODING:
                if self._memory.cover(request, request.seq_len + 1 + self._scratch):
                    self._memory.foresee(request, self._foreseen(request))
                    kept.append(request)
                    break
                self._preempt(self.running[-1])
        return [request for request in kept if request.state is State.DECODING]

    def is_covered(self, n_more: int) -> bool:
        """Whether no running request takes a page before it is so many tokens longer."""
        return all(self._memory.covers(r, self._foreseen(r, n_more)) for r in self.running)

    def _foreseen(self, request: Request, n_more: int = 0) -> int:
        """Positions of the rounds that may be launched before the one that ends there is told."""
        end = request.seq_len + n_more
        reach = min(end + FORESEEN * self._scratch, request.job.length_limit)
        return max(reach, end) + 1 + self._scratch

    def _preempt(self, request: Request) -> None:
        """Take a request's memory; it will read its prompt and its output so far again."""
        self._memory.release(request)
        self.running.remove(request)
        request.forget_kv()
        request.state = State.WAITING
        request.statistics.preemptions += 1
        self.waiting.appendleft(request)

    def _chunks(self, is_busy: bool) -> list[Reading]:
        """Stretches of prompts, the oldest first; fewer tokens where others wait for a round."""
        unread = [request for request in self.running if request.state is State.READING]
        most = budget = self._config.prefill_chunk
        if is_busy:
            # The more is to be read, the longer a round may wait for it: newcomers wait, too.
            backlog = sum(request.n_unread for request in unread)
            budget = min(most, max(self._config.chunk_beside, backlog // READ_WITHIN))
        slack = min(budget // READ_WITHIN, most - budget)
        found: list[Reading] = []
        n_read = 0
        for request in unread:
            left = budget - n_read
            # A short rest would take a launch of its own, and a round until the first token.
            if left > 0 and request.n_unread <= left + slack:
                left = request.n_unread
            start = request.seq_len
            n_tokens = min(max(left, self._padding(n_read)), request.n_unread)
            if n_tokens <= 0 or not self._memory.cover(request, start + n_tokens):
                continue
            room = len(request.tokens) + self._scratch
            is_last = n_tokens == request.n_unread and not request.params.is_scoring
            completes = is_last and self._memory.cover(request, room)
            found.append(Reading(request, start, start + n_tokens, completes))
            n_read += n_tokens
        return found

    def _padding(self, n_read: int) -> int:
        """Rows of a chunk that would be padding: the next prompt begins there."""
        if not n_read or not self._sizes:
            return 0
        padding = smallest(self._sizes, n_read) - n_read
        return padding if padding >= self._sizes[0] else 0
