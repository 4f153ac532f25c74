"""The scheduler: who reads, who drafts, and who gives memory back when it runs short."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.config import SchedulerConfig
from aerie.engine.memory import Memory
from aerie.engine.request import Holding, Request, State
from aerie.kernels.registry import Kernels


@dataclass(frozen=True)
class Reading:
    """A stretch of a prompt to prefill: tokens [start, end)."""

    request: Request
    start: int
    end: int


@dataclass(frozen=True)
class Plan:
    """One step: these requests draft and verify, those read a chunk of their prompt."""

    drafting: tuple[Request, ...]
    reading: tuple[Reading, ...]

    @property
    def is_empty(self) -> bool:
        """Nothing to run."""
        return not self.drafting and not self.reading


class Scheduler:
    """First come, first served. Finished requests are not in any plan: they cost nothing."""

    def __init__(
        self, config: SchedulerConfig, memory: Memory, kernels: Kernels, scratch: int
    ) -> None:
        self._config = config
        self._memory = memory
        self._kernels = kernels
        self._scratch = scratch  # positions a round may use beyond seq_len
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def plan(self) -> Plan:
        """Drop the dead, admit what fits, make room for who runs, cut the prompts into chunks."""
        self._compact()
        self._admit()
        drafting = self._with_room([r for r in self.running if r.state is State.DECODING])
        reading = self._chunks()
        return Plan(tuple(drafting), tuple(reading))

    def assume_read(self) -> None:
        """Admit who waits and take the prompts as read, though nobody computed their KV."""
        self._admit()
        for request in self.running:
            if request.state is State.READING and self._memory.cover(request, len(request.tokens)):
                request.seq_len = len(request.tokens) - 1
                request.state = State.DECODING

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and whoever still has a slot has finished."""
        return not self.waiting and all(r.state is State.FINISHED for r in self.running)

    def end(self, request: Request) -> None:
        """Release a request's memory; its slot is gone with the next plan."""
        if request in self.waiting:
            self.waiting.remove(request)
        self._memory.release(request)
        request.state = State.FINISHED

    def restart(self, requests: Iterable[Request]) -> None:
        """Nobody runs; these wait, first come first, and read everything again."""
        self.running = []
        self.waiting = deque(requests)
        for request in self.waiting:
            request.statistics.preemptions += bool(request.held.pages)
            request.held = Holding()
            request.forget_kv()
            request.state = State.WAITING

    def _compact(self) -> None:
        """Keep the active slots alone (K13): a finished request costs nothing from here on."""
        running, device = self.running, self._memory.table.device

        def column(values: list[int] | list[bool]) -> Tensor:
            dtype = torch.bool if values and isinstance(values[0], bool) else torch.int64
            return torch.tensor(values, dtype=dtype, device=device)

        # Only an end leaves a slot dead; asking a device every step would wait for it.
        if not any(r.state is State.FINISHED for r in running):
            return
        found = self._kernels["build_active_slots"](
            finished=column([r.state is State.FINISHED for r in running]),
            seq_len=column([r.seq_len for r in running]),
            length_limit=column([r.job.length_limit for r in running]),
            eos_terminated=column([r.ended is not None for r in running]),
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
                    kept.append(request)
                    break
                self._preempt(self.running[-1])
        return [request for request in kept if request.state is State.DECODING]

    def _preempt(self, request: Request) -> None:
        """Take a request's memory; it will read its prompt and its output so far again."""
        self._memory.release(request)
        self.running.remove(request)
        request.forget_kv()
        request.state = State.WAITING
        request.statistics.preemptions += 1
        self.waiting.appendleft(request)

    def _chunks(self) -> list[Reading]:
        budget = self._config.prefill_chunk
        found: list[Reading] = []
        for request in self.running:
            if request.state is State.READING and budget > 0:
                end = request.seq_len + min(budget, request.n_unread)
                if self._memory.cover(request, end):
                    found.append(Reading(request, request.seq_len, end))
                    budget -= end - request.seq_len
        return found
