"""Configuration in frozen slices: each part sees its own, and unknown keys are errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from aerie.errors import UnknownNameError, UsageError

Slice = TypeVar("Slice")

MAX_VERIFY = 128
MAX_CANDIDATES = 100


def require(condition: bool, message: str) -> None:
    """Raise UsageError unless a configured value is possible."""
    if not condition:
        raise UsageError(message)


@dataclass(frozen=True)
class ModelConfig:
    """What is loaded, and how it computes."""

    model: str | None = None  # directory or hub id; None: the built-in pair
    draft: str | None = None  # EAGLE-3 head; None with the built-in model: its own head
    device: str = "cpu"
    dtype: str = "float32"
    numerics: str = "fast"  # "exact": bitwise equal whatever shares the batch
    # What fast numerics are made of; auto: Triton on a GPU, tuned products where there is a table.
    attention: str = "auto"  # "pytorch", "triton"
    layer_ops: str = "auto"  # "pytorch", "triton"
    linear: str = "auto"  # "library", "tuned"
    probe: str = "warn"  # what to do when the head looks misread: refuse, warn or off
    # Abort where a fast path is missing (kernels, tuned shapes, captured rounds) or a round fails.
    perf_mode: bool = False

    def __post_init__(self) -> None:
        _choice("numerics", self.numerics, ("fast", "exact"))
        _choice("dtype", self.dtype, ("float32", "bfloat16", "float16"))
        _choice("attention", self.attention, ("auto", "pytorch", "triton"))
        _choice("layer_ops", self.layer_ops, ("auto", "pytorch", "triton"))
        _choice("linear", self.linear, ("auto", "library", "tuned"))
        _choice("probe", self.probe, ("refuse", "warn", "off"))


@dataclass(frozen=True)
class CacheConfig:
    """KV memory: pages of slots shared by target and draft."""

    n_pages: int = 2560
    page_size: int = 16
    prefix_reuse: bool = True  # keep finished texts' pages until the memory is needed

    def __post_init__(self) -> None:
        require(self.page_size >= 1, f"page_size is {self.page_size}, must be at least 1")
        require(self.n_pages >= 2, f"n_pages is {self.n_pages}, must be at least 2: one is inert")


@dataclass(frozen=True)
class SchedulerConfig:
    """Who runs together."""

    max_batch: int = 32
    prefill_chunk: int = 512  # prompt tokens a step, all requests together
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        require(1 <= self.max_batch <= 128, f"max_batch is {self.max_batch}, limit 1..128")
        require(self.prefill_chunk >= 1, f"prefill_chunk is {self.prefill_chunk}, at least 1")


@dataclass(frozen=True)
class TreeLimits:
    """A tree in three numbers: fixed trees have them, planned trees stay within them."""

    top_k: int  # children per frontier node; 1 is a chain
    depth: int  # draft levels
    nodes: int  # rows verified per request, the root included


# What each policy uses where nothing is given.
LIMITS = {
    "fixed": TreeLimits(1, 5, 6),
    "planner": TreeLimits(8, 12, 64),
    "cast": TreeLimits(8, 8, 64),
}


@dataclass(frozen=True)
class SpeculationConfig:
    """How drafts are made and judged; `method` none is plain decoding."""

    method: str = "eagle3"  # "eagle3", "ngram", "eagle3+ngram" or "none"
    # "planner" (trees from measured costs), "fixed", "cast"; auto: the planner, unless a shape
    # is given or there is no draft head whose cost could be planned.
    policy: str = "auto"
    top_k: int | None = None
    depth: int | None = None
    nodes: int | None = None
    ngram: int = 3  # longest suffix looked up in the request's own text
    rule: str = "match"  # "match" (same seed, same tokens) or "coins" (same distribution)

    def __post_init__(self) -> None:
        _choice("method", self.method, ("eagle3", "ngram", "eagle3+ngram", "none"))
        _choice("policy", self.policy, ("auto", *LIMITS))
        _choice("rule", self.rule, ("match", "coins"))
        limits = self.limits
        require(1 <= limits.top_k <= 10, f"top_k is {limits.top_k}, limit 1..10")
        most = MAX_VERIFY // limits.top_k
        require(
            1 <= limits.depth <= most, f"depth is {limits.depth}, limit 1..{most} at this top_k"
        )
        require(1 <= limits.nodes <= MAX_VERIFY, f"nodes is {limits.nodes}, limit 1..{MAX_VERIFY}")

    @property
    def chosen_policy(self) -> str:
        """The policy, with auto resolved."""
        if self.policy != "auto":
            return self.policy
        is_shaped = any(number is not None for number in (self.top_k, self.depth, self.nodes))
        return "fixed" if is_shaped or "eagle3" not in self.method else "planner"

    @property
    def limits(self) -> TreeLimits:
        """The three numbers, given or the policy's own."""
        given = {"top_k": self.top_k, "depth": self.depth, "nodes": self.nodes}
        known = {name: number for name, number in given.items() if number is not None}
        return replace(LIMITS[self.chosen_policy], **known)

    @classmethod
    def from_sglang(cls, num_steps: int, topk: int, num_draft_tokens: int) -> SpeculationConfig:
        """SGLang's three numbers: --speculative-num-steps, -eagle-topk, -num-draft-tokens."""
        return cls(method="eagle3", top_k=topk, depth=num_steps, nodes=num_draft_tokens)

    @classmethod
    def from_vllm(cls, text: str) -> tuple[SpeculationConfig, str | None]:
        """vLLM's --speculative-config JSON; returns the draft model beside the configuration."""
        values = json.loads(text)
        known = {"method", "model", "num_speculative_tokens"}
        for name in values:
            if name not in known:
                raise UnknownNameError("key of the speculative config", name, known)
        method = {"eagle3": "eagle3", "ngram": "ngram"}.get(values.get("method", "eagle3"))
        require(method is not None, f"method {values.get('method')!r} is not eagle3 or ngram")
        depth = int(values.get("num_speculative_tokens", 5))
        made = cls(method=str(method), top_k=1, depth=depth, nodes=depth + 1)
        return made, values.get("model")


