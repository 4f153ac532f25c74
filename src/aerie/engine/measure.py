"""Measures a cost table by running real rounds of forced shapes on made-up contexts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from aerie.engine.engine import EngineCore
from aerie.engine.params import SamplingParams
from aerie.engine.request import State
from aerie.speculation.costs import CostTable, Sample, Surface
from aerie.speculation.eagle3 import Eagle3Proposer
from aerie.speculation.policy import FixedTree, TreeShape

# Builds an engine without prefix reuse that holds so many requests of so many tokens.
MakeCore = Callable[[int, int], EngineCore]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Grid:
    """Where costs are measured."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    most_rows: int  # of all requests together, beyond two a request
    repeats: int
    most_tokens: int  # KV of a measured point; a point with more is stretched from one request

    def measures(self, batch: int, context: int) -> bool:
        """Whether a point is run, not derived."""
        is_first = context == self.contexts[0]
        return batch == 1 or is_first or batch * context <= self.most_tokens


# About two seconds for the built-in pair on one quiet core; `aerie tune costs` takes minutes.
QUICK = Grid((1, 4, 16), (256, 4096), 128, 3, 0)
FULL = Grid((1, 2, 4, 8, 16, 32), (256, 2048, 8192), 256, 7, 65_536)
# A request's trees, from small to large: level widths 1, 4 and 8.
SHAPES = (
    TreeShape(1, 1, 2),
    TreeShape(1, 3, 4),
    TreeShape(4, 3, 8),
    TreeShape(4, 3, 16),
    TreeShape(8, 3, 32),
    TreeShape(8, 3, 64),
)
PLAIN = TreeShape(1, 1, 1)
WARM_ROUNDS = 2
MOST_TOKENS = 400  # more than the rounds of one point can emit


@dataclass(frozen=True)
class _Timing:
    """Seconds of a round's parts."""

    extend: float
    grow: float
    rest: float


def measure_costs(
    make_core: MakeCore,
    grid: Grid,
    provenance: Mapping[str, object],
    report: Report = lambda _: None,
) -> CostTable:
    """Measure every point; long contexts of larger batches follow from those of one request."""
    samples: dict[str, list[Sample]] = {"verify": [], "draft": [], "extend": []}
    for batch in grid.batches:
        for context in filter(partial(grid.measures, batch), grid.contexts):
            report(f"batch {batch}, context {context}")
            core = _warm_core(make_core, batch, context, grid)
            for name, found in _measure_point(core, batch, context, grid).items():
                samples[name] += found
    surfaces = {
        name: Surface((*found, *_stretched(found, grid))) for name, found in samples.items()
    }
    return CostTable(**surfaces, provenance=provenance)


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


def _warm_core(make_core: MakeCore, batch: int, context: int, grid: Grid) -> EngineCore:
    """An engine whose requests claim a context nobody has read: only its cost matters."""
    core = make_core(batch, context)
    params = SamplingParams(max_tokens=MOST_TOKENS, temperature=0.0, ignore_eos=True)
    for index in range(batch):
        prompt = [(7 * position + index) % core.limits.vocabulary for position in range(context)]
        core.submit(prompt, params)
    core.assume_read()
    _shape(core, PLAIN)
    for _ in range(WARM_ROUNDS):
        core.step()
    assert all(r.state is State.DECODING for r in core.running), "the prompts were not adopted"
    return core


def _measure_point(
    core: EngineCore, batch: int, context: int, grid: Grid
) -> dict[str, list[Sample]]:
    fitting = [s for s in SHAPES if batch * s.verify <= max(grid.most_rows, 2 * batch)]
    times = _time_all(core, [PLAIN, *fitting], grid.repeats)
    verify = {batch: times[PLAIN].rest}
    draft: dict[int, float] = {}
    first = times[fitting[0]].grow  # the layer that every tree has: no draft forward
    for shape in fitting:
        verify[batch * shape.verify] = times[shape].rest
        if shape.depth > 1:
            level = max((times[shape].grow - first) / (shape.depth - 1), 1e-6)
            rows = batch * shape.top_k
            draft[rows] = min(level, draft.get(rows, level))
    extends = sorted(times[shape].extend for shape in fitting)
    cost = extends[len(extends) // 2] + first

    def at(rows: int, seconds: float) -> Sample:
        return Sample(batch, context, rows, seconds)

    return {
        "verify": [at(rows, seconds) for rows, seconds in verify.items()],
        "draft": [at(rows, seconds) for rows, seconds in draft.items()],
        "extend": [at(batch, cost)],
    }


def _time_all(core: EngineCore, shapes: list[TreeShape], repeats: int) -> dict[TreeShape, _Timing]:
    """The median round of every shape. They take turns, so that a slow spell hits all alike."""
    found: dict[TreeShape, list[_Timing]] = {shape: [] for shape in shapes}
    for turn in range(1 + repeats):
        for shape in shapes:
            timing = _time(core, shape)
            if turn:  # the first round of a shape pays for checks and allocations
                found[shape].append(timing)
    return {shape: _median(timings) for shape, timings in found.items()}


def _median(timings: list[_Timing]) -> _Timing:
    """Part by part: a plan pays what rounds usually cost, not what the luckiest did."""
    return _Timing(
        median(t.extend for t in timings),
        median(t.grow for t in timings),
        median(t.rest for t in timings),
    )


def _shape(core: EngineCore, shape: TreeShape) -> None:
    proposer = core.parts.proposer
    assert isinstance(proposer, Eagle3Proposer), "only a draft head has levels to measure"
    core.parts = replace(
        core.parts, policy=FixedTree(shape), proposer=replace(proposer, shape=shape)
    )


def _time(core: EngineCore, shape: TreeShape) -> _Timing:
    _shape(core, shape)
    start = time.perf_counter()
    core.step()
    total = time.perf_counter() - start
    assert core.last_outcome is not None
    phases = core.last_outcome.phases
    return _Timing(phases.extend, phases.grow, total - phases.extend - phases.grow)
