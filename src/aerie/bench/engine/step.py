"""Where the milliseconds of a step go: its phases, and the products and kernels inside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aerie.api import Engine
from aerie.attention.pool import KVPool
from aerie.engine import engine as engine_module
from aerie.engine import step as step_module
from aerie.engine.engine import EngineCore
from aerie.engine.params import SamplingParams
from aerie.engine.scheduler import Scheduler
from aerie.kernels.arrays import TensorKernel
from aerie.kernels.registry import Kernel
from aerie.models.decoder import Decoder
from aerie.models.linear import DenseLinear
from aerie.speculation.eagle3 import Eagle3Proposer

if TYPE_CHECKING:
    from rich.table import Table

# What runs in each phase. A phase that another one calls counts for itself alone, so that what is
# left of a step after all others is writing the outcome into the requests.
PHASES: tuple[tuple[Any, str, str], ...] = (
    (EngineCore, "step", "write"),
    (Scheduler, "plan", "scheduler"),
    (engine_module, "run", "gather, select"),
    (Eagle3Proposer, "extend", "extend"),
    (Eagle3Proposer, "grow", "grow"),
    (step_module, "lay_out", "layout, rows"),
    (step_module, "forward_rows", "layout, rows"),
    (Decoder, "forward", "target"),
    (step_module, "commit", "commit"),
    (KVPool, "move", "commit"),
)
# Calls told apart inside whatever phase makes them.
KINDS: tuple[tuple[Any, str, str], ...] = (
    (DenseLinear, "__call__", "products"),
    (Kernel, "__call__", "kernels"),
    (TensorKernel, "__call__", "kernels"),
)
REST = "rest"
ORDER = (
    "scheduler",
    "gather, select",
    "extend",
    "grow",
    "layout, rows",
    "target",
    "verify",
    "commit",
    "write",
)

# The engines that take turns.
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "none"},
    "chain5": {"method": "eagle3", "top_k": 1, "depth": 5, "nodes": 6},
}

Label = tuple[str, str]  # phase, kind

LONGEST_TREE, READING_STEPS = 6, 4  # tokens a step can emit, steps that read one prompt


@dataclass
class Stopwatch:
    """Gives every moment to one label: the innermost call that is watched."""

    spent: dict[Label, float] = field(default_factory=dict)
    _label: Label = ("", REST)
    _since: float = 0.0

    def phase(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The call, its time given to a phase."""
        return self._timed(call, lambda outer: (name, REST))

    def kind(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The call, its time given to a kind of the phase that makes it."""
        return self._timed(call, lambda outer: (outer[0], name))

    def take(self) -> dict[Label, float]:
        """What was spent since the last time, in milliseconds."""
        spent, self.spent = self.spent, {}
        return {label: seconds * 1e3 for label, seconds in spent.items() if label[0]}

    def _timed(
        self, call: Callable[..., Any], label_in: Callable[[Label], Label]
    ) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer = self._label
            self._turn(label_in(outer))
            try:
                return call(*args, **kwargs)
            finally:
                self._turn(outer)

        return timed

    def _turn(self, label: Label) -> None:
        now = time.perf_counter()
        self.spent[self._label] = self.spent.get(self._label, 0.0) + now - self._since
        self._label, self._since = label, now


@contextmanager
def watched(stopwatch: Stopwatch) -> Iterator[None]:
    """Watch every call of the two tables; everything is put back at the end."""
    spots = [(owner, name, stopwatch.phase, label) for owner, name, label in PHASES]
    spots += [(owner, name, stopwatch.kind, label) for owner, name, label in KINDS]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _, _ in spots]
    for owner, name, watch, label in spots:
        setattr(owner, name, watch(getattr(owner, name), label))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


@dataclass
class Series:
    """The timed steps of one method at one batch size."""

    method: str
    batch: int
    steps: list[dict[Label, float]] = field(default_factory=list)
    tokens: int = 0

    @property
    def totals(self) -> list[float]:
        """Milliseconds of every step."""
        return [sum(step.values()) for step in self.steps]

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens of a step and request."""
        return self.tokens / max(1, len(self.steps) * self.batch)

    def spent(self, phase: str, kind: str | None = None) -> list[float]:
        """Milliseconds of a phase in every step, or of one kind of call inside it."""
        return [
            sum(ms for (p, k), ms in step.items() if p == phase and kind in (None, k))
            for step in self.steps
        ]

    def payload(self) -> dict[str, Any]:
        """The machine-readable result; a busy machine shows in medians far above the least."""
        kinds = ("products", "kernels", REST)
        return {
            "method": self.method,
            "batch": self.batch,
            "steps": len(self.steps),
            "tokens_per_step": round(self.tokens_per_step, 3),
            "step_ms": _range(self.totals),
            "phases_ms": {
                phase: {kind: _range(self.spent(phase, kind)) for kind in kinds} for phase in ORDER
            },
        }


def _range(values: Sequence[float]) -> dict[str, float]:
    return {"least": round(min(values), 4), "median": round(statistics.median(values), 4)}


def open_engine(method: str, batch: int, **settings: Any) -> Engine:
    """The built-in pair with one of the methods; prompts are read anew every time."""
    return Engine.load(
        device="cpu",
        speculation=METHODS[method],
        scheduler={"max_batch": batch},
        cache={"prefix_reuse": False},
        **settings,
    )


def run_steps(core: EngineCore, prompts: Sequence[Sequence[int]], n_steps: int) -> Series:
    """Read prompts, then time so many steps in which all of them decode."""
    stopwatch = Stopwatch()
    parts = core.parts
    # Verification is a value of the parts, not a name of a module.
    core.parts = replace(parts, verify=stopwatch.phase(parts.verify, "verify"))
    # Those that are read first decode while the others are read.
    n_tokens = LONGEST_TREE * (n_steps + READING_STEPS * len(prompts))
    params = SamplingParams(max_tokens=n_tokens, temperature=0.0, ignore_eos=True)
    ids = [core.submit(prompt, params) for prompt in prompts]
    while any(core.request(i).n_unread or core.request(i).held.row < 0 for i in ids):
        assert all(core.request(i).ended is None for i in ids), "a text ended before the last began"
        core.step()
    core.step()
    written = sum(len(core.request(i).output) for i in ids)
    series = Series("", len(prompts))
    with watched(stopwatch):
        for _ in range(n_steps):
            core.step()
            series.steps.append(stopwatch.take())
    series.tokens = sum(len(core.request(i).output) for i in ids) - written
    for request_id in ids:
        core.cancel(request_id)
    while not core.is_idle:
        core.step()
    for request_id in ids:
        core.forget(request_id)
    core.parts = parts
    return series


def table_of(series: Sequence[Series]) -> Table:
    """Milliseconds by phase, least / median of all steps, and what is inside."""
    from rich.table import Table

    def cells(values: Sequence[Sequence[float]]) -> list[str]:
        return [f"{min(ms):.2f} / {statistics.median(ms):.2f}" for ms in values]

    table = Table("ms", *(f"{s.method}, batch {s.batch}" for s in series), box=None)
    table.add_row("step", *cells([s.totals for s in series]))
    for phase in ORDER:
        table.add_row(phase, *cells([s.spent(phase) for s in series]))
        for kind in ("products", "kernels"):
            inside = [s.spent(phase, kind) for s in series]
            if any(any(ms) for ms in inside):
                table.add_row(f"  {kind}", *cells(inside))
    table.add_row("tokens a step", *(f"{s.tokens_per_step:.2f}" for s in series))
    return table
