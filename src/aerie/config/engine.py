"""Everything an engine is built from, one slice for each part; unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from aerie.config.graphs import GraphConfig
from aerie.config.memory import CacheConfig, SchedulerConfig
from aerie.config.model import ModelConfig
from aerie.config.partial import PartialConfig
from aerie.config.speculation import PlannerConfig, SpeculationConfig
from aerie.config.values import choice, read_fields, require
from aerie.errors import UnknownNameError, UsageError

Slice = TypeVar("Slice")


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is built from."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    partial: PartialConfig = field(default_factory=PartialConfig)
    graphs: GraphConfig = field(default_factory=GraphConfig)
    backend: str = "auto"  # kernel backend; auto: triton on a GPU, numpy on a CPU
    # "graphs" (rounds captured on a GPU), "direct"; auto: graphs on a GPU where rounds can be.
    engine: str = "auto"
    audit: bool = False  # check every invariant after every step: slow, for tests

    def __post_init__(self) -> None:
        read_fields(self)
        choice("engine", self.engine, ("auto", "direct", "graphs"))
        is_slow = self.model.perf_mode and self.engine == "direct"
        require(
            not is_slow, "perf_mode needs captured rounds, and so a GPU: engine direct has none"
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build from nested mappings; an unknown key at any level is an error."""
        slices = {
            "model": ModelConfig,
            "cache": CacheConfig,
            "scheduler": SchedulerConfig,
            "speculation": SpeculationConfig,
            "planner": PlannerConfig,
            "partial": PartialConfig,
            "graphs": GraphConfig,
        }
        known = {entry.name for entry in fields(cls)}
        made: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise UnknownNameError("configuration key", name, known)
            made[name] = read_slice(slices[name], value) if name in slices else value
        return cls(**made)

    @classmethod
    def from_settings(
        cls, model: str | None, draft: str | None, settings: Mapping[str, Any]
    ) -> EngineConfig:
        """Build from `Engine.load`'s arguments: fields of the model's slice, and other slices."""
        own, slices = ({entry.name for entry in fields(kind)} for kind in (ModelConfig, cls))
        for name in settings:
            if name not in own | slices:
                raise UnknownNameError("setting", name, own | slices)
        of_model = {name: value for name, value in settings.items() if name in own}
        others = {name: value for name, value in settings.items() if name not in own}
        return cls.from_mapping({**others, "model": {**of_model, "model": model, "draft": draft}})


def read_slice(kind: type[Slice], values: Mapping[str, Any] | Slice) -> Slice:
    """One slice from a mapping, or as it is; an unknown key is an error with the nearest ones."""
    if isinstance(values, kind):
        return values
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise UsageError(f"{kind.__name__} is {values!r:.60}, must be a mapping of {sorted(known)}")
    for name in values:
        if name not in known:
            raise UnknownNameError(f"key of {kind.__name__}", name, known)
    return kind(**values)
