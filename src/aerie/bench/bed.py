"""One engine on which every policy of a contract runs: same models, same KV, prompts read once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from aerie.assemble.core import build_policy
from aerie.bench.contract import Contract, PolicyTerms
from aerie.bench.lane import Lanes, shape_config
from aerie.bench.round.setup import Room, RoundSetup, abandon, tokenizer_of_pair
from aerie.bench.round.speed import run_without_waiting
from aerie.config import LIMITS, MAX_VERIFY, GraphConfig, PlannerConfig, SpeculationConfig, require
from aerie.engine.captured import Captured
from aerie.engine.launch import Launcher
from aerie.engine.sampler import EVERYTHING, GREEDY
from aerie.models.inflate.embed import LargePair
from aerie.requests.events import TokenEvent
from aerie.requests.params import SamplingParams
from aerie.requests.request import State, Statistics
from aerie.speculation.policy import Policy, TreeShape
from aerie.text.heldout import Piece, read_documents, steady_first

RULE = (
    "pieces of held-out documents of code, none overlapping: those after which the pair is known "
    "not to loop come first, then the others, the first piece of every document before second ones"
)
LEAD_IN = 3  # rounds that seat the batch and fill the pipeline; not timed
WATCHED = 4  # rounds in which any wait beside the read is an error
SPARE = 256  # tokens a request may run ahead of its batch
NEVER = 1 << 30  # pages of a request that count as found before: what a run writes is not kept


class PromptBook:
    """The held-out documents, each encoded once."""

    def __init__(self) -> None:
        tokenizer = tokenizer_of_pair()
        self.encode = cache(tokenizer.encode)  # every context cuts the same documents
        self.end_ids = tokenizer.eos_ids  # each of them ends a text
        self._pieces: dict[int, list[Piece]] = {}

    def pieces(self, context: int) -> list[Piece]:
        """All prompts that there are of a context, by `RULE`."""
        if context not in self._pieces:
            self._pieces[context] = list(steady_first(self.encode, context))
        return self._pieces[context]

    def choose(self, context: int, n_prompts: int) -> list[Piece]:
        """The beginnings of so many documents, no two of one, the shortest ones first."""
        return [
            Piece(document.name, tuple(self.encode(document.text)[:context]))
            for document in read_documents(context, n_prompts)
        ]


@dataclass
class Run:
    """What one run of one policy took and wrote."""

    seconds: float = 0.0
    rounds: int = 0
    tokens: int = 0
    itl: list[float] = field(default_factory=list)  # gap over tokens of the later emission
    gaps: list[float] = field(default_factory=list)  # the gaps themselves, seconds
    lengths: list[int] = field(default_factory=list)  # tokens of every emission
    active: list[int] = field(default_factory=list)  # requests of every round
    statistics: list[Statistics] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    waits: str | None = None  # a wait beside the read, where rounds were watched
    modelled_seconds: float = 0.0  # what the cost table says the rounds cost, where a bed asks it


class Bed:
    """Holds the engine; prompts read once stay in its prefix cache."""

    def __init__(self, contract: Contract, setup: RoundSetup, pair: LargePair) -> None:
        memory, limits = contract.memory, LIMITS["planner"]
        deepest = MAX_VERIFY // limits.top_k  # rivals may be deeper than the planner
        largest = shape_config(TreeShape(limits.top_k, deepest, limits.nodes))
        self.contract = contract
        self.pair = pair
        graphs = GraphConfig(slots=memory.slots, record_every=0)
        sizes = (memory.max_batch, memory.longest, memory.prefill_chunk)
        kv_tokens = memory.kv_tokens
        room = Room(*sizes, margin=0, graphs=graphs, prefix_reuse=True, kv_tokens=kv_tokens)
        self.core = setup.core(pair, largest, room)
        self.config, self.limits = self.core.config, self.core.limits
        self._lanes = Lanes(self.core)
        self._made: dict[str, Launcher] = {}

    def take(self, name: str) -> Launcher:
        """Switch the idle engine to a policy."""
        if name not in self._made:
            terms = self.contract.policies[name]
            speculation = terms.speculation()
            self._made[name] = self._lanes.make(self.policy(terms, speculation), speculation)
        self._lanes.take(self._made[name])
        return self._made[name]

    def use(self, policy: Policy) -> None:
        """Switch the idle engine to a policy that is in no contract."""
        self._lanes.take(self._lanes.make(policy, shape_config(policy.shape)))

    def forget(self) -> None:
        """Make every policy anew: what it has learnt is gone."""
        self._made.clear()

    def adopt(self, contract: Contract) -> None:
        """Go on with another contract's policies on the same models and memory."""
        same = (contract.model, contract.memory) == (self.contract.model, self.contract.memory)
        require(same, f"contract {contract.name} needs another engine: run it by itself")
        self._made.clear()
        self.contract = contract

    def policy(self, terms: PolicyTerms, speculation: SpeculationConfig) -> Policy:
        """What decides on the trees of a lane."""
        # A rehearsal on a CPU plans from the table of the GPU it is for.
        is_rehearsal = not self.config.model.device.startswith("cuda")
        planner = PlannerConfig(terms.costs, foreign_costs=is_rehearsal)
        config = replace(self.config, speculation=speculation, planner=planner)
        return build_policy(config, self.pair.target, self.pair.head, self.limits)

    def read(self, prompts: Sequence[Sequence[int]], policy: str) -> list[float | None]:
        """Read prompts into the prefix cache with a speculating policy's head.

        Seconds to the first token of each, None where its text was there already.
        """
        self.take(policy)
        found: list[float | None] = []
        for prompt in prompts:
            begin = time.perf_counter()
            request_id = self.core.submit(prompt, self._params(1))
            while not self.core.is_idle:
                self.core.step()
            seconds = time.perf_counter() - begin
            reused = self.core.forget(request_id).statistics.reused_tokens
            found.append(None if reused else seconds)
        return found

    def run(
        self, name: str, prompts: Sequence[Sequence[int]], new_tokens: int, is_watched: bool = False
    ) -> Run:
        """Decode prompts together until they have written so much on average.

        None ends before: the batch is whole in every round that counts. The clock runs from one
        report of the device to another, with the pipeline full at both.
        """
        launcher = self.take(name)
        if isinstance(launcher, Captured) and len(launcher.parts.policy.shapes) > 1:
            # A planner may ask for any of its shapes: none is to be recorded in a timed round.
            longest = max(len(prompt) for prompt in prompts)
            options = EVERYTHING if self.contract.decode.temperature else GREEDY
            for n_positions in (longest, longest + 2 * new_tokens + SPARE):
                launcher.record(len(prompts), n_positions, options)
        core, run = self.core, Run()
        ids = [core.submit(prompt, self._params(2 * new_tokens + SPARE)) for prompt in prompts]
        while any(core.request(i).state in (State.WAITING, State.READING) for i in ids):
            core.step()
        for request_id in ids:
            core.request(request_id).held.n_indexed = NEVER
        for _ in range(LEAD_IN):
            core.step()
        if is_watched and isinstance(launcher, Captured):
            # Pages were just taken far ahead: no table is written in so few rounds.
            run.waits = run_without_waiting(core, WATCHED)
        begin = time.perf_counter()
        last = dict.fromkeys(ids, begin)
        wanted = new_tokens * len(ids)
        while run.tokens < wanted and all(core.request(i).ended is None for i in ids):
            events = [event for event in core.step() if isinstance(event, TokenEvent)]
            self._count(run, events, last)
        run.seconds = time.perf_counter() - begin
        left = abandon(core, ids)  # back to the prompts
        run.statistics = [request.statistics for request in left]
        run.texts = [request.output for request in left]
        return run

    def _count(self, run: Run, events: list[TokenEvent], last: dict[int, float]) -> None:
        now = time.perf_counter()
        run.rounds += 1
        run.active.append(len(events))
        for event in events:
            gap, n_tokens = now - last[event.request_id], len(event.tokens)
            last[event.request_id] = now
            run.gaps.append(gap)
            run.itl.append(gap / n_tokens)
            run.lengths.append(n_tokens)
            run.tokens += n_tokens

    def _params(self, max_tokens: int) -> SamplingParams:
        decode = self.contract.decode
        return SamplingParams(
            max_tokens, decode.temperature, seed=decode.seed, ignore_eos=decode.ignore_eos
        )

    @property
    def peak_memory(self) -> int | None:
        """Most bytes allocated on the device so far; None where it is not counted."""
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
