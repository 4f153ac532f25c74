"""Progress lines with the time since the start, and the clock that a budget is measured on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WARMUP = 0.02  # share of a budget in which rates rise

Write = Callable[[str], None]


def _print(line: str) -> None:
    print(line, flush=True)


@dataclass
class Progress:
    """Says what happens and how long each phase took; `phases` is kept for the run's record."""

    write: Write = _print
    started: float = field(default_factory=time.monotonic)
    phases: dict[str, float] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """One line, with the seconds since the start."""
        self.write(f"[{self.elapsed():7.1f} s] {text}")

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block and print its duration."""
        begun = time.monotonic()
        self.say(f"{name}: begins")
        try:
            yield
        finally:
            self.phases[name] = round(time.monotonic() - begun, 2)
            self.say(f"{name}: {self.phases[name]:.1f} s")


@dataclass
class Budget:
    """How long a loop may run: seconds of wall clock, or a number of steps where runs must repeat.

    `fraction` drives the learning rate and the curriculum, so a slower machine makes fewer steps
    of the same schedule rather than stopping in the middle of it.
    """

    seconds: float
    steps: int | None = None
    used: float = 0.0  # seconds spent before a resumed run began
    started: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        """Seconds spent, those of an interrupted run included."""
        return self.used + time.monotonic() - self.started

    def fraction(self, step: int) -> float:
        """Share of the budget that is spent, at least 1 when it is over."""
        if self.steps is not None:
            return step / self.steps
        return self.elapsed() / self.seconds

    def restart(self, used: float = 0.0) -> None:
        """Begin to count now: what came before (compilation) is not the schedule's time."""
        self.used = used
        self.started = time.monotonic()


def linear_decay(fraction: float) -> float:
    """Learning-rate factor: a short ramp, then straight to zero, which suits a fixed budget."""
    return max(0.0, min(fraction / WARMUP, (1.0 - fraction) / (1.0 - WARMUP), 1.0))
