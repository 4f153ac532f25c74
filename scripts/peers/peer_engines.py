"""vLLM and aerie in process, as one thing that completes prompts and says how drafts went."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

MOST_REQUESTS = 64
COUNTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


@dataclass(frozen=True)
class Answer:
    """What one call gave."""

    seconds: float
    ids: list[list[int]]  # by request
    accepted: dict[str, int] = field(default_factory=dict)  # COUNTS and depth1, depth2, ...

    @property
    def acceptance_length(self) -> float:
        """1 + accepted / drafts, the bonus token included."""
        drafts = self.accepted.get("num_drafts", 0)
        return 1.0 + self.accepted["num_accepted_tokens"] / drafts if drafts else 1.0


class PeerEngine(Protocol):
    """An engine that is ready."""

    phases: dict[str, float]  # seconds of loading, where the engine tells

    def generate(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> Answer:
        """Complete prompts together, each by exactly so many tokens."""
        ...


class Vllm:
    """vLLM: `plain`, or `chainK` for K drafted tokens."""

    def __init__(self, policy: str, asked: Namespace) -> None:
        from vllm import LLM

        drafted = chain_depth(policy)
        method = {"method": "eagle3", "model": asked.draft, "num_speculative_tokens": drafted}
        self.phases: dict[str, float] = {}
        self._sampling = asked.sampling
        self._llm = LLM(
            model=asked.target,
            dtype=asked.dtype,
            max_model_len=asked.longest,
            max_num_seqs=MOST_REQUESTS,
            gpu_memory_utilization=asked.share,
            speculative_config=method if drafted else None,
            disable_log_stats=False,  # else there are no counters
            seed=0,
        )

    def generate(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> Answer:
        """It is spared turning tokens into text; counters are read outside the clock."""
        from vllm import SamplingParams

        own = {"max_tokens": n_tokens, "ignore_eos": True, "detokenize": False}
        params = SamplingParams(**own, **self._sampling)
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        before = self._counters()
        begin = time.perf_counter()
        results = self._llm.generate(given, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        gained = self._counters() - before
        return Answer(seconds, [list(result.outputs[0].token_ids) for result in results], gained)

    def _counters(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for metric in self._llm.get_metrics():
            name = metric.name.removeprefix("vllm:spec_decode_")
            if name in COUNTS:
                found[name] += int(metric.value)
            elif name == "num_accepted_tokens_per_pos":
                found.update({f"depth{i}": int(n) for i, n in enumerate(metric.values, 1)})
        return found


class Aerie:
    """aerie: `planner` is its default; `plain`, and `chainK` as above."""

    def __init__(self, policy: str, asked: Namespace) -> None:
        from aerie import Engine

        drafted = chain_depth(policy)
        speculation: dict[str, Any] = {}
        if policy == "plain":
            speculation = {"method": "none"}
        elif policy != "planner":
            chain = {"top_k": 1, "depth": drafted, "nodes": drafted + 1}
            speculation = {"policy": "fixed", **chain}
        self._sampling = asked.sampling
        self._engine = Engine.load(
            asked.target,
            None if policy == "plain" else asked.draft,
            device=asked.device,
            dtype=asked.dtype,
            max_model_len=asked.longest,
            speculation=speculation,
            cache={"n_pages": asked.pages},
            scheduler={"max_batch": MOST_REQUESTS},
        )
        self.phases = self._engine.load_seconds

    def generate(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> Answer:
        """Text is made of the tokens, too: there is no switch for that."""
        from aerie import SamplingParams

        params = SamplingParams(max_tokens=n_tokens, ignore_eos=True, **self._sampling)
        begin = time.perf_counter()
        results = self._engine.generate([list(prompt) for prompt in prompts], params)
        seconds = time.perf_counter() - begin
        gained: Counter[str] = Counter()
        for result in results:
            gained.update({name: getattr(result.statistics, name) for name in COUNTS})
            by_depth = result.statistics.accepted_by_depth
            gained.update({f"depth{depth}": n for depth, n in by_depth.items()})
        return Answer(seconds, [list(result.token_ids) for result in results], gained)


ENGINES: dict[str, type[Vllm] | type[Aerie]] = {"vllm": Vllm, "aerie": Aerie}
UNDRAFTED = {"vllm": ("plain",), "aerie": ("plain", "planner")}


def chain_depth(policy: str) -> int:
    """7 of chain7; 0 of a policy that is no chain."""
    depth = policy.removeprefix("chain")
    return int(depth) if policy.startswith("chain") and depth.isdigit() else 0


def check_lane(engine: str, policy: str) -> None:
    """Say what is wrong with a name before anything is loaded."""
    if engine not in ENGINES:
        raise SystemExit(f"engine {engine!r}: {' or '.join(ENGINES)}")
    if policy not in UNDRAFTED[engine] and chain_depth(policy) < 1:
        known = ", ".join(UNDRAFTED[engine])
        raise SystemExit(f"policy {policy!r}: {engine} has {known}, chain1, chain2, ...")
