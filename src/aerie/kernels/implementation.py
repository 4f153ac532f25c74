"""What a backend supplies for one kernel, and how it takes foreign arrays in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from aerie.kernels.catalogue import catalogue


@dataclass(frozen=True)
class Implementation:
    """One kernel of one backend.

    `run(**inputs)` returns the outputs by name. A kernel that writes in place has a pure `check`
    that returns `status[B]` and `detail[B]` (the offending value) before anything is written; its
    `run` then receives `status` and leaves refused requests as they were. Other kernels return
    `status` and `detail` from `run`, if their card lists refusals. Refusals are tried in the
    card's order; the first that applies to a request wins. Optional inputs that were not given
    are not passed.

    Where refusals are status words, a kernel that `checks_inside` is called without its check: it
    decides on each request before it writes it, and a launch less is worth having.

    An overlay may hold a part of a kernel: calls that `covers(inputs)` denies, by what they pass
    and never by the data, go to the backend it stands on.
    """

    run: Callable[..., dict[str, Any]]
    check: Callable[..., dict[str, Any]] | None = None
    covers: Callable[[Mapping[str, Any]], bool] | None = None
    checks_inside: bool = False

    def over(self, base: Implementation) -> Implementation:
        """This implementation where it covers a call, `base` elsewhere."""
        covers = self.covers
        assert covers is not None and self.check is None and base.check is None

        def run(**inputs: Any) -> dict[str, Any]:
            return (self if covers(inputs) else base).run(**inputs)

        return Implementation(run)


def implementations_in(*modules: ModuleType) -> dict[str, Implementation]:
    """The functions of modules that have a kernel's name, each with its `check_`, if it has one."""
    return {
        name: Implementation(run, getattr(module, f"check_{name}", None))
        for module in modules
        for name in catalogue()
        # Of another module's kernel that one calls, the table is where it is written.
        if (run := getattr(module, name, None)) and run.__module__ == module.__name__
    }
