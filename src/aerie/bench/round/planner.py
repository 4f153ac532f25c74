"""Planned rounds beside fixed ones on the same texts, in turns, and the kernels they consist of."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

from aerie.bench.lane import captured
from aerie.bench.round.profile import profile_rounds
from aerie.bench.round.setup import (
    Room,
    RoundSetup,
    abandon,
    read_prompts,
    start,
    synchronise,
)
from aerie.bench.round.speed import run_without_waiting, step_to_room
from aerie.by_context import ByContext
from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.sampler import GREEDY
from aerie.models.inflate import LargePair

PLANNER = "planner"
RIVALS = {
    "plain": SpeculationConfig(method="none"),
    "chain3": SpeculationConfig(top_k=1, depth=3, nodes=4),
    "chain5": SpeculationConfig(top_k=1, depth=5, nodes=6),
    "chain7": SpeculationConfig(top_k=1, depth=7, nodes=8),
    "tree16": SpeculationConfig(top_k=8, depth=5, nodes=16),
    "tree32": SpeculationConfig(top_k=8, depth=5, nodes=32),
    PLANNER: SpeculationConfig(policy="planner"),
}
N_TURNS = 2  # timed; one before them warms up
PROFILED = 8
N_TRACED = 600  # tokens of the texts whose rounds are traced


def compare_planner(
    setup: RoundSetup, pair: LargePair, context: int, batch: int, n_new: int
) -> tuple[dict[str, Any], EngineCore]:
    """Tokens per second of every policy on the same prompts, and the planner's engine; JSON."""
    room = Room(batch, context + n_new + 1024)
    cores = {name: setup.core(pair, policy, room) for name, policy in RIVALS.items()}
    for core in cores.values():
        # Requests end one after the other: smaller batches come by themselves.
        for n_requests in {size for size in (*room.graphs.slots, batch) if size <= batch}:
            captured(core).record(n_requests, context, GREEDY)
    every = read_prompts(batch * (1 + N_TURNS), context, pair.target.geometry.vocab_size)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in RIVALS}
    for turn in range(1 + N_TURNS):
        prompts = every[turn * batch : (turn + 1) * batch]
        for name, core in cores.items():
            found[name].append(_write(core, setup.device, prompts, n_new))
    return {name: _summary(turns[1:]) for name, turns in found.items()}, cores[PLANNER]


def _write(core: EngineCore, device: str, prompts: list[list[int]], n_new: int) -> dict[str, Any]:
    """Decode all prompts to the end; prefill is not timed."""
    ids = start(core, prompts, n_new)
    graphs = captured(core).graphs
    launched: Counter[str] = Counter()
    graphs.watch = lambda key: launched.update(_names(key))
    captures = graphs.counts.captures
    before = sum(len(core.request(i).output) for i in ids)
    synchronise(device)
    begin = time.perf_counter()
    n_steps = 0
    while not core.is_idle:
        core.step()
        n_steps += 1
    synchronise(device)
    seconds = time.perf_counter() - begin
    graphs.watch = lambda key: None
    done = [core.forget(i) for i in ids]
    return {
        "tokens_per_second": (sum(len(r.output) for r in done) - before) / seconds,
        "ms_per_step": 1e3 * seconds / n_steps,
        "acceptance": [r.statistics.mean_acceptance_length for r in done],
        "by_context": ByContext.total(r.statistics.by_context for r in done),
        "captures": graphs.counts.captures - captures,
        "launched": dict(launched.most_common(8)),
    }


def _names(key: Any) -> list[str]:
    """A verification or a draft in words; what else a round launches follows from no plan."""
    kind, *sizes = key
    if kind == "draft":
        widths = sizes[1]
        return [f"{kind} {len(widths)}x{widths[0] if widths else 0}"]
    return [f"{kind} {sizes[0].rows}"] if kind == "verify" else []


def _summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    speeds = [turn["tokens_per_second"] for turn in turns]
    accepted = [length for turn in turns for length in turn["acceptance"]]
    return {
        "tokens_per_second": round(statistics.median(speeds), 1),
        "turns": [round(speed, 1) for speed in speeds],
        "ms_per_step": round(statistics.median(turn["ms_per_step"] for turn in turns), 4),
        "acceptance_length": round(statistics.mean(accepted), 3),
        "acceptance_by_context": ByContext.total(turn["by_context"] for turn in turns).lengths(),
        "captures": [turn["captures"] for turn in turns],
        "launched": turns[-1]["launched"],
    }


def profile_planner(
    setup: RoundSetup, core: EngineCore, prompts: list[list[int]]
) -> tuple[dict[str, Any], str]:
    """Waits of planned rounds that are under way, and every kernel of theirs; JSON and CSV."""
    core.step()  # the last text's report is read, and its seats are free
    ids = start(core, prompts, N_TRACED)
    for _ in range(3 * PROFILED):
        core.step()
    waits = None
    if len(prompts) == 1:
        # The slot table must not be written meanwhile: room for what both traces may emit, and
        # for a draft behind it.
        step_to_room(core, 2 * PROFILED * 13 + 104)
        waits = run_without_waiting(core, PROFILED)
    traced = profile_rounds(core, PROFILED)
    abandon(core, ids)
    return {"waits_beside_the_read": waits, "profile": traced.summary()}, traced.csv()
