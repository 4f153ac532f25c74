"""Rows of measurements beside other engines: one JSON object a line, and ratios by prompt group.

A row says which lane it is of (`vllm chain7`, `aerie planner`), the run (rows of one run were
measured in turns on one machine), the point and the group of prompts. Only rows of one run, point
and group are divided by each other.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aerie.bench.record import Interval, Row, interval

PEER = "vllm "
PLAIN = "plain"


@dataclass(frozen=True)
class Ratio:
    """One lane over another at one point: the median of the groups' ratios with its interval."""

    point: str
    lane: str
    base: str
    n_groups: int
    value: Interval


def speed(row: Row) -> float:
    """Tokens a second."""
    return float(row["tokens_per_second"])


def ratios(rows: Iterable[Row], value: Callable[[Row], float] = speed) -> list[Ratio]:
    """Every lane over the peer's that does the same: plain over plain, the others over chains.

    Several turns of a group count as their median.
    """
    turns: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    for row in rows:
        turns[row["point"], row["lane"], row["run"], row["group"]].append(value(row))
    groups: dict[tuple[str, str], dict[tuple[str, int], float]] = defaultdict(dict)
    for (point, lane, run, number), own_turns in turns.items():
        groups[point, lane][run, number] = statistics.median(own_turns)
    found = []
    for (point, lane), own in groups.items():
        for (other_point, base), theirs in groups.items():
            shared = sorted(own.keys() & theirs.keys())
            if point == other_point and shared and are_rivals(lane, base):
                values = [own[group] / theirs[group] for group in shared]
                found.append(Ratio(point, lane, base, len(shared), interval(values)))
    return found


def are_rivals(lane: str, base: str) -> bool:
    """Whether a lane of ours is held against this lane of the peer."""
    is_ours = base.startswith(PEER) and not lane.startswith(PEER)
    return is_ours and lane.endswith(PLAIN) == base.endswith(PLAIN)


def best_chains(rows: Iterable[Row]) -> dict[str, str]:
    """The peer's fastest lane with a draft, by point: the median over its groups and turns."""
    speeds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["lane"].startswith(PEER) and not row["lane"].endswith(PLAIN):
            speeds[row["point"]][row["lane"]].append(speed(row))
    return {
        point: max(lanes, key=lambda lane: statistics.median(lanes[lane]))
        for point, lanes in speeds.items()
    }


def geometric_means(found: Sequence[Ratio]) -> dict[tuple[str, bool], float]:
    """Of a lane's ratios over its points, apart for plain decoding; the dearest rival counts.

    By lane, and whether the rival is plain decoding.
    """
    least: dict[tuple[str, bool], dict[str, float]] = defaultdict(dict)
    for one in found:
        own = least[one.lane, one.base.endswith(PLAIN)]
        own[one.point] = min(one.value.median, own.get(one.point, one.value.median))
    return {key: statistics.geometric_mean(own.values()) for key, own in least.items()}
