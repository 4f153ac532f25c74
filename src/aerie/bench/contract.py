"""The benchmark contract: one TOML file that says everything a replay needs, read strictly."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from aerie.config import GraphConfig, SpeculationConfig, read_slice, require
from aerie.errors import UnknownNameError, UsageError

PLAIN, PLANNER, CAST = "plain", "planner", "cast"
METHODS = (PLAIN, "fixed", PLANNER, CAST)  # the last is a rival that decides on the host
BUILT_IN = "built-in"
# What the evidence page asks of every figure; a contract may ask more, never less.
COV_LIMIT, LEAST_SHARE = 0.05, 0.70


@dataclass(frozen=True)
class ModelTerms:
    """What runs, and on what. Geometry "none" is the pair as it ships."""

    pair: str
    geometry: str
    dtype: str
    device: str
    backend: str
    engine: str = "graphs"
    perf_mode: bool = False
    numerics: str = "fast"

    def __post_init__(self) -> None:
        require(self.pair == BUILT_IN, f"pair is {self.pair!r}; contracts run {BUILT_IN!r}")


@dataclass(frozen=True)
class DecodeTerms:
    """How tokens are chosen."""

    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = True


@dataclass(frozen=True)
class MemoryTerms:
    """KV positions of the one engine all policies share, and how prompts are cut."""

    kv_tokens: int
    max_batch: int = 32
    prefill_chunk: int = 2048
    longest: int = 40_960  # positions of one request
    slots: tuple[int, ...] = GraphConfig().slots  # batch sizes that captured rounds are cut to


@dataclass(frozen=True)
class MeasureTerms:
    """When a figure counts."""

    turns: int = 9  # interleaved runs of every policy
    cov_limit: float = COV_LIMIT  # of tokens/s; above it a point is marked unstable
    least_share: float = LEAST_SHARE  # of its ceiling that plain decoding must reach
    checked: tuple[str, ...] = ("spec-3",)  # policies of the checks beside the matrix
    acceptance_prompts: int = 128

    def __post_init__(self) -> None:
        require(self.turns >= 1, f"turns is {self.turns}, at least 1")
        is_strict = self.cov_limit <= COV_LIMIT and self.least_share >= LEAST_SHARE
        require(is_strict, f"a contract may not ask less than {COV_LIMIT} and {LEAST_SHARE}")


@dataclass(frozen=True)
class PolicyTerms:
    """One policy; a fixed one has the three numbers of a tree, the planner a table of costs."""

    method: str  # one of METHODS
    node_top_k: int | None = None
    tree_depth: int | None = None
    verify_num: int | None = None
    costs: str | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownNameError("method", self.method, METHODS)

    def speculation(self) -> SpeculationConfig:
        """The slice of the configuration."""
        if self.method == "plain":
            return SpeculationConfig(method="none", policy="fixed")
        return SpeculationConfig(
            policy=self.method, top_k=self.node_top_k, depth=self.tree_depth, nodes=self.verify_num
        )


@dataclass(frozen=True)
class Scenario:
    """Batches times contexts, the policies that take turns there, and how much they write."""

    name: str
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    policies: tuple[str, ...]
    new_tokens: int  # of every request, on average, in one run
    plain_tokens: int | None = None  # the same for plain decoding, where fewer tell its speed
    turns: int | None = None  # None: the contract's own
    groups: int = 1  # of prompts that take turns: more than one gives figures over many texts
    most_tokens: int = 524_288  # batch times context beyond this is no point of the matrix

    def __post_init__(self) -> None:
        require(self.policies[:1] == (PLAIN,), f"{self.name}: policies begin with {PLAIN!r}")

    def tokens_of(self, policy: str) -> int:
        """New tokens of a request in one run of a policy."""
        own = self.plain_tokens if policy == PLAIN else None
        return self.new_tokens if own is None else own


@dataclass(frozen=True)
class Place:
    """One point: a scenario at a batch size and a context."""

    scenario: Scenario
    batch: int
    context: int

    @property
    def key(self) -> tuple[str, int, int]:
        """What raw rows name it by."""
        return self.scenario.name, self.batch, self.context

    def __str__(self) -> str:
        return f"{self.scenario.name} {self.batch}x{self.context}"


@dataclass(frozen=True)
class Contract:
    """Everything needed to run a benchmark again."""

    name: str
    model: ModelTerms
    decode: DecodeTerms
    memory: MemoryTerms
    measure: MeasureTerms
    policies: Mapping[str, PolicyTerms]
    scenarios: tuple[Scenario, ...]

    @property
    def digest(self) -> str:
        """A name for exactly this contract, whatever its file's comments and spaces."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def turns(self, scenario: Scenario) -> int:
        """Interleaved runs of every policy in a scenario."""
        return self.measure.turns if scenario.turns is None else scenario.turns

    def places(self, wanted: Sequence[str] = ()) -> list[Place]:
        """Points of the named scenarios (or `4x16384`, or both as `batch:4x16384`); none: all."""
        every = [
            Place(scenario, batch, context)
            for scenario in self.scenarios
            for context in scenario.contexts
            for batch in scenario.batches
            if batch * context <= scenario.most_tokens
        ]
        if not wanted:
            return every
        names = {name: place for place in every for name in _names(place)}
        for name in wanted:
            if name not in names:
                raise UnknownNameError("point", name, names)
        return [place for place in every if any(name in wanted for name in _names(place))]


def _names(place: Place) -> tuple[str, str, str]:
    size = f"{place.batch}x{place.context}"
    return place.scenario.name, size, f"{place.scenario.name}:{size}"


SLICES: dict[str, type[Any]] = {
    "model": ModelTerms,
    "decode": DecodeTerms,
    "memory": MemoryTerms,
    "measure": MeasureTerms,
}


def read_contract(path: Path) -> Contract:
    """A contract from its file; an unknown or missing key is an error that names it."""
    return parse_contract(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """What a contract's file says."""
    if not path.is_file():
        raise UsageError(f"no contract at {path}; see evidence/contracts/")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def parse_contract(values: Mapping[str, Any]) -> Contract:
    """A contract from parsed TOML."""
    own = {name: strict(kind, _tuples(values.get(name, {}))) for name, kind in SLICES.items()}
    policies, scenarios = values.get("policies", {}), values.get("scenarios", ())
    own["policies"] = {name: strict(PolicyTerms, terms) for name, terms in policies.items()}
    own["scenarios"] = tuple(strict(Scenario, _tuples(terms)) for terms in scenarios)
    found: Contract = strict(Contract, {**values, **own})
    for scenario in found.scenarios:
        for policy in scenario.policies:
            if policy not in policies:
                raise UnknownNameError(f"policy of scenario {scenario.name}", policy, policies)
    return found


def strict(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """One table as its dataclass; unknown and missing keys are errors."""
    for entry in fields(kind):
        is_needed = entry.default is MISSING and entry.default_factory is MISSING
        missing = is_needed and entry.name not in values
        require(not missing, f"{kind.__name__} needs the key {entry.name!r}")
    return read_slice(kind, values)


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
