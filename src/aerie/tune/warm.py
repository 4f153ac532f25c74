"""Recording ahead: ready means that no round has to record while somebody waits."""

from __future__ import annotations

from collections import deque

import torch

from aerie.engine.engine import EngineCore
from aerie.tune.grid import Progress


@torch.inference_mode()
def warm(core: EngineCore, progress: Progress) -> None:
    """Record all that the limits can ask for."""
    todo = core.launcher.unrecorded()
    for done, recording in enumerate(todo):
        progress("recording rounds", done, len(todo))
        core.launcher.graphs.prepare(*recording)
    progress("recording rounds", len(todo), len(todo))


class Idle:
    """The same one at a time, in moments in which nobody decodes."""

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
