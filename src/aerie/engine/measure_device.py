"""Measures the cost table of captured rounds: forced plans, timed where the device runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from aerie.engine.device_clock import CLOCKS, marked
from aerie.engine.device_rounds import DeviceRounds
from aerie.engine.engine import EngineCore
from aerie.engine.measure import Progress, abandon, silent
from aerie.engine.measure_quiet import Disturbance, drift_between
from aerie.engine.params import SamplingParams
from aerie.speculation.costs import CostTable, Sample, Surface
from aerie.speculation.device_policy import Lesson, Widths
from aerie.speculation.planned_rounds import PlannedRounds
from aerie.speculation.policy import Situation

# Nodes fed a level, and levels; the same order as the row sizes, so that a tree holds its rows.
SHAPES = ((1, 0), (1, 2), (1, 5), (4, 2), (4, 5), (8, 2), (8, 5))
# The plan before, then a recording of the draft, a recording of the verification, and a replay.
WARM_ROUNDS = 4
# A round before which the slot table is written is not timed: so many more may be run instead.
PATIENCE = 3
GRAPHS = 3  # of a round: verify, draft or close, publish
# Texts of a batch, in turns. What is verified costs more the less evenly it is shared: real texts
# fill 1.45 tiles of 16 rows a request where everybody has 16 on average. One text fills 1, two 1
# to 1.5; as many as requests, all of them noise, give a few nearly all rows.
TEXTS = 2


@dataclass(frozen=True)
class DeviceGrid:
    """Where captured rounds are measured."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (512, 8192, 32768)
    most_rows: int = 256  # of all requests together
    repeats: int = 5
    most_tokens: int = 524_288  # KV of a measured point
    margin: int = 1536  # positions beyond a context: what its rounds emit, and a tree
    most_seconds: float = 95.0  # no point is begun later

    def points(self) -> list[tuple[int, int]]:
        """Batch and context of all points that fit, a surface's corners first: time may run out."""
        found = []
        for batch in self.batches:
            fitting = [c for c in sorted(self.contexts) if batch * c <= self.most_tokens]
            turns = [*fitting[:1], *fitting[:0:-1]]
            found += [(turn, batch, context) for turn, context in enumerate(turns)]
        return [(batch, context) for _, batch, context in sorted(found)]


# Some ten seconds, and what must be compiled: for those without a table.
QUICK_ROUNDS = DeviceGrid((1, 4, 16), (512, 8192), 128, 3, 65_536, most_seconds=25.0)
# What a planner is built with before anything was measured; its plans are never asked for.
_ANY = Surface((Sample(1, 1, 1, 1.0),))
UNPRICED = CostTable(verify=_ANY, draft=_ANY, extend=_ANY, provenance={})


@dataclass(frozen=True)
class ForcedPlan:
    """What every request drafts, and how many rows all of them verify."""

    widths: Widths
    rows: int


class ForcedRounds(PlannedRounds):
    """The planner's own rounds with its decisions taken from it: same work, fixed plan."""

    plan = ForcedPlan((), 1)

    def open(self, situation: Situation) -> Widths | None:
        """As told; one row a request needs no draft."""
        return self.plan.widths if self.plan.rows > situation.batch else None

    def prepare(self, n_slots: int, is_steady: bool) -> int | None:
        """Every size but the wanted one costs more than anything is worth; nothing is agreed."""
        inputs = self.inputs(n_slots)
        rate, seconds, corrections = inputs.parts(inputs.host)
        prices = np.where(inputs.row_sizes == self.plan.rows, 0.0, np.inf)
        assert not prices.all(), f"{self.plan.rows} rows are not on offer"
        rate.fill_(1.0)
        seconds.copy_(torch.from_numpy(prices))
        corrections.zero_()
        return None

    def learn(self, lesson: Lesson) -> None:
        """Nothing."""


