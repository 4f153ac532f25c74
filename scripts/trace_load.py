"""Where the device's time goes while requests come and go: every graph, and what lies between.

    python3 -m scripts.trace_load OUT.json [--clients 8,32,64] [--profile N]

A closed loop in this process: so many clients, each of which asks again as soon as it is answered,
prompts that no cache knows, no text and no server. Marks of the device stand before and behind
every graph; what lies between two graphs the device was idle, or copied what the host told. With
--profile N the last load runs once more under Python's profiler.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import itertools
import json
import pstats
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.assemble.core import build_core
from aerie.bench.provenance import provenance
from aerie.bench.record import percentiles, write_json
from aerie.bench.round.setup import PAGE, RoundSetup, read_prompts
from aerie.bench.round.speed import launch_counts
from aerie.config import CacheConfig, EngineConfig, GraphConfig, SchedulerConfig, SpeculationConfig
from aerie.engine import scheduler
from aerie.engine.engine import EngineCore, Limits
from aerie.requests.events import FinishEvent
from aerie.requests.params import SamplingParams
from aerie.tune.clock import Clock, clock_of
from aerie.tune.warm import warm

REQUESTS = {1: 16, 8: 64, 32: 128, 64: 192}


@dataclass
class Watch:
    """Marks around every graph."""

    core: EngineCore
    clock: Clock
    launched: list[tuple[Any, Any, Any]] = field(default_factory=list)  # key, before, behind

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stand in front of the launcher's graphs."""
        graphs: Any = self.core.launcher.graphs
        run = graphs.run

        def marked_run(key: Any, call: Callable[[], Any]) -> Any:
            before = self.clock.mark()
            result = run(key, call)
            self.launched.append((key, before, self.clock.mark()))
            return result

        graphs.run = marked_run
        try:
            yield
        finally:
            del graphs.run  # the method shows again


def closed_loop(
    core: EngineCore, prompts: list[list[int]], n_clients: int, options: Any
) -> dict[str, Any]:
    """Every client asks again as soon as it is answered."""
    params = SamplingParams(ignore_eos=True, **options)
    waiting, asked, told = list(reversed(prompts)), dict[int, float](), dict[int, float]()
    first, gaps = list[float](), list[float]()
    begin, n_tokens, n_steps = time.perf_counter(), 0, 0

    def ask() -> None:
        if waiting:
            asked[core.submit(waiting.pop(), params)] = time.perf_counter()

    for _ in range(n_clients):
        ask()
    while not core.is_idle:
        events = core.step()
        now = time.perf_counter()
        n_steps += 1
        for event in events:
            if isinstance(event, FinishEvent):
                core.forget(event.request_id)
                ask()
            else:
                n_tokens += len(event.tokens)
                if event.request_id in told:
                    gaps.append(now - told[event.request_id])
                else:
                    first.append(now - asked[event.request_id])
                told[event.request_id] = now
    seconds = time.perf_counter() - begin
    return {
        "clients": n_clients,
        "requests": len(prompts),
        "seconds": round(seconds, 4),
        "tokens_per_second": round(n_tokens / seconds, 1),
        "steps": n_steps,
        "first_ms": percentiles([1e3 * seconds for seconds in first], 1),
        "gap_ms": percentiles([1e3 * seconds for seconds in gaps], 1),
    }


def summarise(watch: Watch) -> dict[str, Any]:
    """Seconds of graphs by kind, and of gaps by what stood before and behind them."""
    clock, sizes = watch.clock, Counter[str]()
    busy, gaps = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    last: tuple[str, Any] | None = None
    for key, before, after in watch.launched:
        busy[key[0]].append(clock.seconds(before, after))
        if last is not None:
            gaps[f"{last[0]} > {key[0]}"].append(clock.seconds(last[1], before))
        last = key[0], after
        if key[0] in ("verify", "read"):
            sizes[f"{key[0]} {key[1].seats} x {key[1].rows}"] += 1
        if key[0] == "draft":
            sizes[f"draft {key[1].seats} x {key[2]}"] += 1

    def told(found: dict[str, list[float]]) -> dict[str, Any]:
        named = sorted(found.items(), key=lambda own: -sum(own[1]))
        return {
            name: [len(own), round(sum(own), 4), round(1e3 * statistics.median(own), 3)]
            for name, own in named
        }

    return {
        "busy_n_s_ms": told(busy),
        "gaps_n_s_ms": told(gaps),
        "busy_seconds": round(sum(map(sum, busy.values())), 4),
        "gap_seconds": round(sum(map(sum, gaps.values())), 4),
        "sizes": dict(sizes.most_common(24)),
        "launcher": launch_counts(watch.core),
    }


