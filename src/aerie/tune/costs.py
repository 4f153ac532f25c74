"""Measures a cost table: real rounds of forced plans on made-up contexts, timed where they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from torch import Tensor

from aerie.costs.table import CostTable, Sample, Surface
from aerie.costs.waking import Waking, expected_experts, fit_spread
from aerie.engine.engine import EngineCore
from aerie.requests.params import SamplingParams
from aerie.speculation.planner import Planner
from aerie.tune.clock import clock_of, marked
from aerie.tune.experts import count_of
from aerie.tune.forced import Forced, ForcedPlan
from aerie.tune.grid import Grid, Progress, silent
from aerie.tune.quiet import Disturbance, drift_between

# Nodes fed a level, and levels; the same order as the row sizes, so that a tree holds its rows.
SHAPES = ((1, 0), (1, 2), (1, 5), (4, 2), (4, 5), (8, 2), (8, 5))
# The plan before, then a recording of the draft, a recording of the verification, and a replay.
WARM_ROUNDS = {"direct": 1, "graphs": 4}
# A round before which the slot table is written is not timed: so many more may be run instead.
PATIENCE = 3
LEAST_PLANS = 3  # of the first point, however long they take: no draft, its base and its levels
# Texts of a batch, in turns. What is verified costs more the less evenly it is shared: real texts
# fill 1.45 tiles of 16 rows a request where each has 16 on average. One text fills 1, two 1
# to 1.5; as many as requests, all of them noise, give a few nearly all rows.
TEXTS = 2
# What a planner is built with before anything was measured; its plans are never asked for.
_ANY = Surface((Sample(1, 1, 1, 1.0),))
UNPRICED = CostTable(verify=_ANY, draft=_ANY, extend=_ANY, provenance={})


def measure_costs(
    core: EngineCore,
    grid: Grid,
    provenance: Mapping[str, object],
    progress: Progress = silent,
    keep: Callable[[CostTable], None] = lambda _: None,
) -> CostTable:
    """Measure every point of a grid on one engine whose policy is the planner.

    `keep` is handed the table after every point: a run that is cut short loses one point.
    """
    launcher = core.launcher
    own = launcher.parts.policy
    assert isinstance(own, Planner), "costs are measured for a planner"
    forced = Forced(own.shape, own.costs, 0, own.offers, looks=False)
    launcher.use(forced)
    for stored in _pools(core):
        for layer in stored:
            layer.normal_()  # zeros would cost less power, and so less time
    points = [_Point(core, forced, *place) for place in grid.points()]
    measured: list[_Point] = []
    deadline = time.perf_counter() + grid.most_seconds
    for done, point in enumerate(points):
        name = f"batch {point.batch}, context {point.context}"
        is_late = bool(measured) and time.perf_counter() > deadline
        progress(f"{name}: not measured for want of time" if is_late else name, done, len(points))
        if not is_late and point.measure(grid, deadline, 0 if measured else LEAST_PLANS):
            measured.append(point)
            keep(_table(measured, grid, provenance))
    progress("measured", len(points), len(points))
    disturbance = _disturbance(measured, grid, deadline).record()
    table = _table(measured, grid, {**provenance, **disturbance})
    return replace(table, waking=_waking(measured, grid))


def _waking(measured: Sequence[_Point], grid: Grid) -> Waking | None:
    """What one more expert costs: plain rounds of the largest batch, of two texts and of many.

    The same rows, and other experts. Counts of all points say how evenly routing spreads; where
    graphs are replayed nothing is counted, and uniform routing is assumed.
    """
    experts = measured[0].core.parts.target.geometry.experts
    if experts is None:
        return None
    pairs = [(p.distinct(plan), p.times[plan].experts) for p in measured for plan in p.times]
    rows, counted = np.array(pairs).T
    spread = fit_spread(experts.n_experts, experts.n_active, rows, counted)
    largest = max(measured, key=lambda point: (point.batch, -point.context))
    apart = replace(largest, times={}, n_texts=largest.batch)
    alike = replace(largest, times={})
    for point in (apart, alike):
        point.measure(grid, 0.0, n_least=1)  # the first plan, which is no draft, and no other
    (many,), (few,) = apart.times.values(), alike.times.values()
    woken = many.experts - few.experts
    seconds = max(many.total - few.total, 0.0) / woken if woken > 0.5 else 0.0
    return Waking(float(experts.n_active), spread, seconds)


def _disturbance(measured: Sequence[_Point], grid: Grid, deadline: float) -> Disturbance:
    """The first point once more, as far as time is left: nothing should have changed."""
    first = measured[0]
    again = replace(first, times={}, wall=0.0, ran=0.0)
    again.measure(grid, deadline)
    totals = [[point.times[plan].total for plan in again.times] for point in (first, again)]
    wall, ran = (sum(getattr(p, name) for p in (*measured, again)) for name in ("wall", "ran"))
    return Disturbance(max(1 - ran / wall, 0.0) if wall else 0.0, drift_between(*totals))


def _table(measured: Sequence[_Point], grid: Grid, provenance: Mapping[str, object]) -> CostTable:
    found = [point.samples() for point in measured]
    surfaces = {}
    for name in ("verify", "draft", "extend"):
        samples = [sample for part in found for sample in part[name]]
        surfaces[name] = Surface((*samples, *_stretched(samples, grid)))
    return CostTable(**surfaces, provenance=provenance, waking=None)


def _stretched(found: Sequence[Sample], grid: Grid) -> Iterable[Sample]:
    """What a longer context adds to one request, it adds to each of a larger batch."""
    short, measured = min(grid.contexts), {(s.batch, s.context) for s in found}
    alone = Surface(tuple(sample for sample in found if sample.batch == 1))
    for sample in found:
        if sample.context != short:
            continue
        rows = max(sample.rows // sample.batch, 1)
        for context in grid.contexts:
            if (sample.batch, context) not in measured and (1, context) in measured:
                added = alone.at(1, context, rows) - alone.at(1, short, rows)
                seconds = sample.seconds + sample.batch * max(added, 0.0)
                yield replace(sample, context=context, seconds=seconds)


def _pools(core: EngineCore) -> list[Tensor]:
    """Keys and values of both models, [layers, slots, ...] each."""
    parts = core.launcher.parts
    pools = [parts.pool, *([] if parts.draft is None else [parts.draft.pool])]
    return [part for pool in pools for part in (pool.keys, pool.values)]


def _share_text(core: EngineCore, ids: Sequence[int]) -> None:
    """All get the first one's KV, so that their trees are alike."""
    requests = [core.request(request_id) for request_id in ids]
    first, *others = (core.memory.slots(r)[: r.seq_len].long() for r in requests)
    for stored in (layer for part in _pools(core) for layer in part):
        for slots in others:
            stored[slots] = stored[first]
    for slots in others:
        core.parts.target.moved(core.parts.pool, first, slots)