def measure_device_costs(
    core: EngineCore,
    grid: DeviceGrid,
    provenance: Mapping[str, object],
    progress: Progress = silent,
    keep: Callable[[CostTable], None] = lambda _: None,
) -> CostTable:
    """Measure every point of a grid on one engine whose policy is the planner.

    `keep` is handed the table after every point: a run that is cut short loses one point.
    """
    rounds = core.rounds
    assert rounds is not None and isinstance(rounds.parts.policy, PlannedRounds)
    own = rounds.parts.policy
    forced = ForcedRounds(own.planner, own.row_sizes, own.device, own.ops)
    rounds.parts = replace(rounds.parts, policy=forced)
    _fill_memory(core)
    points = [_Point(core, rounds, forced, *place) for place in grid.points()]
    measured: list[_Point] = []
    begin = time.perf_counter()
    for done, point in enumerate(points):
        name = f"batch {point.batch}, context {point.context}"
        if time.perf_counter() - begin > grid.most_seconds:
            progress(f"{name}: not measured for want of time", done, len(points))
            continue
        progress(f"{name}, {rounds.graphs.counts.captures} graphs so far", done, len(points))
        point.measure(grid)
        measured.append(point)
        keep(_table(measured, provenance))
    return _table(measured, {**provenance, **_disturbance(measured[:1], grid).record()})


def _disturbance(first: Sequence[_Point], grid: DeviceGrid) -> Disturbance:
    """The first point once more, now that all others were measured: nothing should have changed."""
    before = [timing.total for point in first for timing in point.times.values()]
    again = [replace(point, times={}) for point in first]
    for point in again:
        point.measure(grid)
    after = [timing.total for point in again for timing in point.times.values()]
    return Disturbance(0.0, drift_between(before, after))


def _table(measured: Sequence[_Point], provenance: Mapping[str, object]) -> CostTable:
    found = [point.samples() for point in measured]
    surfaces = {
        name: Surface(tuple(sample for part in found for sample in part[name]))
        for name in ("verify", "draft", "extend")
    }
    return CostTable(**surfaces, provenance={**provenance, "engine": "graphs"})


def _fill_memory(core: EngineCore) -> None:
    """Values as a text would leave them: zeros would cost less power, and so less time."""
    for stored in _pools(core):
        for layer in stored:
            layer.normal_()


def _pools(core: EngineCore) -> list[Tensor]:
    """Keys and values of both models, [layers, slots, ...] each."""
    pools = [core.parts.pool]
    if core.rounds is not None and core.rounds.parts.draft is not None:
        pools.append(core.rounds.parts.draft.pool)
    return [part for pool in pools for part in (pool.keys, pool.values)]


def _share_text(core: EngineCore, ids: Sequence[int]) -> None:
    """All get the first one's KV, so that their trees are alike."""
    memory = core.parts.memory
    first, *others = (memory.slots(core.request(i))[: core.request(i).seq_len].long() for i in ids)
    for stored in (layer for part in _pools(core) for layer in part):
        for slots in others:
            stored[slots] = stored[first]


@dataclass
class _Timing:
    """Medians of one plan, in seconds."""

    verify: float
    rest: float  # the draft, or the end of a round without one, and the report

    @property
    def total(self) -> float:
        """Of the whole round."""
        return self.verify + self.rest


