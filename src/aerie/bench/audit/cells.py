"""The cells of an audit (policy, scene, batch, chunk, sampling), and how they are played."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aerie.config import SchedulerConfig, SpeculationConfig, require
from aerie.config.values import choice
from aerie.engine.engine import EngineCore
from aerie.errors import RequestFailedError
from aerie.requests.params import SamplingParams
from aerie.requests.request import Statistics

TextKey = tuple[str, int, int, int]
TOGETHER = "together"
WHOLE, KNOWING, SHORT = range(3)  # memory for all; that keeps prefixes; for less than all
ARRIVE_EVERY = 3  # steps
CANCEL_EVERY = 3  # requests of a group
OFF, ASKED = "off", "asked"  # plain decoding; whatever the engine's options say
POLICIES: Mapping[str, SpeculationConfig] = {
    OFF: SpeculationConfig(method="none"),
    "chain": SpeculationConfig(top_k=1, depth=7, nodes=8),
    "tree": SpeculationConfig(top_k=8, depth=5, nodes=32),
    "planner": SpeculationConfig(policy="planner"),
}
MOST_AT_ONCE = 4096  # prompt tokens of a step, as on a GPU by default
SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
}


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

    def write(self, core: EngineCore, jobs: Iterable[Job]) -> None:
        """Submit requests at once, and step until no request is left."""
        ids = {job.number: core.submit(job.prompt, job.params) for job in jobs}
        while not core.is_idle:
            core.step()
        self.take(core, ids)

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
        played.write(core, group)
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
                played.write(core, [job])
    return played


def knowing(core: EngineCore, jobs: Sequence[Job], batch: int) -> Played:
    """Beginnings of all prompts of a group are read before: the group finds their KV."""
    played = Played()
    first = SamplingParams(max_tokens=1, ignore_eos=True)
    for group in groups(jobs, batch):
        for job in group:
            beginning = job.prompt[: 2 * len(job.prompt) // 3]
            Played().write(core, [Job(job.number, beginning, first)])
        played.write(core, group)
    return played


def groups(jobs: Sequence[Job], batch: int) -> Iterator[Sequence[Job]]:
    """Cut to the batch's size."""
    for start in range(0, len(jobs), batch):
        yield jobs[start : start + batch]


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


@dataclass(frozen=True)
class Cell:
    """So many texts under one set of conditions; its texts are those of prompts 0 to n - 1."""

    policy: str
    scene: str
    batch: int
    chunk: int  # prompt tokens read in a step, at most
    sampling: str
    context: int  # tokens of a prompt
    new_tokens: int
    texts: int

    @property
    def name(self) -> str:
        """In words."""
        shape = f"batch {self.batch}, chunk {self.chunk}, {self.context} + {self.new_tokens} tokens"
        return f"{self.policy}, {self.sampling}, {self.scene}, {shape}"

    def key(self, number: int) -> TextKey:
        """Whose text it is: a prompt's number means nothing without the others."""
        return self.sampling, self.context, self.new_tokens, number


@dataclass(frozen=True)
class Plan:
    """The axes. Texts of the grid are decoded together.

    Every other scene is played at one batch size, with the largest chunk.
    """

    policies: tuple[str, ...] = tuple(POLICIES)
    batches: tuple[int, ...] = (1, 4)
    texts: tuple[int, ...] = (8,)  # of a cell: one number, or one for each batch size
    chunks: tuple[int, ...] = (64, 256)
    samplings: tuple[str, ...] = tuple(SAMPLINGS)
    scenes: tuple[str, ...] = tuple(SCENES)
    scene_texts: int = 8  # of a cell of any scene but together
    context: int = 256
    new_tokens: int = 64
    seed: int = 0  # of prompt 0; each further one has the next

    def __post_init__(self) -> None:
        known = {
            "policies": (*POLICIES, ASKED),
            "samplings": tuple(SAMPLINGS),
            "scenes": tuple(SCENES),
        }
        for axis, names in known.items():
            for name in getattr(self, axis):
                choice(f"name in --{axis}", name, names)
        for axis in (*known, "batches", "chunks"):
            values = getattr(self, axis)
            require(len(set(values)) == len(values) > 0, f"--{axis} is empty or names one twice")
        SchedulerConfig(self.most_together)  # so many at a time must be possible
        n_given, n_batches = len(self.texts), len(self.batches)
        require(n_given in (1, n_batches), f"--texts has {n_given} numbers, --batches {n_batches}")

    @property
    def scene_batch(self) -> int:
        """Where scenes are played: a request alone has none to arrive, leave or make room."""
        return next((batch for batch in sorted(self.batches) if batch > 1), 2)

    @property
    def most_together(self) -> int:
        """The largest batch of all cells."""
        return max(*self.batches, self.scene_batch)

    def _chunk(self, scene: str) -> int:
        """Read at once, prompts end up short of memory before the first of them is done."""
        at_once = min(self.scene_batch * self.context, MOST_AT_ONCE)
        is_short = SCENES[scene].memory == SHORT
        return max(*self.chunks, at_once if is_short else 0)

    def cells(self) -> list[Cell]:
        """Plain decoding first, whose texts the others are held against; one engine at a time."""
        texts = self.texts * len(self.batches) if len(self.texts) == 1 else self.texts
        places = [
            (TOGETHER, batch, chunk, n)
            for chunk in self.chunks
            for batch, n in zip(self.batches, texts, strict=True)
            if TOGETHER in self.scenes
        ]
        places += [
            (scene, self.scene_batch, self._chunk(scene), self.scene_texts)
            for scene in self.scenes
            if scene != TOGETHER
        ]
        # Those of equal memory and chunk share an engine.
        places.sort(key=lambda place: (SCENES[place[0]].memory, place[2]))
        return [
            Cell(policy, scene, batch, chunk, sampling, self.context, self.new_tokens, n)
            for policy in sorted(self.policies, key=lambda name: name != OFF)
            for scene, batch, chunk, n in places
            for sampling in self.samplings
        ]


QUICK = Plan(batches=(1, 3), texts=(3,), chunks=(16, 48), scene_texts=3, context=48, new_tokens=24)
