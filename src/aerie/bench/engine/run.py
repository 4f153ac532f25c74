"""Runs one point of `aerie bench engine`: all policies, interleaved, on one engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aerie.bench.engine.contract import PLAIN, WatchedPlanner
from aerie.bench.lane import Lanes, shape_config
from aerie.bench.round.setup import abandon
from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.requests.events import TokenEvent
from aerie.requests.params import SamplingParams
from aerie.requests.request import Statistics
from aerie.speculation.planner import Round
from aerie.speculation.policy import Policy, Situation
from aerie.tune.clock import clock_of, marked

# The part of a round that a function of it belongs to.
PHASES = {"draft": "draft", "close": "draft", "verify": "verify"}


@dataclass
class Run:
    """One policy on one group of prompts."""

    policy: str
    tokens: int = 0
    seconds: float = 0.0
    modelled_seconds: float = 0.0  # what the cost table says the rounds cost; planner only
    rounds: int = 0
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES.values(), 0.0))
    statistics: list[Statistics] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)  # between emissions, per token of the later
    accepted: list[int] = field(default_factory=list)  # draft tokens of each request and round

    @property
    def tokens_per_second(self) -> float:
        """Decoding alone: the clock starts when every prompt is read."""
        return self.tokens / self.seconds


class Bed:
    """An engine on which any policy can run; prompts it has read once stay in its memory."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._lanes = Lanes(core)

    def take(self, name: str, policy: Policy) -> None:
        """Switch the policy. Plain decoding runs without a head: it pays for no features."""
        plain = SpeculationConfig("none")
        speculation = plain if name == PLAIN else shape_config(policy.shape)
        self._lanes.take(self._lanes.make(policy, speculation))

    def read(self, prompts: Sequence[Sequence[int]], policy: Policy) -> list[float]:
        """Read prompts into the prefix cache, with the head; seconds to each first token."""
        self.take("read", policy)
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        seconds = []
        for prompt in prompts:
            start = time.perf_counter()
            request_id = self.core.submit(prompt, params)
            while not self.core.is_idle:
                self.core.step()
            seconds.append(time.perf_counter() - start)
            self.core.forget(request_id)
        return seconds

    def run(
        self, name: str, policy: Policy, prompts: Sequence[Sequence[int]], new_tokens: int
    ) -> tuple[Run, list[list[int]]]:
        """Decode prompts together until the first is done; what it took, and the outputs.

        The batch is then whole in every round that counts, whatever the policy.
        """
        self.take(name, policy)
        core, run = self.core, Run(name)
        params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        ids = [core.submit(prompt, params) for prompt in prompts]
        while any(core.request(i).n_unread or core.request(i).held.row < 0 for i in ids):
            core.step()
            assert all(core.request(i).ended is None for i in ids), "a prompt was not in memory"
        written = {i: len(core.request(i).output) for i in ids}
        start = time.perf_counter()
        last = dict.fromkeys(ids, start)
        clock = clock_of(core.memory.table.device)
        with marked(core.launcher.graphs, clock) as spans:
            while all(core.request(i).ended is None for i in ids):
                situation = _situation(core)
                events = [event for event in core.step() if isinstance(event, TokenEvent)]
                now = time.perf_counter()
                self._count(run, policy, situation)
                for event in events:
                    n_tokens = len(event.tokens)
                    run.gaps.append((now - last[event.request_id]) / n_tokens)
                    run.accepted.append(n_tokens - 1)
                    last[event.request_id] = now
        run.seconds = time.perf_counter() - start
        for name, marks in spans:
            run.phases[PHASES[name]] += clock.seconds(*marks)
        requests = abandon(core, ids)
        run.tokens = sum(len(r.output) - written[r.job.request_id] for r in requests)
        run.statistics = [r.statistics for r in requests]
        return run, [r.output for r in requests]

    def _count(self, run: Run, policy: Policy, situation: Situation) -> None:
        run.rounds += 1
        if isinstance(policy, WatchedPlanner):
            last = policy.last
            plain = policy.prices(situation).plain
            run.modelled_seconds += last.seconds if isinstance(last, Round) else plain


def _situation(core: EngineCore) -> Situation:
    decoding = [r for r in core.running if r.ended is None]
    n_tokens = sum(r.seq_len for r in decoding)
    return Situation(max(len(decoding), 1), n_tokens / max(len(decoding), 1))


def interleave(
    bed: Bed,
    policies: dict[str, Policy],
    groups: Sequence[Sequence[Sequence[int]]],
    new_tokens: int,
    on_run: Callable[[str], None],
) -> tuple[list[dict[str, Run]], int]:
    """Every policy once per group, the order turning; runs by group, and texts that differed."""
    found, n_different = [], 0
    names = list(policies)
    for index, prompts in enumerate(groups):
        turn = index % len(names)
        runs: dict[str, Run] = {}
        texts: dict[str, list[list[int]]] = {}
        for name in names[turn:] + names[:turn]:
            runs[name], texts[name] = bed.run(name, policies[name], prompts, new_tokens)
            on_run(name)
        n_different += sum(
            any(one != other for one, other in zip(ours, plain, strict=False))
            for name in names
            for ours, plain in zip(texts[name], texts[PLAIN], strict=True)
        )
        found.append(runs)
    return found, n_different