@dataclass(frozen=True)
class PlannerConfig:
    """Where the planner's costs come from, and how often it looks further than it would."""

    costs: str | None = None  # a file of `aerie tune costs`; None: measured when loading
    explore_every: int = 24  # drafting rounds; 0 never

    def __post_init__(self) -> None:
        require(self.explore_every >= 0, f"explore_every is {self.explore_every}, at least 0")


@dataclass(frozen=True)
class GraphConfig:
    """Sizes that captured rounds are cut to; a batch runs in the smallest that holds it."""

    slots: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)  # requests
    # Verified, in all. Products of 24 and 48 rows take as long as those of 32 and 64 (H200).
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
    tiles: tuple[int, ...] = (4, 16, 64)  # rows of one request that attention's tiles are made for
    columns: tuple[int, ...] = tuple(512 << power for power in range(9))  # positions of a request
    record_every: int = 16  # rounds between two recordings, where another graph does; 0: at once

    def __post_init__(self) -> None:
        for name in ("slots", "rows", "tiles", "columns"):
            sizes = getattr(self, name)
            rises = list(sizes) == sorted(set(sizes))
            require(bool(sizes) and sizes[0] > 0 and rises, f"graphs.{name} must rise from 1 on")


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is built from."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    graphs: GraphConfig = field(default_factory=GraphConfig)
    backend: str = "auto"  # kernel backend; auto: triton on a GPU, numpy on a CPU
    # "graphs" (rounds captured on a GPU), "eager"; auto: graphs on a GPU where rounds can be.
    engine: str = "auto"
    audit: bool = False  # check every invariant after every step: slow, for tests

    def __post_init__(self) -> None:
        _choice("engine", self.engine, ("auto", "eager", "graphs"))
        is_slow = self.model.perf_mode and self.engine == "eager"
        require(not is_slow, "perf_mode measures captured rounds: engine eager has none")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build from nested mappings; an unknown key at any level is an error."""
        slices = {
            "model": ModelConfig,
            "cache": CacheConfig,
            "scheduler": SchedulerConfig,
            "speculation": SpeculationConfig,
            "planner": PlannerConfig,
            "graphs": GraphConfig,
        }
        known = {entry.name for entry in fields(cls)}
        made: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise UnknownNameError("configuration key", name, known)
            made[name] = read_slice(slices[name], value) if name in slices else value
        return cls(**made)


def read_slice(kind: type[Slice], values: Mapping[str, Any]) -> Slice:
    """One slice from a mapping; an unknown key is an error with the nearest known ones."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise UnknownNameError(f"key of {kind.__name__}", name, known)
    return kind(**values)


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownNameError(name, value, known)
