"""Configuration in frozen slices: each part sees its own, and unknown keys are errors."""

from aerie.config.engine import EngineConfig, read_slice
from aerie.config.graphs import GraphConfig
from aerie.config.memory import CacheConfig, SchedulerConfig
from aerie.config.model import ModelConfig
from aerie.config.partial import PartialConfig
from aerie.config.speculation import (
    LIMITS,
    MAX_VERIFY,
    PlannerConfig,
    SpeculationConfig,
    TreeLimits,
)
from aerie.config.values import require

__all__ = [
    "LIMITS",
    "MAX_VERIFY",
    "CacheConfig",
    "EngineConfig",
    "GraphConfig",
    "ModelConfig",
    "PartialConfig",
    "PlannerConfig",
    "SchedulerConfig",
    "SpeculationConfig",
    "TreeLimits",
    "read_slice",
    "require",
]
