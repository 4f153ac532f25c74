"""Points out of raw rows: medians, intervals, ratios; nothing here but what the rows say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerie.bench.contract import CAST, COV_LIMIT, LEAST_SHARE, PLAIN, PLANNER
from aerie.bench.record import Interval, interval, percentiles
from aerie.bench.rows import Row, newest

PREFIX = "prompts are read once a point and found again"
# Seconds of all runs of a point: the energy counter moves every 20 to 100 ms, so that a run by
# itself is off by a step at either end, and only the sum tells.
LEAST_METERED = 1.0
LEAST_PAIRS, LEAST_RUNS = 9, 5


@dataclass(frozen=True)
class Pairs:
    """Two policies of one point, turn by turn."""

    values: tuple[float, ...]

    @property
    def interval(self) -> Interval:
        """Median and 90 % interval."""
        return interval(self.values)


def pairs(rows: Sequence[Row], policy: str, other: str = PLAIN) -> Pairs:
    """Speed of a policy over another's in the same turn."""
    speeds = {(row.policy, row.turn): row.tokens_per_second for row in rows}
    turns = sorted({turn for name, turn in speeds if name == policy})
    return Pairs(
        tuple(
            speeds[policy, turn] / speeds[other, turn] for turn in turns if (other, turn) in speeds
        )
    )


