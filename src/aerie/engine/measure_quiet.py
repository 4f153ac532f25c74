"""Whether a machine was quiet while its costs were measured, and whether it is now."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

# Two measurements of the same rounds, seconds apart, differ by some percent on a quiet machine.
MOST_DRIFT = 1.25
# Share of the time in which another process had the core.
MOST_STOLEN = 0.1
LOOK_SECONDS = 0.03


@dataclass(frozen=True)
class Disturbance:
    """How far a measurement was disturbed: nothing is (0, 1)."""

    stolen: float  # share of the time in which the measuring thread did not run
    drift: float  # typical ratio of two measurements of the same thing, the larger over the smaller

    @property
    def reason(self) -> str | None:
        """Why the machine counts as busy, or None."""
        if self.stolen > MOST_STOLEN:
            return f"other processes took {self.stolen:.0%} of its core meanwhile"
        if self.drift > MOST_DRIFT:
            return f"the same rounds took {self.drift:.2f} times as long a moment later"
        return None

    def record(self) -> dict[str, object]:
        """For a table's provenance; `busy` only where the measurement should be repeated."""
        found: dict[str, object] = {"stolen": round(self.stolen, 3), "drift": round(self.drift, 3)}
        return found if self.reason is None else {**found, "busy": self.reason}


def drift_between(first: Iterable[float], again: Iterable[float]) -> float:
    """The typical ratio between seconds that should be the same; 1 for nothing to compare."""
    ratios = [max(pair) / min(pair) for pair in zip(first, again, strict=True)]
    return median(ratios) if ratios else 1.0


def is_quiet_now() -> bool:
    """A short look: whether this thread gets its core while it wants it."""
    begin, began = time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < LOOK_SECONDS:
        pass
    ran = time.thread_time() - began
    return 1 - ran / (time.perf_counter() - begin) <= MOST_STOLEN
