"""Measures a cost table by running real rounds of forced shapes on made-up contexts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import torch
from torch import Tensor

from aerie.engine.engine import EngineCore
from aerie.engine.measure_quiet import Disturbance, drift_between
from aerie.engine.params import SamplingParams
from aerie.engine.request import Request, State
from aerie.speculation.costs import CostTable, Sample, Surface
from aerie.speculation.policy import Gains, Growth, Situation, TreeShape
from aerie.speculation.tree import DraftTree, Verdict, best_nodes

# Builds an engine without prefix reuse that holds so many requests of so many tokens.
MakeCore = Callable[[int, int], EngineCore]
# Told what is under way, and how much of all of it is done.
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Grid:
    """Where costs are measured."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    most_rows: int  # of all requests together, beyond two a request
    repeats: int  # sweeps over all points
    most_tokens: int  # KV of a measured point; a point with more is stretched from one request
    most_seconds: float = math.inf  # no point is begun later but the first, nor another sweep

    def measures(self, batch: int, context: int) -> bool:
        """Whether a point is run, not derived."""
        is_first = context == self.contexts[0]
        return batch == 1 or is_first or batch * context <= self.most_tokens


# About three seconds for the built-in pair on one quiet core; `aerie tune costs` takes minutes.
QUICK = Grid((1, 4, 16), (256, 4096), 128, 3, 0, 15.0)
FULL = Grid((1, 2, 4, 8, 16, 32), (256, 2048, 8192), 256, 5, 131_072)


@dataclass(frozen=True)
class Forced:
    """A policy that plans what it is told to, on a planner's own buffers: same work, fixed plan."""

    shape: TreeShape
    width: int
    depth: int
    rows: int

    @property
    def reason(self) -> str:
        """It is told to."""
        return "a forced plan, to be measured"

    @property
    def is_shallowest(self) -> bool:
        """One level: nothing is fed to the draft but what was committed."""
        return self.depth == 1 and self.rows > 1

    def open(self, situation: Situation) -> Growth | None:
        """Always, unless the root is all there is."""
        return self if self.rows > 1 else None

    def next_width(self, depth: int, gains: Gains) -> int:
        """The same width down to the last level; K3 is paid for as a planner pays for it."""
        gains()
        return self.width if depth < self.depth else 0

    def select(self, tree: DraftTree) -> Tensor:
        """The best rows of each request."""
        return best_nodes(tree, self.rows)

    def learn(self, tree: DraftTree, chosen: Tensor, verdict: Verdict) -> None:
        """Nothing."""


def forced_plans(shape: TreeShape) -> tuple[Forced, ...]:
    """A request's trees, from the root alone up: level widths 1, 4 and 8."""
    numbers = ((1, 1, 1), (1, 1, 2), (1, 3, 4), (4, 3, 8), (4, 3, 16), (8, 3, 32), (8, 3, 64))
    return tuple(Forced(shape, width, depth, rows) for width, depth, rows in numbers)


WARM_ROUNDS = 2
# Made-up texts accept nothing. Rounds without drafts in front of one that drafts leave it as many
# positions to take in as real rounds do: an extension is timed at so many tokens a request.
EXTENDED = 4
MOST_TOKENS = 400  # more than the rounds of one point can emit


@dataclass(frozen=True)
class _Timing:
    """Seconds of a round's parts."""

    extend: float
    grow: float
    rest: float

    @property
    def total(self) -> float:
        """Of the whole round."""
        return self.extend + self.grow + self.rest


def measure_costs(
    make_core: MakeCore,
    grid: Grid,
    provenance: Mapping[str, object],
    progress: Progress = silent,
) -> CostTable:
    """Measure every point; long contexts of larger batches follow from those of one request."""
    places = [
        (batch, context)
        for batch in grid.batches
        for context in filter(partial(grid.measures, batch), grid.contexts)
    ]
    points: list[_Point] = []
    begin, total = time.perf_counter(), grid.repeats * len(places)
    for done, (batch, context) in enumerate(places):
        progress(f"batch {batch}, context {context}", done, total)
        if not points or time.perf_counter() - begin < grid.most_seconds:
            points.append(_Point(batch, context, _warm_core(make_core, batch, context)))
            points[-1].run(grid.most_rows)
            points[-1].sweeps.clear()  # a plan's first round pays for checks and allocations
            points[-1].run(grid.most_rows)
    # Over all points again and again: a slow spell of the machine that lasts for one point's
    # rounds is over when its turn comes again.
    for sweep in range(1, grid.repeats):
        for at, point in enumerate(points):
            name = f"batch {point.batch}, context {point.context}, again"
            progress(name, sweep * len(places) + at, total)
            if time.perf_counter() - begin < grid.most_seconds:
                point.run(grid.most_rows)
    progress("measured", total, total)
    return _table(points, grid, provenance)


def _table(points: Sequence[_Point], grid: Grid, provenance: Mapping[str, object]) -> CostTable:
    samples: dict[str, list[Sample]] = {"verify": [], "draft": [], "extend": []}
    for point in points:
        for name, found in point.samples().items():
            samples[name] += found
    surfaces = {
        name: Surface((*found, *_stretched(found, grid))) for name, found in samples.items()
    }
    sweeps = [found for point in points for found in point.sweeps.values() if found[1:]]
    wall, ran = (sum(getattr(point, name) for point in points) for name in ("wall", "ran"))
    disturbance = Disturbance(
        stolen=max(1 - ran / wall, 0.0),
        drift=drift_between(*([timings[at].total for timings in sweeps] for at in (0, -1))),
    )
    return CostTable(**surfaces, provenance={**provenance, **disturbance.record()})


