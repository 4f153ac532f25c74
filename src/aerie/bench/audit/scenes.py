"""How texts share an engine: together, arriving, cancelled, prefixes known, memory short."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aerie.engine.engine import EngineCore
from aerie.errors import RequestFailedError
from aerie.requests.params import SamplingParams
from aerie.requests.request import Statistics

TOGETHER = "together"
WHOLE, KNOWING, SHORT = range(3)  # memory for all; that keeps prefixes; for less than all
ARRIVE_EVERY = 3  # steps
CANCEL_EVERY = 3  # requests of a group


@dataclass(frozen=True)
class Job:
    """One text to be written."""

    number: int  # of its prompt
    prompt: Sequence[int]
    params: SamplingParams


@dataclass
class Played:
    """What was written, and what happened meanwhile."""

    texts: dict[int, list[int]] = field(default_factory=dict)  # by number of the prompt
    statistics: list[Statistics] = field(default_factory=list)
    arrivals: int = 0  # of requests while others ran
    cancels: int = 0

    def take(self, core: EngineCore, ids: Mapping[int, int]) -> None:
        """Results of finished requests, given by number of the prompt."""
        for number, request_id in ids.items():
            request = core.forget(request_id)
            error = request.ended and request.ended.error
            if error:
                raise RequestFailedError(f"prompt {number} failed, and the audit with it: {error}")
            self.texts[number] = request.output
            self.statistics.append(request.statistics)

    def met(self) -> dict[str, int]:
        """What happened, counted."""
        return {
            "arrivals": self.arrivals,
            "cancels": self.cancels,
            "preemptions": sum(own.preemptions for own in self.statistics),
            "reused_tokens": sum(own.reused_tokens for own in self.statistics),
        }


def together(core: EngineCore, jobs: Sequence[Job], batch: int) -> Played:
    """Groups of the batch's size; those of a group begin at once."""
    played = Played()
    for group in groups(jobs, batch):
        ids = {job.number: core.submit(job.prompt, job.params) for job in group}
        run_out(core)
        played.take(core, ids)
    return played


def arriving(core: EngineCore, jobs: Sequence[Job], batch: int) -> Played:
    """One after the other, every few steps, as long as fewer than the batch run."""
    played, left, running = Played(), list(jobs), dict[int, int]()
    n_steps = 0
    while left or running:
        if left and len(running) < batch and n_steps % ARRIVE_EVERY == 0:
            job = left.pop(0)
            played.arrivals += bool(running)
            running[job.number] = core.submit(job.prompt, job.params)
        core.step()
        n_steps += 1
        ended = {n: i for n, i in running.items() if core.request(i).ended is not None}
        played.take(core, ended)
        running = {n: i for n, i in running.items() if n not in ended}
    return played


def cancelled(core: EngineCore, jobs: Sequence[Job], batch: int) -> Played:
    """Some of each group leave midway; they are asked again, alone, when the others are done."""
    played = Played()
    for group in groups(jobs, batch):
        ids = {job.number: core.submit(job.prompt, job.params) for job in group}
        leaving = {
            ids[job.number]: 1 + job.params.max_tokens // (2 + place)
            for place, job in enumerate(group)
            if place % CANCEL_EVERY == 0
        }
        gone: set[int] = set()
        while not core.is_idle:
            core.step()
            for request_id, n_tokens in leaving.items():
                request = core.request(request_id)
                if request.ended is None and len(request.output) >= n_tokens:
                    core.cancel(request_id)
                    gone.add(request_id)
        for request_id in gone:
            core.discard(request_id)
        played.cancels += len(gone)
        played.take(core, {n: i for n, i in ids.items() if i not in gone})
        for job in group:
            if ids[job.number] in gone:
                request_id = core.submit(job.prompt, job.params)
                run_out(core)
                played.take(core, {job.number: request_id})
    return played


def knowing(core: EngineCore, jobs: Sequence[Job], batch: int) -> Played:
    """Beginnings of all prompts of a group are read before: the group finds their KV."""
    played = Played()
    first = SamplingParams(max_tokens=1, ignore_eos=True)
    for group in groups(jobs, batch):
        for job in group:
            request_id = core.submit(job.prompt[: 2 * len(job.prompt) // 3], first)
            run_out(core)
            core.discard(request_id)
        own = together(core, group, batch)
        played.texts |= own.texts
        played.statistics += own.statistics
    return played


def groups(jobs: Sequence[Job], batch: int) -> Iterator[Sequence[Job]]:
    """Cut to the batch's size."""
    for start in range(0, len(jobs), batch):
        yield jobs[start : start + batch]


def run_out(core: EngineCore) -> None:
    """Step until no request is left."""
    while not core.is_idle:
        core.step()


@dataclass(frozen=True)
class Scene:
    """How jobs are played, on which memory, and what must have happened for it to count."""

    play: Callable[[EngineCore, Sequence[Job], int], Played]
    memory: int = WHOLE
    counted: str | None = None  # of `Played.met`


SCENES: Mapping[str, Scene] = {
    TOGETHER: Scene(together),
    "arrivals": Scene(arriving, counted="arrivals"),
    "cancels": Scene(cancelled, counted="cancels"),
    "prefix": Scene(knowing, KNOWING, "reused_tokens"),
    "preemption": Scene(together, SHORT, "preemptions"),
}