def main() -> None:
    """Load, warm, run each load twice: bare, and watched."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--clients", default="8,32,64")
    parser.add_argument("--numerics", default="exact")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--read-within", default="", help="steps as far as a chunk may grow, each")
    parser.add_argument("--profile", type=int, default=0, help="rows of the profile")
    parser.add_argument("--rehearse", action="store_true", help="the built-in pair on a CPU")
    asked = parser.parse_args()
    setup = RoundSetup(numerics=asked.numerics, backend="triton")
    limits, graphs, n_pages = 33792, GraphConfig(), 8192
    if asked.rehearse:
        setup = RoundSetup("cpu", "float32", None, "numpy", numerics="fast", foreign_costs=True)
        limits, n_pages = 1024, 512
        graphs = GraphConfig(slots=(2, 4), columns=(256, 512), chunks=(64, 128, 256))
    pair = setup.load()
    clients = [int(n) for n in asked.clients.split(",")]
    config = EngineConfig(
        model=setup.model,
        cache=CacheConfig(n_pages, PAGE, prefix_reuse=True),
        graphs=graphs,
        scheduler=SchedulerConfig(max_batch=max(clients)),
        speculation=SpeculationConfig(),
        backend=setup.backend,
        engine="graphs",
    )
    vocabulary = pair.target.geometry.vocab_size
    core = build_core(config, pair.target, pair.head, Limits(limits, vocabulary, ()))
    begin = time.perf_counter()
    warm(core, lambda *_: None)
    print(f"warm after {time.perf_counter() - begin:.1f} s", flush=True)
    texts = read_prompts(max(REQUESTS.get(n, 3 * n) for n in clients), asked.context, vocabulary)
    found, n_asked = [], 0

    def fresh(n_clients: int) -> list[list[int]]:
        nonlocal n_asked
        own = texts[: REQUESTS.get(n_clients, 3 * n_clients)]
        n_asked += len(own)
        # Another beginning for every request: no prefix cache knows one of them.
        return [[*divmod(n_asked + i, 1000), *text[2:]] for i, text in enumerate(own)]

    options = {"max_tokens": asked.tokens}
    closed_loop(core, fresh(clients[0])[: 2 * clients[0]], clients[0], options)
    tried = [int(n) for n in asked.read_within.split(",") if n] or [scheduler.READ_WITHIN]
    for n_clients, scheduler.READ_WITHIN in itertools.product(clients, tried):
        row: dict[str, Any] = {"read_within": scheduler.READ_WITHIN}
        row |= closed_loop(core, fresh(n_clients), n_clients, options)
        watch = Watch(core, clock_of(core.memory.table.device))
        with watch.watching():
            watched = closed_loop(core, fresh(n_clients), n_clients, options)
        row |= {"watched": watched, **summarise(watch)}
        found.append(row)
        print(json.dumps(row, indent=1), flush=True)
    if asked.profile:
        profile = cProfile.Profile()
        profile.enable()
        row = closed_loop(core, fresh(clients[-1]), clients[-1], options)
        profile.disable()
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(asked.profile)
        print(json.dumps(row), text.getvalue())
    record = {"loads": found, "numerics": asked.numerics, "kind": "measured"}
    record |= {"provenance": provenance(setup.device)}
    write_json(asked.out, record)


if __name__ == "__main__":
    main()