@dataclass(eq=False)
class _Point:
    """One batch size and context."""

    core: EngineCore
    rounds: DeviceRounds
    forced: ForcedRounds
    batch: int
    context: int
    times: dict[ForcedPlan, _Timing] = field(default_factory=dict)

    def measure(self, grid: DeviceGrid) -> None:
        """Seat the requests, run every plan, let them go."""
        plans = self._plans(grid)
        n_rounds = (WARM_ROUNDS + PATIENCE * grid.repeats) * (len(plans) + 1)
        longest = 1 + self.forced.planner.shape.depth
        params = SamplingParams(max_tokens=longest * n_rounds, temperature=0.0, ignore_eos=True)
        core, vocabulary = self.core, self.core.limits.vocabulary
        prompts = (
            [(7 * position + index % TEXTS) % vocabulary for position in range(self.context)]
            for index in range(self.batch)
        )
        ids = [core.submit(prompt, params) for prompt in prompts]
        core.assume_read()
        for text in range(min(TEXTS, self.batch)):
            _share_text(core, ids[text::TEXTS])
        for plan in plans:
            self.times[plan] = self._time(plan, grid.repeats)
        assert all(core.request(i).ended is None for i in ids), "a measured request ended"
        abandon(core, ids)

    def _plans(self, grid: DeviceGrid) -> list[ForcedPlan]:
        """No draft, then every size of rows and every shape at least once."""
        shape, batch = self.forced.planner.shape, self.batch
        most = min(grid.most_rows, batch * shape.verify)
        offered = [int(n) for n in self.forced.inputs(batch).row_sizes if batch < n <= most]
        fitting = [(w, n) for w, n in SHAPES if w <= shape.top_k and n < shape.depth]
        rows = offered + offered[-1:] * (len(fitting) - len(offered))
        drafted = fitting + fitting[-1:] * (len(rows) - len(fitting))
        plans = [ForcedPlan((), batch)]
        for (width, n_levels), n_rows in zip(drafted, rows, strict=True):
            n_nodes = batch * (1 + shape.top_k * (1 + width * n_levels))
            plans.append(ForcedPlan((width,) * n_levels, min(n_rows, _at_most(offered, n_nodes))))
        return plans

    def _time(self, plan: ForcedPlan, repeats: int) -> _Timing:
        clock = CLOCKS[self.forced.device.partition(":")[0]]()
        self.forced.plan = plan
        timings: list[_Timing] = []
        for turn in range(WARM_ROUNDS + PATIENCE * repeats):
            if len(timings) == repeats:
                break
            before = self._n_sent()
            with marked(self.rounds.graphs, clock) as spans:
                self.core.step()
            if turn >= WARM_ROUNDS and len(spans) == GRAPHS:
                n_rows = self._n_sent() - before + self.batch
                assert n_rows == plan.rows, f"{n_rows} rows were verified, not those of {plan}"
                verify, *rest = spans
                timings.append(
                    _Timing(clock.seconds(*verify), clock.seconds(rest[0][0], rest[-1][1]))
                )
        assert timings, f"no round of {plan} was started within its step"
        return _Timing(median(t.verify for t in timings), median(t.rest for t in timings))

    def _n_sent(self) -> int:
        return sum(request.statistics.num_draft_tokens for request in self.core.running)

    def samples(self) -> dict[str, list[Sample]]:
        """Rows to verify; one level of each width; and all that a draft costs beside its levels."""

        def at(rows: int, seconds: float) -> Sample:
            return Sample(self.batch, self.context, rows, seconds)

        plain, *drafting = self.times
        verify: dict[int, list[float]] = {}
        for plan in drafting:
            verify.setdefault(plan.rows, []).append(self.times[plan].verify)
        alone = self.times[plain]
        base = next(self.times[plan].rest for plan in drafting if not plan.widths)
        return {
            "verify": [
                at(self.batch, alone.verify + alone.rest),
                *(at(rows, median(seconds)) for rows, seconds in sorted(verify.items())),
            ],
            "draft": [at(rows, level) for rows, level in self._levels(drafting, base)],
            "extend": [at(self.batch, base)],
        }

    def _levels(self, drafting: Sequence[ForcedPlan], base: float) -> list[tuple[int, float]]:
        """Seconds of one level by the rows it feeds: the slope through the drafts of one width."""
        found = []
        for width in sorted({plan.widths[0] for plan in drafting if plan.widths}):
            own = [p for p in drafting if p.widths and p.widths[0] == width]
            over = sum((self.times[p].rest - base) * len(p.widths) for p in own)
            level = over / sum(len(p.widths) ** 2 for p in own)
            found.append((self.batch * width, max(level, 1e-6)))
        return found


def _at_most(sizes: Sequence[int], bound: int) -> int:
    """The largest size within a bound."""
    return max(size for size in sizes if size <= bound)
