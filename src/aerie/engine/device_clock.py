"""Clocks for graphs: where they run, not where they are launched from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks on a time line, and the seconds between two of them."""

    def mark(self) -> Any:
        """Now."""
        ...

    def seconds(self, before: Any, after: Any) -> float:
        """Between two marks, both past."""
        ...


class HostClock:
    """The host's: where graphs are called directly."""

    def mark(self) -> Any:
        """Now."""
        return time.perf_counter()

    def seconds(self, before: Any, after: Any) -> float:
        """Their difference."""
        return float(after - before)


class DeviceClock:
    """The device's own: a mark is passed when everything launched before it has run."""

    def mark(self) -> Any:
        """After all that was launched."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, before: Any, after: Any) -> float:
        """Waits for the later mark."""
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3


CLOCKS: dict[str, Callable[[], Clock]] = {"cpu": HostClock, "cuda": DeviceClock}


@contextmanager
def marked(graphs: Any, clock: Clock) -> Iterator[list[tuple[Any, Any]]]:
    """Marks around every graph that runs meanwhile.

    What lies between two is the host's time, which steady rounds do not wait for.
    """
    spans: list[tuple[Any, Any]] = []
    run = graphs.run

    def marked_run(key: Any, call: Callable[[], None]) -> None:
        before = clock.mark()
        run(key, call)
        spans.append((before, clock.mark()))

    graphs.run = marked_run
    try:
        yield spans
    finally:
        del graphs.run  # the method shows again
