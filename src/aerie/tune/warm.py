"""Recording ahead: ready means that no round has to record while a request waits."""

from __future__ import annotations

import time
from collections import deque

import torch

from aerie.engine.engine import EngineCore
from aerie.engine.graphs import Graphs, Recording
from aerie.tune.grid import Progress

LOOK_SECONDS = 0.02


@torch.inference_mode()
def warm(core: EngineCore, progress: Progress) -> None:
    """Record all that the limits can ask for; kernels that no cache has are compiled meanwhile."""
    todo, core.launcher.graphs.is_warm = core.launcher.unrecorded(), True
    if core.config.backend == "triton" and core.config.model.device != "cpu":
        _record_and_compile(core.launcher.graphs, todo, progress)
        return
    for done, recording in enumerate(todo):
        progress("recording rounds", done, len(todo))
        core.launcher.graphs.prepare(*recording)
    progress("recording rounds", len(todo), len(todo))


def _record_and_compile(graphs: Graphs, todo: list[Recording], progress: Progress) -> None:
    """Whatever lacks a kernel is put back until processes have compiled that."""
    from aerie.kernels.triton_gpu.ahead import Compilers  # only where Triton is

    waiting = deque((recording, frozenset[str]()) for recording in todo)
    with Compilers() as compilers:
        while waiting:
            n_waiting = len(waiting)
            for _ in range(n_waiting):
                recording, missing = waiting.popleft()
                if compilers.has(missing):
                    n_all = len(todo) + compilers.n_asked
                    n_left = len(waiting) + compilers.n_left
                    progress("recording rounds", n_all - n_left, n_all)
                    compilers.missed.clear()
                    if graphs.prepare(*recording, lambda: not compilers.missed):
                        continue
                    missing = frozenset(compilers.missed)
                waiting.append((recording, missing))
            if len(waiting) == n_waiting:
                time.sleep(LOOK_SECONDS)
        progress("recording rounds", len(todo), len(todo))


class Idle:
    """The same one at a time, in moments in which nothing decodes."""

    def __init__(self, core: EngineCore) -> None:
        self._graphs = core.launcher.graphs
        self._left = deque(core.launcher.unrecorded())

    def __len__(self) -> int:
        """What is left."""
        return len(self._left)

    @torch.inference_mode()
    def record_one(self) -> None:
        """Record one, some milliseconds."""
        self._graphs.prepare(*self._left.popleft())
