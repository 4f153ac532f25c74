"""What the options of requests cost a captured round: sampling, log-probabilities, newcomers.

The same engine runs the same prompts with one set of options after the other, in turns. Rounds of
a fixed tree: every one verifies as many rows, whatever was accepted.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aerie.assemble.choices import CHUNKS
from aerie.bench.lane import captured
from aerie.bench.round.setup import Room, RoundSetup, abandon, read_prompts, start
from aerie.bench.round.speed import Clocked, launch_counts, run_without_waiting, step_to_room
from aerie.bench.trace import trace_rounds
from aerie.bench.turns import in_turns
from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.sampler import EVERYTHING, GREEDY
from aerie.models.inflate.embed import LargePair
from aerie.requests.params import SamplingParams

# Operations that move bytes between host and device, or make a tensor, and launch no kernel there.
MAKING = ("empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "detach", "detach_")
COPYING = ("copy_", "_to_copy")
TREE = SpeculationConfig(top_k=4, depth=3, nodes=8)
SAMPLED = {
    "temperature": 0.8,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "seed": 7,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "logprobs": {"logprobs": 5},
    "sampled logprobs": {**SAMPLED, "logprobs": 5},
}
# Which rounds are held against which, and what they may take of their time.
LIMITS = {
    ("sampled", "greedy"): 1.06,
    ("logprobs", "greedy"): 1.10,
    ("sampled logprobs", "sampled"): 1.10,
}
BATCHES = {True: (8, 32), False: (2, 4)}  # on a GPU; in a rehearsal
N_TURNS = 4  # timed; one before them warms up
COUNTED = 8  # rounds in which waits and launches are counted
# No request comes or goes; a long prompt is read chunk by chunk; a short one is read and seated.
WINDOWS = ("steady", "reading", "joining")
LONG = (COUNTED + 2) * CHUNKS["cuda"][1]  # tokens of the long one


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

    def summary(self, n_rounds: int) -> dict[str, Any]:
        """By name, of a round."""
        return {
            kind: {name: round(count / n_rounds, 3) for name, count in own.most_common()}
            for kind, own in (("operations", self.kernels), ("copies", self.copies))
        }


def new_tokens(n_rounds: int) -> int:
    """Tokens that no request reaches in its rounds."""
    return (TREE.limits.depth + 1) * (n_rounds + 16 * COUNTED + 1024)


@dataclass(eq=False)
class OptionBench:
    """One engine at one batch size."""

    core: EngineCore
    prompts: list[list[int]]
    n_rounds: int  # of a turn
    times: dict[str, list[Clocked]] = field(default_factory=dict)

    def measure(self) -> None:
        """Every set of options in turns."""
        self.times = in_turns({name: partial(self._turn, name) for name in OPTIONS}, N_TURNS)

    def _turn(self, name: str) -> Clocked:
        ids = start(self.core, self.prompts, new_tokens(self.n_rounds), **OPTIONS[name])
        clocked = Clocked(self.core)
        clocked.block(self.n_rounds)
        abandon(self.core, ids)
        return clocked

    def summary(self) -> dict[str, Any]:
        """Medians, the ratios turn by turn, and their medians."""
        walls = {
            name: [statistics.median(turn.wall) for turn in turns]
            for name, turns in self.times.items()
        }
        ratios = {
            pair: [own / other for own, other in zip(*(walls[name] for name in pair), strict=True)]
            for pair in LIMITS
        }
        return {
            "rounds": self.n_rounds * N_TURNS,
            "options": {
                name: {
                    "ms": round(statistics.median(walls[name]), 4),
                    "turns_ms": [round(ms, 4) for ms in walls[name]],
                    "device_ms": turns[-1].phases(),
                }
                for name, turns in self.times.items()
            },
            "ratios": {
                f"{own} / {other}": {
                    "median": round(statistics.median(ratios[own, other]), 4),
                    "turns": [round(ratio, 4) for ratio in ratios[own, other]],
                    "limit": limit,
                }
                for (own, other), limit in LIMITS.items()
            },
        }

    def waits_and_launches(self, name: str) -> dict[str, Any]:
        """Of rounds without arrivals and ends, and of rounds that read a prompt and seat it."""
        *seated, _ = self.prompts
        ids = start(self.core, seated, new_tokens(self.n_rounds), **OPTIONS[name])
        found = {}
        for kind in WINDOWS:
            self._window(name, kind, _stepped)  # so that all graphs exist
            found[kind] = {what: self._window(name, kind, own) for what, own in COUNTERS.items()}
        assert all(self.core.request(i).ended is None for i in ids), "a counted request ended"
        abandon(self.core, ids)
        return found

    def _window(self, name: str, kind: str, count: Callable[[EngineCore, int], Any]) -> Any:
        """Count in some rounds; see `WINDOWS` for what comes meanwhile."""
        core, short = self.core, self.prompts[-1]
        step_to_room(core, (TREE.limits.depth + 1) * (COUNTED + 4))
        params = SamplingParams(new_tokens(self.n_rounds), ignore_eos=True, **OPTIONS[name])
        long = (short * (1 + LONG // len(short)))[:LONG]
        ids = [
            core.submit(p, params) for p in {"reading": [long], "joining": [short]}.get(kind, [])
        ]
        if kind == "reading":
            core.step()  # it is admitted, which takes pages
        found = count(core, COUNTED)
        for request_id in ids:
            core.discard(request_id)
        core.step()
        return found


def _stepped(core: EngineCore, n_rounds: int) -> None:
    for _ in range(n_rounds):
        core.step()


def _outside(core: EngineCore, n_rounds: int) -> dict[str, Any]:
    before = launch_counts(core)
    with OutsideGraphs(core) as counted:
        _stepped(core, n_rounds)
    recorded = launch_counts(core)["captures"] - before["captures"]
    return {**counted.summary(n_rounds), "recorded_meanwhile": recorded}


COUNTERS: dict[str, Callable[[EngineCore, int], Any]] = {
    "waits_beside_the_read": run_without_waiting,
    "outside_graphs": _outside,
    "profile": lambda core, n_rounds: trace_rounds(core, n_rounds).summary(),
}


def measure_options(
    setup: RoundSetup, pair: LargePair, context: int, n_rounds: int
) -> dict[str, Any]:
    """Rounds of every batch size with every set of options; JSON values."""
    is_gpu = setup.device.startswith("cuda")
    found: dict[str, Any] = {"vocabulary": pair.target.geometry.vocab_size, "context": context}
    batches = {}
    for batch in BATCHES[is_gpu]:
        prompts = read_prompts(batch, context, pair.target.geometry.vocab_size)
        bench = OptionBench(_engine(setup, pair, batch, context, n_rounds), prompts, n_rounds)
        bench.measure()
        batches[str(batch)] = {
            **bench.summary(),
            "counts": launch_counts(bench.core),
            **{name: bench.waits_and_launches(name) for name in ("greedy", "sampled")},
        }
    met = {
        f"{name}, batch {batch}": ratio["median"] <= ratio["limit"]
        for batch, own in batches.items()
        for name, ratio in own["ratios"].items()
    }
    quiet = [
        own[name][kind]["waits_beside_the_read"] is None
        and own[name][kind]["profile"]["launches_outside_graphs"] == 0
        for own in batches.values()
        for name in ("greedy", "sampled")
        for kind in WINDOWS
    ]
    # A CPU calls every function: its times say nothing about graphs.
    is_ok = not is_gpu or (all(met.values()) and all(quiet))
    return {**found, "batches": batches, "met": met, "quiet": all(quiet), "ok": is_ok}


def _engine(
    setup: RoundSetup, pair: LargePair, batch: int, context: int, n_rounds: int
) -> EngineCore:
    longest = max(context, LONG) + new_tokens(n_rounds)
    room = Room(batch, longest, graphs=GraphConfig(record_every=0))
    core = setup.core(pair, TREE, room)
    for options in (GREEDY, EVERYTHING):
        captured(core).record(batch, context, options)
    return core
