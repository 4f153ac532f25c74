"""Counts what touches an engine's device between two graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aerie.engine.engine import EngineCore

# Operations that move bytes between host and device, or make a tensor, and launch no kernel there.
MAKING = ("empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "detach", "detach_")
COPYING = ("copy_", "_to_copy")


class OutsideGraphs(TorchDispatchMode):
    """Counts, while it is entered, what touches an engine's device between two graphs.

    On a GPU only what runs there counts. A rehearsal on a CPU counts the host's own arrays as well.
    Triton's launches are no operations of torch: those the profiler counts.
    """

    def __init__(self, core: EngineCore) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self._graphs: Any = core.launcher.graphs
        self._device = core.memory.table.device.type
        self._is_inside = False

    def __enter__(self) -> OutsideGraphs:
        run = self._graphs.run

        def inside(key: Any, call: Callable[[], Any]) -> Any:
            self._is_inside = True
            try:
                return run(key, call)
            finally:
                self._is_inside = False

        self._graphs.run = inside
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        del self._graphs.run  # the method shows again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The operation, counted."""
        out = func(*args, **(kwargs or {}))
        if not self._is_inside and not func.is_view:
            self._count(func, [*tree_leaves((args, kwargs)), *tree_leaves(out)])
        return out

    def _count(self, func: Any, values: list[Any]) -> None:
        name = func.overloadpacket.__name__
        devices = {value.device.type for value in values if isinstance(value, torch.Tensor)}
        if self._device not in devices or name in MAKING:
            return
        is_copy = name in COPYING and (len(devices) > 1 or self._device == "cpu")
        (self.copies if is_copy else self.kernels)[name] += 1
