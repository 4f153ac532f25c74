"""A long random life of one engine: arrivals, ends, cancellations, preemption; shared, not a test.

Also runs by itself and keeps its log:  python -m tests.unit.engine.soak reports/raw/soak.log
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aerie.bench.provenance import provenance
from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import (
    LAUNCHERS,
    LIMITS,
    Pair,
    assert_pool_is_unheld,
    core,
    load_pair,
    outputs,
    write_pair,
)

TREE = SpeculationConfig(method="eagle3+ngram", top_k=2, depth=3, nodes=8)


@dataclass
class Life:
    """What happened, for the log and for the assertions."""

    n_steps: int = 0
    n_finished: int = 0
    n_cancelled: int = 0
    n_preempted: int = 0
    n_tokens: int = 0
    n_checked: int = 0
    resident: list[int] = field(default_factory=list)  # kilobytes, once a thousand steps


def live(pair: Pair, launcher: str, n_steps: int, say: Callable[[str], None]) -> Life:
    """Step an audited engine that never rests; spot-check outputs against plain decoding."""
    rng = random.Random(5)
    sizes = {"n_pages": 60, "page_size": 2, "max_batch": 6}
    engine = core(pair, "exact", speculation=TREE, engine=launcher, **sizes)
    life = Life()
    open_ids: dict[int, tuple[list[int], SamplingParams]] = {}
    start = time.time()
    while life.n_steps < n_steps:
        if len(open_ids) < 7 and rng.random() < 0.6:
            prompt = [rng.randrange(LIMITS.vocabulary) for _ in range(rng.choice([1, 2, 5, 17]))]
            params = SamplingParams(
                max_tokens=rng.choice([1, 4, 11, 25]),
                temperature=rng.choice([0.0, 0.9]),
                top_p=rng.choice([1.0, 0.8]),
                presence_penalty=rng.choice([0.0, 0.0, 0.5]),
                speculative=rng.random() < 0.8,
                seed=rng.randrange(1 << 62),
            )
            open_ids[engine.submit(prompt, params)] = (prompt, params)
        if open_ids and rng.random() < 0.03:
            engine.cancel(rng.choice(list(open_ids)))
        engine.step()
        life.n_steps += 1
        _collect(pair, engine, open_ids, life)
        if life.n_steps % 1000 == 0:
            life.resident.append(_resident())
            say(
                f"{life.n_steps} steps, {life.n_finished} finished, {life.n_cancelled} cancelled,"
                f" {life.n_preempted} preempted, {life.n_tokens} tokens, {life.n_checked} checked,"
                f" {life.resident[-1]} kB resident, {time.time() - start:.0f} s"
            )
    for request_id in open_ids:
        engine.cancel(request_id)
    engine.step()
    assert engine.is_idle
    assert_pool_is_unheld(engine)
    return life


def _collect(
    pair: Pair,
    engine: EngineCore,
    open_ids: dict[int, tuple[list[int], SamplingParams]],
    life: Life,
) -> None:
    for request_id in [i for i in open_ids if engine.request(i).ended is not None]:
        request = engine.forget(request_id)
        job = open_ids.pop(request_id)
        assert request.ended is not None and request.ended.reason != "error"
        is_cancelled = request.ended.reason == "cancelled"
        life.n_cancelled += is_cancelled
        life.n_finished += not is_cancelled
        life.n_tokens += len(request.output)
        life.n_preempted += request.statistics.preemptions
        if not is_cancelled and life.n_finished % 50 == 0:
            plain = core(pair, "exact", speculation=SpeculationConfig(method="none"))
            assert outputs(plain, [job]) == [request.output]
            life.n_checked += 1


def _resident() -> int:
    """Resident kilobytes now, not at the peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def main() -> None:
    """Run 20,000 steps with each launcher and keep the log."""
    out = Path(sys.argv[1])
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    # First, so that also a run that is cut short says where and of what it was.
    say(f"provenance: {provenance('cpu')}")
    with tempfile.TemporaryDirectory() as folder:
        pair = load_pair(write_pair(Path(folder)), "exact")
        for launcher in LAUNCHERS:
            say(f"launcher {launcher}")
            live(pair, launcher, 20_000, say)
    lines.append("pool empty at the end, no error, every spot check identical")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