def _stretched(found: list[Sample], grid: Grid) -> Iterable[Sample]:
    """What a longer context adds to one request, it adds to each of a larger batch."""
    short = grid.contexts[0]
    alone = Surface(tuple(sample for sample in found if sample.batch == 1))
    for sample in found:
        if sample.context != short:
            continue
        rows = max(sample.rows // sample.batch, 1)
        for context in grid.contexts:
            if not grid.measures(sample.batch, context):
                added = alone.at(1, context, rows) - alone.at(1, short, rows)
                seconds = sample.seconds + sample.batch * max(added, 0.0)
                yield replace(sample, context=context, seconds=seconds)


def _warm_core(make_core: MakeCore, batch: int, context: int) -> EngineCore:
    """An engine whose requests claim a context nobody has read: only its cost matters."""
    core = make_core(batch, context)
    # Slots that follow each other are read in place, those of a fresh engine only.
    core.parts.memory.ledger.scatter()
    params = SamplingParams(max_tokens=MOST_TOKENS, temperature=0.0, ignore_eos=True)
    for index in range(batch):
        prompt = [(7 * position + index) % core.limits.vocabulary for position in range(context)]
        core.submit(prompt, params)
    core.assume_read()
    core.parts = replace(core.parts, policy=Forced(core.parts.policy.shape, 1, 1, 1))
    for _ in range(WARM_ROUNDS):
        core.step()
    assert all(r.state is State.DECODING for r in core.running), "the prompts were not adopted"
    return core


@dataclass(eq=False)
class _Point:
    """One batch size and context, and how fast the plans ran there."""

    batch: int
    context: int
    core: EngineCore
    sweeps: dict[Forced, list[_Timing]] = field(default_factory=dict)  # one of each sweep
    wall: float = 0.0  # seconds of all rounds so far, and of those the seconds
    ran: float = 0.0  # in which this thread had a core

    def run(self, most_rows: int) -> None:
        """One sweep: the plans take turns, so that noise hits all alike."""
        most = max(most_rows, 2 * self.batch)
        for plan in forced_plans(self.core.parts.policy.shape):
            if self.batch * plan.rows > most:
                continue
            for _ in range(EXTENDED - 1 if plan.is_shallowest else 0):
                self._time(replace(plan, depth=1, rows=1))
            self.sweeps.setdefault(plan, []).append(self._time(plan))

    @property
    def times(self) -> dict[Forced, _Timing]:
        """How long each plan takes."""
        return {plan: _median(found) for plan, found in self.sweeps.items()}

    def _time(self, plan: Forced) -> _Timing:
        """One round. Of a single thread the time counts in which it ran.

        What a busy machine gave to others is no cost of the round: with two processes on a core
        the table would say twice as much of everything, and of long parts more than of short ones.
        """
        core = self.core
        core.parts = replace(core.parts, policy=plan)
        begin, began = time.perf_counter(), time.thread_time()
        core.step()
        wall, ran = time.perf_counter() - begin, time.thread_time() - began
        self.wall, self.ran = self.wall + wall, self.ran + ran
        share = min(ran / wall, 1.0) if torch.get_num_threads() == 1 else 1.0
        assert core.last_outcome is not None
        phases = core.last_outcome.phases
        rest = wall - phases.extend - phases.grow
        return _Timing(share * phases.extend, share * phases.grow, share * rest)

    def samples(self) -> dict[str, list[Sample]]:
        """What the plans tell about the parts of a round."""
        times = self.times
        drafting = [plan for plan in times if plan.rows > 1]
        # The layer that every tree has: no draft forward.
        shallow = next(times[plan] for plan in drafting if plan.is_shallowest)
        first = shallow.grow
        draft: dict[int, float] = {}
        for plan in drafting:
            if plan.depth > 1:
                level = max((times[plan].grow - first) / (plan.depth - 1), 1e-6)
                rows = self.batch * plan.width
                draft[rows] = min(level, draft.get(rows, level))
        extend = shallow.extend + first

        def at(rows: int, seconds: float) -> Sample:
            return Sample(self.batch, self.context, rows, seconds)

        return {
            "verify": [at(self.batch * plan.rows, times[plan].rest) for plan in times],
            "draft": [at(rows, seconds) for rows, seconds in draft.items()],
            "extend": [at(self.batch, extend)],
        }


def _median(timings: list[_Timing]) -> _Timing:
    """Part by part: a plan pays what rounds usually cost, not what the luckiest did."""
    return _Timing(
        median(t.extend for t in timings),
        median(t.grow for t in timings),
        median(t.rest for t in timings),
    )


def abandon(core: EngineCore, ids: Sequence[int]) -> list[Request]:
    """End requests that were only measured, and what became of them so far."""
    for request_id in ids:
        core.cancel(request_id)
    while not core.is_idle:
        core.step()
    return [core.forget(request_id) for request_id in ids]
