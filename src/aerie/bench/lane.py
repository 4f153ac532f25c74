"""Several policies on one engine: a launcher each, over the same models, memory and KV."""

from __future__ import annotations

from dataclasses import replace

from aerie.assemble.rounds import LAUNCHERS, build_state
from aerie.assemble.sizes import n_nodes_of, scratch_of
from aerie.config import SpeculationConfig
from aerie.engine.buckets import Sizes
from aerie.engine.captured import Captured
from aerie.engine.engine import EngineCore
from aerie.engine.launch import Direct, Launcher
from aerie.engine.parts import Parts
from aerie.speculation.policy import Policy, TreeShape


class Lanes:
    """Makes launchers for an engine that was built with a head and the largest tree of all."""

    def __init__(self, core: EngineCore) -> None:
        assert core.parts.draft is not None, "the engine needs a draft head"
        self.core = core
        self._parts = core.parts
        self._sizes = sizes_of(core)

    def make(self, policy: Policy, speculation: SpeculationConfig) -> Launcher:
        """A launcher with buffers of its own; plain decoding has no head and pays for none."""
        own, draft = self._parts, self._parts.draft
        config = replace(self.core.config, speculation=speculation)
        if draft is not None:
            weighs = config.engine == "graphs" and policy.learns
            draft = replace(draft, shape=policy.shape, weighs=weighs)
        if speculation.method == "none":
            draft = None
        memory, limits = self.core.memory, self.core.limits
        state = build_state(config, own.target, draft, memory, policy, limits)
        sizes = replace(
            self._sizes,
            shape=policy.shape,
            scratch=scratch_of(config),
            n_nodes=n_nodes_of(speculation),
        )
        parts = replace(own, state=state, policy=policy, draft=draft)
        return LAUNCHERS[config.engine](parts, sizes, memory)

    def take(self, launcher: Launcher) -> None:
        """Run by this one from here on; what the other one has under way is waited for."""
        assert self.core.is_idle, "policies change between runs"
        self.core.launcher.reset()
        self.core.launcher = launcher


def shape_config(shape: TreeShape) -> SpeculationConfig:
    """The configuration whose trees have at most this shape."""
    return SpeculationConfig(
        policy="fixed", top_k=shape.top_k, depth=shape.depth, nodes=shape.verify
    )


def sizes_of(core: EngineCore) -> Sizes:
    """What the buckets of an engine follow from."""
    launcher = core.launcher
    assert isinstance(launcher, Direct | Captured), "a launcher of the engine's own"
    return launcher.sizes


def relaunch(core: EngineCore, parts: Parts) -> None:
    """Run on other parts from here on; to be called before the first round."""
    core.launcher = LAUNCHERS[core.config.engine](parts, sizes_of(core), core.memory)


def captured(core: EngineCore) -> Captured:
    """The launcher of an engine whose rounds are graphs."""
    launcher = core.launcher
    assert isinstance(launcher, Captured), "captured rounds are measured"
    return launcher
