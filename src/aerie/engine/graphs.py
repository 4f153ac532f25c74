"""Capture and replay: a function of fixed buffers becomes one launch.

A function that was not prepared is run for real the first time it is asked for, and recorded right
after; from then on it is replayed. Recording computes nothing, so every request costs exactly one
execution. Without a device that records, the function is simply called: the same code, so that a
CPU proves what a GPU replays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
Recording = tuple[Any, Callable[[], object]]  # a key, which begins with its kind, and its function


@dataclass
class GraphCounts:
    """What was launched so far."""

    captures: int = 0
    replays: int = 0
    direct: int = 0  # calls that ran operation by operation


class Graphs:
    """Functions by key. The key must name everything that a function's operations depend on."""

    def __init__(self, device: str) -> None:
        self.counts = GraphCounts()
        self.watch: Callable[[Any], None] = _ignore  # told the key after every run
        self._is_captured = device.startswith("cuda")
        # Launches, and what the host does between them.
        self._graphs: dict[Hashable, list[Callable[[], object]]] = {}
        self._recorded: list[Callable[[], object]] | None = None  # so far, while one is recorded
        self._open = ExitStack()  # the part that is being recorded
        self.keys: set[Any] = set()  # met so far
        self.is_warm = False  # whatever may be asked for has a graph, of its own size or a larger
        # One pool: no tensor outlives the replay of its function, so graphs may share their memory.
        self._pool = torch.cuda.graph_pool_handle() if self._is_captured else None
        self._stream = torch.cuda.Stream(device) if self._is_captured else None
        if self._is_captured:  # what a library makes once must not be part of a recording
            self._call(
                lambda: torch.ones(16, 16, device=device).mm(torch.ones(16, 16, device=device))
            )
            self.counts = GraphCounts()

    def has(self, key: Hashable) -> bool:
        """Whether it was met before, so that to run it records nothing."""
        return key in self.keys

    def forget(self, kind: str) -> None:
        """Drop what was recorded under keys that begin so."""
        self.keys = {key for key in self.keys if key[0] != kind}
        self._graphs = {key: graph for key, graph in self._graphs.items() if key in self.keys}

    def prepare(
        self, key: Any, call: Callable[[], object], is_whole: Callable[[], bool] = lambda: True
    ) -> bool:
        """Have `call` recorded unless it was met before; kept only if it was then whole.

        The first of a kind is run as well: what cannot run fails before any request waits for it.
        """
        if self.has(key):
            return True
        graph = self._record(call) if self._is_captured else None
        is_kept = is_whole()
        if is_kept:
            if all(key[0] != known[0] for known in self.keys):
                self._call(call)
            if graph is not None:
                self._keep(key, graph)
            self.keys.add(key)
        return is_kept

    def run(self, key: Hashable, call: Callable[[], Result]) -> Result | None:
        """Execute `call` once: replayed if it was recorded before; its result if it was called."""
        self.keys.add(key)
        graph, result = self._graphs.get(key), None
        if graph is not None:
            for part in graph:
                part()
            self.counts.replays += 1
        else:
            result = self._call(call)
            if self._is_captured:
                self._keep(key, self._record(call))
        self.watch(key)
        return result

    def cut(self, look: Callable[[], object]) -> None:
        """Called by a function that is run or recorded: the host looks here, in every run.

        What is recorded goes on in another graph. Tensors of the first may be used in the second:
        between the two no other graph is launched.
        """
        if self._recorded is None:
            look()
            return
        self._open.close()
        self._recorded.append(look)
        self._begin()

    def _call(self, call: Callable[[], Result]) -> Result | None:
        """Run operation by operation; of what is recorded only the buffers count, no result."""
        self.counts.direct += 1
        if self._stream is None:
            return call()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            call()
        torch.cuda.current_stream().wait_stream(self._stream)
        return None

    def _keep(self, key: Hashable, graph: list[Callable[[], object]]) -> None:
        self._graphs[key] = graph
        self.counts.captures += 1

    def _record(self, call: Callable[[], object]) -> list[Callable[[], object]]:
        self._recorded = found = list[Callable[[], object]]()
        try:
            with _waiting_allowed(), self._open:
                self._begin()
                call()
        finally:
            self._recorded = None
        return found

    def _begin(self) -> None:
        assert self._recorded is not None, "within a recording"
        graph = torch.cuda.CUDAGraph()
        # Relaxed: a kernel that is met here for the first time may be compiled and loaded.
        recording = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="relaxed"
        )
        self._open.enter_context(recording)
        self._recorded.append(graph.replay)


@contextmanager
def _waiting_allowed() -> Iterator[None]:
    """To begin a recording waits by itself; a watch for waits means those of the rounds."""
    mode = torch.cuda.get_sync_debug_mode()
    # To set it warns, whatever it is set to: not where no watch is on.
    if mode:
        torch.cuda.set_sync_debug_mode("default")
    yield
    if mode:
        torch.cuda.set_sync_debug_mode(mode)


def _ignore(key: Any) -> None:
    """The watch of an ordinary run."""


def smallest(sizes: Sequence[int], needed: int) -> int:
    """The smallest size that holds what is needed; beyond the largest, a multiple of it."""
    for size in sizes:
        if size >= needed:
            return size
    return -(-needed // sizes[-1]) * sizes[-1]