@dataclass
class _Timing:
    """Medians of one plan, in seconds."""

    verify: float
    rest: float  # the draft, or the end of a round without one, and the report
    experts: float = 0.0  # that a layer touched, on average over layers; dense: none

    @property
    def total(self) -> float:
        """Of the whole round."""
        return self.verify + self.rest


@dataclass(eq=False)
class _Point:
    """One batch size and context."""

    core: EngineCore
    forced: Forced
    batch: int
    context: int
    n_texts: int = TEXTS
    times: dict[ForcedPlan, _Timing] = field(default_factory=dict)
    wall: float = 0.0  # seconds of all rounds so far, and of those the seconds
    ran: float = 0.0  # in which this thread had a core

    def measure(self, grid: Grid, deadline: float, n_least: int = 0) -> bool:
        """Seat the requests, run plans until time is up, let them go; True: enough were run."""
        plans, warm = self._plans(grid), WARM_ROUNDS[self.core.config.engine]
        n_rounds = (warm + PATIENCE * grid.repeats) * (len(plans) + 1)
        longest = 1 + self.forced.shape.depth
        params = SamplingParams(max_tokens=longest * n_rounds, temperature=0.0, ignore_eos=True)
        core, vocabulary = self.core, self.core.limits.vocabulary
        prompts = (
            [(7 * position + index % self.n_texts) % vocabulary for position in range(self.context)]
            for index in range(self.batch)
        )
        ids = [core.submit(prompt, params) for prompt in prompts]
        core.assume_read()
        for text in range(min(self.n_texts, self.batch)):
            _share_text(core, ids[text :: self.n_texts])
        for plan in plans:
            if time.perf_counter() < deadline or len(self.times) < n_least:
                self.times[plan] = self._time(plan, warm, grid.repeats)
        assert all(core.request(i).ended is None for i in ids), "a measured request ended"
        for request_id in ids:
            core.discard(request_id)
        core.step()
        return n_least > 0 or len(self.times) == len(set(plans))

    def _plans(self, grid: Grid) -> list[ForcedPlan]:
        """No draft, then every size of rows and every shape at least once."""
        shape, batch = self.forced.shape, self.batch
        most = max(min(grid.most_rows, batch * shape.verify), min(2, shape.verify) * batch)
        ladder = self.forced.offers.ladder or tuple(batch * 2**power for power in range(8))
        offered = [n for n in ladder if batch < n <= most] or [batch + 1]
        fitting = [(w, n) for w, n in SHAPES if w <= shape.top_k and n < shape.depth]
        rows = offered + offered[-1:] * (len(fitting) - len(offered))
        drafted = fitting + fitting[-1:] * (len(rows) - len(fitting))
        plans = [ForcedPlan((), batch)]
        for (width, n_levels), n_rows in zip(drafted, rows, strict=True):
            n_nodes = batch * (1 + shape.top_k * (1 + width * n_levels))
            fits = max(size for size in offered if size <= max(n_nodes, offered[0]))
            plans.append(ForcedPlan((width,) * n_levels, min(n_rows, fits)))
        return plans

    def _time(self, plan: ForcedPlan, warm: int, repeats: int) -> _Timing:
        core = self.core
        clock = clock_of(core.launcher.parts.table.device)
        self.forced.plan = plan
        timings: list[_Timing] = []
        for turn in range(warm + PATIENCE * repeats):
            if len(timings) == repeats:
                break
            begin, began = time.perf_counter(), time.thread_time()
            with marked(core.launcher.graphs, clock) as spans:
                core.step()
            # On a GPU the thread sleeps while rounds run: only a CPU's own time can be stolen.
            if not core.launcher.parts.table.is_cuda:
                self.wall += time.perf_counter() - begin
                self.ran += time.thread_time() - began
            found = {name: [s for key, s in spans if key == name] for name, _ in spans}
            rest = [s for key, s in spans if key != "verify"]
            if turn >= warm and len(found.get("verify", ())) == 1 and rest:
                timings.append(
                    _Timing(
                        clock.seconds(*found["verify"][0]),
                        sum(clock.seconds(*span) for span in rest),
                    )
                )
        assert timings, f"no round of {plan} was started within its step"
        verify, rest = (median(getattr(t, part) for t in timings) for part in ("verify", "rest"))
        return _Timing(verify, rest, self._touched(plan))

    def _touched(self, plan: ForcedPlan) -> float:
        """Counted in one more round; what uniform routing would touch where graphs are replayed."""
        count, experts = count_of(self.core.parts.target), self.core.parts.target.geometry.experts
        if count is None or experts is None:
            return 0.0
        with count.counting() as seen:
            self.core.step()
        if seen:
            return sum(seen) / len(seen)
        rows = self.distinct(plan)
        return float(expected_experts(experts.n_active, experts.n_experts, rows))

    def distinct(self, plan: ForcedPlan) -> float:
        """Rows that are not another request's as well."""
        return plan.rows * min(self.n_texts, self.batch) / self.batch

    def samples(self) -> dict[str, list[Sample]]:
        """Rows to verify; one level of each width; and all that a draft costs beside its levels."""

        def at(rows: int, seconds: float, experts: float = 0.0) -> Sample:
            return Sample(self.batch, self.context, rows, seconds, experts)

        plain, *drafting = self.times
        verify: dict[int, list[_Timing]] = {}
        for plan in drafting:
            verify.setdefault(plan.rows, []).append(self.times[plan])
        alone = self.times[plain]
        base = next(self.times[plan].rest for plan in drafting if not plan.widths)
        return {
            "verify": [
                at(self.batch, alone.total, alone.experts),
                *(
                    at(rows, median(t.verify for t in own), median(t.experts for t in own))
                    for rows, own in sorted(verify.items())
                ),
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