def acceptance(rows: Sequence[Row]) -> float:
    """Mean acceptance length, the bonus included; 1 where nothing was drafted."""
    drafts = sum(row.drafts for row in rows)
    return 1.0 + sum(row.accepted for row in rows) / drafts if drafts else 1.0


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation."""
    return statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else 0.0


def share_of_ceiling(rows: Sequence[Row]) -> float:
    """How near plain decoding comes to the bytes it must move."""
    own = [row for row in rows if row.policy == PLAIN]
    return statistics.median(row.ceiling_ms / row.ms_per_round for row in own)


def is_repeatable(rows: Sequence[Row]) -> bool:
    """Whether a policy wrote the same text from the same prompts in every turn."""
    texts: dict[str, set[str]] = {}
    for row in rows:
        texts.setdefault(row.prompts, set()).add(row.text_sha256)
    return all(len(found) == 1 for found in texts.values())


def point(rows: Sequence[Row], policy: str) -> dict[str, Any]:
    """One policy at one point; `rows` are all rows of the point."""
    own = [row for row in rows if row.policy == policy]

    def column(name: str) -> list[Any]:
        return [getattr(row, name) for row in own]

    def middle(name: str) -> float:
        return float(statistics.median(column(name)))

    ratio = pairs(rows, policy).interval
    plain = statistics.median(row.ms_per_round for row in rows if row.policy == PLAIN)
    emissions = sum(column("emissions"))
    # Of the timed rounds, of each active request: what it wrote, its bonus token with it.
    written = sum(column("tokens")) / sum(row.rounds * row.active_mean for row in own)
    return {
        "scenario": own[0].scenario,
        "policy": policy,
        "batch": own[0].batch,
        "context": own[0].context,
        "runs": len(own),
        "tokens_per_second": round(middle("tokens_per_second"), 2),
        "cov": round(variation(column("tokens_per_second")), 4),
        "stability": _stability(own),
        "ms_per_token": round(1e3 / middle("tokens_per_second"), 4),
        "ratio_to_plain": round(ratio.median, 4),
        "ratio_low": round(ratio.low, 4),
        "ratio_high": round(ratio.high, 4),
        "mean_acceptance_length": round(acceptance(own), 4),
        "acceptance_rate": round(sum(column("accepted")) / max(sum(column("draft_tokens")), 1), 4),
        "total_accepted": sum(column("accepted")),
        "share_accepted_ge2": round(sum(column("emissions_ge3")) / emissions, 4),
        "accepted_per_active_slot": round(written - 1, 4),
        "active_count": {
            "mean": round(statistics.mean(column("active_mean")), 3),
            "min": min(column("active_least")),
            "max": max(column("active_most")),
        },
        # Seats of finished requests that rounds left out, one a round.
        "disabled_finished": round(sum(r.rounds * (r.batch - r.active_mean) for r in own)),
        "round_tax": round(middle("ms_per_round") / plain, 4),
        "ceiling_ms": own[0].ceiling_ms,
        "ms_per_round": round(middle("ms_per_round"), 4),
        "plain_share_of_ceiling": round(share_of_ceiling(rows), 4),
        "ttft_ms": _first_tokens(own[0].ttft_ms),
        # Quantiles of every run, and their median over the runs.
        "itl_ms": {at: round(middle(f"itl_{at}_ms"), 4) for at in ("p50", "p99")},
        "gap_ms": {at: round(middle(f"gap_{at}_ms"), 4) for at in ("p50", "p99")},
        "peak_memory": max(column("peak_memory")) or None,
        "joules_per_token": _joules_a_token(own),
        "repeated_8gram_share": round(statistics.mean(column("repeated_8gram_share")), 4),
        "same_text_every_turn": is_repeatable(own),
        "tuned": {"hits": own[-1].tuned_hits, "total": own[-1].tuned_total},
        "prefix_cache": PREFIX,
        "kind": own[0].kind,
    }


def _first_tokens(ttft_ms: str) -> dict[str, float | None]:
    """Of the prompts read cold; rows of before have the median alone, of which there is no 99th."""
    cold = [float(text) for text in ttft_ms.split(";") if text]
    if len(cold) < 2:
        return {"p50": cold[0] if cold else None, "p99": None}
    return {**percentiles(cold)}


def _joules_a_token(own: Sequence[Row]) -> float | None:
    """Of all turns together; None where the device did not tell, or too little was metered."""
    metered = [row for row in own if row.joules]
    if sum(row.seconds for row in metered) < LEAST_METERED:
        return None
    return round(sum(float(row.joules) for row in metered) / sum(r.tokens for r in metered), 4)


def _stability(own: Sequence[Row]) -> str:
    """By tokens/s; where every turn has its own texts, by what a round takes."""
    if len(own) < LEAST_RUNS:
        return f"fewer than {LEAST_RUNS} runs"
    if variation([row.tokens_per_second for row in own]) <= COV_LIMIT:
        return "stable"
    has_many_texts = len({row.prompts for row in own}) > 1
    if has_many_texts and variation([row.ms_per_round for row in own]) <= COV_LIMIT:
        return "rounds stable, texts differ"
    return "unstable"


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """The machine-readable result of everything measured so far, the last session of each point."""
    points, places = [], []
    for key, own in sorted(newest(rows).items()):
        names = list(dict.fromkeys(row.policy for row in own))
        points += [point(own, name) for name in names]
        places.append(_planned(key, own, names))
    to_plain, to_best = (
        [place[name]["median"] for place in places if place[name]]
        for name in ("planner_to_plain", "planner_to_best_fixed")
    )
    return {
        "points": points,
        "places": places,
        "min_planner_ratio": round(min(to_plain), 4) if to_plain else None,
        "min_planner_to_best_fixed": round(min(to_best), 4) if to_best else None,
        "regret": None,  # against the oracle of recorded trees: `aerie bench engine`
    }


def _planned(key: tuple[str, int, int], own: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """What the planner is worth at a point: over plain decoding, and over the best fixed shape."""
    found: dict[str, Any] = dict(zip(("scenario", "batch", "context"), key, strict=True))
    best = best_fixed(own) if PLANNER in names else None
    return {
        **found,
        "planner_to_plain": vars(pairs(own, PLANNER).interval) if PLANNER in names else None,
        "best_fixed": best,
        "planner_to_best_fixed": vars(against(own, best).interval) if best else None,
        "counts": share_of_ceiling(own) >= LEAST_SHARE,
    }


def best_fixed(own: Sequence[Row]) -> str | None:
    """The fixed policy that is fastest in odd turns; plain itself where none beats it.

    It is chosen on other turns, and other texts, than those it is then held against: the best of
    a dozen on the same ones would be their luck as well.
    """
    names = {row.policy for row in own} - {PLAIN, PLANNER, CAST}
    if not names:
        return None
    chosen_on = _turns(own, 1) or own
    best = max(names, key=lambda name: pairs(chosen_on, name).interval.median)
    return best if pairs(chosen_on, best).interval.median >= 1.0 else PLAIN


def against(own: Sequence[Row], rival: str) -> Pairs:
    """The planner over a rival in even turns."""
    return pairs(_turns(own, 0) or own, PLANNER, rival)


def _turns(own: Sequence[Row], parity: int) -> list[Row]:
    return [row for row in own if row.turn % 2 == parity]
