"""Turns the runs of `aerie bench engine` into points: medians, intervals, ratios, regret."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from aerie.bench.engine.contract import FIXED, PLAIN, PLANNER, SHORT
from aerie.bench.engine.oracle import Choice
from aerie.bench.engine.run import Run
from aerie.bench.record import Interval, interval
from aerie.by_context import ByContext

# The floors of the planner's issue; a point fails only if its whole interval lies below.
FLOORS = {"to_plain": 0.97, "to_best_fixed": 0.95, "regret": 0.15}
# One request with a short context: the floors a newcomer's first run is held to.
ALONE = {"to_plain": 1.6, "accepted": 4.0}


@dataclass(frozen=True)
class Point:
    """One policy at one batch size and context."""

    policy: str
    batch: int
    context: int
    tokens_per_second: float
    ms_per_token: float
    ratio_to_plain: float
    ratio_low: float
    ratio_high: float
    mean_acceptance_length: float
    acceptance_rate: float
    total_accepted: int
    share_accepted_ge2: float
    round_tax: float
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    phase_share: dict[str, float]
    accepted_by_depth: dict[int, float]  # share of drafting rounds that reach each depth
    acceptance_by_context: dict[str, dict[str, float]]
    prefix_cache: str = "prompts are read once a point"
    peak_memory: int | None = None
    joules_per_token: float | None = None
    kind: str = "measured"


@dataclass(frozen=True)
class Timed:
    """One run as it was timed: what every figure here is made from."""

    batch: int
    context: int
    repeat: int
    policy: str
    tokens: int
    seconds: float
    modelled_seconds: float  # by the cost table; planner only
    rounds: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(frozen=True)
class Place:
    """Everything found at one batch size and context."""

    batch: int
    context: int
    points: list[Point]
    to_plain: Interval
    to_best_fixed: Interval
    best_fixed: str
    oracle: Choice
    regret: float
    n_different: int
    runs: list[Timed] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def summarise(
    batch: int,
    context: int,
    groups: Sequence[dict[str, Run]],
    first_tokens: Sequence[float],
    oracle: Choice,
    n_different: int,
) -> Place:
    """One place from its interleaved runs; ratios are medians over the groups."""

    def ratios(left: str, right: str) -> list[float]:
        return [g[left].tokens_per_second / g[right].tokens_per_second for g in groups]

    points = [_point(name, batch, context, groups, first_tokens) for name in groups[0]]
    best = max(FIXED, key=lambda name: statistics.median(ratios(name, PLAIN)))
    to_best = interval(ratios(PLANNER, best))
    if statistics.median(ratios(best, PLAIN)) < 1.0:
        best, to_best = PLAIN, interval(ratios(PLANNER, PLAIN))
    planned = [group[PLANNER] for group in groups]
    # Both rates in the table's seconds: the oracle never ran, and noise must not favour either.
    rate = sum(run.tokens for run in planned) / sum(run.modelled_seconds for run in planned)
    regret = 1.0 - rate / oracle.tokens_per_second
    place = Place(
        batch=batch,
        context=context,
        points=points,
        to_plain=interval(ratios(PLANNER, PLAIN)),
        to_best_fixed=to_best,
        best_fixed=best,
        oracle=oracle,
        regret=regret,
        n_different=n_different,
        runs=[
            _timed(batch, context, repeat, run)
            for repeat, group in enumerate(groups)
            for run in group.values()
        ],
    )
    place.failures.extend(_failures(place))
    return place


def _timed(batch: int, context: int, repeat: int, run: Run) -> Timed:
    return Timed(
        batch=batch,
        context=context,
        repeat=repeat,
        policy=run.policy,
        tokens=run.tokens,
        seconds=round(run.seconds, 6),
        modelled_seconds=round(run.modelled_seconds, 6),
        rounds=run.rounds,
        drafts=sum(s.num_drafts for s in run.statistics),
        draft_tokens=sum(s.num_draft_tokens for s in run.statistics),
        accepted_tokens=sum(s.num_accepted_tokens for s in run.statistics),
    )


def _failures(place: Place) -> list[str]:
    where = f"batch {place.batch}, context {place.context}"
    found = []
    if place.to_plain.high < FLOORS["to_plain"]:
        found.append(f"{where}: {place.to_plain.median:.3f} of plain decoding")
    if place.to_best_fixed.high < FLOORS["to_best_fixed"]:
        found.append(f"{where}: {place.to_best_fixed.median:.3f} of {place.best_fixed}")
    if place.regret > FLOORS["regret"]:
        found.append(f"{where}: regret {place.regret:.3f}")
    if place.batch == 1 and place.context <= SHORT:
        accepted = next(p for p in place.points if p.policy == PLANNER).mean_acceptance_length
        if place.to_plain.high < ALONE["to_plain"]:
            found.append(f"{where}: {place.to_plain.median:.3f} of plain, floor 1.6")
        if accepted < ALONE["accepted"]:
            found.append(f"{where}: mean acceptance length {accepted:.2f}, floor 4")
    return found


def _point(
    name: str,
    batch: int,
    context: int,
    groups: Sequence[dict[str, Run]],
    first_tokens: Sequence[float],
) -> Point:
    runs = [group[name] for group in groups]
    ratio = interval([g[name].tokens_per_second / g[PLAIN].tokens_per_second for g in groups])
    counts = [s for run in runs for s in run.statistics]
    drafts = sum(s.num_drafts for s in counts)
    accepted = sum(s.num_accepted_tokens for s in counts)
    sent = sum(s.num_draft_tokens for s in counts)
    speed = statistics.median(run.tokens_per_second for run in runs)
    lengths = [length for run in runs for length in run.accepted]
    gaps = [1e3 * gap for run in runs for gap in run.gaps]
    return Point(
        policy=name,
        batch=batch,
        context=context,
        tokens_per_second=round(speed, 2),
        ms_per_token=round(1e3 / speed, 4),
        ratio_to_plain=round(ratio.median, 4),
        ratio_low=round(ratio.low, 4),
        ratio_high=round(ratio.high, 4),
        mean_acceptance_length=round(1 + accepted / drafts, 4) if drafts else 1.0,
        acceptance_rate=round(accepted / sent, 4) if sent else 0.0,
        total_accepted=accepted,
        share_accepted_ge2=round(sum(n >= 2 for n in lengths) / max(len(lengths), 1), 4),
        round_tax=round(_round_tax(name, groups), 4),
        ttft_ms=_quantiles([1e3 * seconds for seconds in first_tokens]),
        itl_ms=_quantiles(gaps),
        phase_share=_phase_share(runs),
        accepted_by_depth=_by_depth(runs, drafts),
        acceptance_by_context=ByContext.total(s.by_context for s in counts).lengths(),
    )


def _round_tax(name: str, groups: Sequence[dict[str, Run]]) -> float:
    def per_round(run: Run) -> float:
        return run.seconds / run.rounds

    return statistics.median(per_round(g[name]) / per_round(g[PLAIN]) for g in groups)


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        name: round(float(np.percentile(values, at)), 3) for name, at in (("p50", 50), ("p99", 99))
    }


def _phase_share(runs: Sequence[Run]) -> dict[str, float]:
    total = sum(run.seconds for run in runs)
    names = list(runs[0].phases)
    shares = {name: sum(run.phases[name] for run in runs) / total for name in names}
    shares["around"] = 1.0 - sum(shares.values())
    return {name: round(share, 4) for name, share in shares.items()}


def _by_depth(runs: Sequence[Run], drafts: int) -> dict[int, float]:
    counts: dict[int, int] = {}
    for run in runs:
        for record in run.statistics:
            for depth, n_accepted in record.accepted_by_depth.items():
                counts[depth] = counts.get(depth, 0) + n_accepted
    return {depth: round(n / max(drafts, 1), 4) for depth, n in sorted(counts.items())}


def payload(
    places: Sequence[Place], head: dict[str, object], to_transformers: Interval | None
) -> dict[str, object]:
    """The machine-readable result."""
    failures = [failure for place in places for failure in place.failures]
    if to_transformers is not None and to_transformers.high < 1.0:
        failures.append(f"plain decoding is {to_transformers.median:.3f} of transformers")
    return {
        **head,
        "ok": not failures,
        "failures": failures,
        "points": [asdict(point) for place in places for point in place.points],
        "planner": [
            {
                "batch": place.batch,
                "context": place.context,
                "to_plain": asdict(place.to_plain),
                "to_best_fixed": asdict(place.to_best_fixed),
                "best_fixed": place.best_fixed,
                "oracle": asdict(place.oracle),
                "regret": round(place.regret, 4),
                "texts_different": place.n_different,
            }
            for place in places
        ],
        "min_planner_ratio": round(min(place.to_plain.median for place in places), 4),
        "regret": round(max(place.regret for place in places), 4),
        "plain_to_transformers": None if to_transformers is None else asdict(to_transformers),
    }
