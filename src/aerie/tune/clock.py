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
    """The host's, where graphs are called directly. Of a single thread the time counts in which it
    ran: what a busy machine gave to others is no cost of a round."""

    def __init__(self) -> None:
        self._now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def mark(self) -> Any:
        """Now."""
        return self._now()

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


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return DeviceClock() if device.type == "cuda" else HostClock()


@contextmanager
def marked(graphs: Any, clock: Clock) -> Iterator[list[tuple[str, tuple[Any, Any]]]]:
    """Marks around every graph that runs meanwhile, with the first word of its key.

    What lies between two is the host's time, which steady rounds do not wait for.
    """
    spans: list[tuple[str, tuple[Any, Any]]] = []
    run = graphs.run

    def marked_run(key: Any, call: Callable[[], Any]) -> Any:
        before = clock.mark()
        result = run(key, call)
        spans.append((key[0], (before, clock.mark())))
        return result

    graphs.run = marked_run
    try:
        yield spans
    finally:
        del graphs.run  # the method shows again
