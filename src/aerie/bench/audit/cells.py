"""What an audit runs: cells of policy, scene, batch, chunk and sampling, in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from aerie.bench.audit.scenes import SCENES, SHORT, TOGETHER
from aerie.config import SchedulerConfig, SpeculationConfig, require
from aerie.errors import UnknownNameError

OFF, ASKED = "off", "asked"  # plain decoding; whatever the engine's options say
POLICIES: Mapping[str, SpeculationConfig] = {
    OFF: SpeculationConfig(method="none"),
    "chain": SpeculationConfig(top_k=1, depth=7, nodes=8),
    "tree": SpeculationConfig(top_k=8, depth=5, nodes=32),
    "planner": SpeculationConfig(policy="planner"),
}
MOST_AT_ONCE = 4096  # prompt tokens of a step, as on a GPU by default
SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
}


@dataclass(frozen=True)
class Cell:
    """So many texts under one set of conditions; its texts are those of prompts 0 to n - 1."""

    policy: str
    scene: str
    batch: int
    chunk: int  # prompt tokens read in a step, at most
    sampling: str
    context: int  # tokens of a prompt
    new_tokens: int
    texts: int

    @property
    def name(self) -> str:
        """In words."""
        shape = f"batch {self.batch}, chunk {self.chunk}, {self.context} + {self.new_tokens} tokens"
        return f"{self.policy}, {self.sampling}, {self.scene}, {shape}"


class Place(NamedTuple):
    """Conditions that every policy and sampling meets."""

    scene: str
    batch: int
    chunk: int
    texts: int

    def engine(self) -> tuple[int, int]:
        """Places that can share an engine have the same."""
        return SCENES[self.scene].memory, self.chunk


@dataclass(frozen=True)
class Plan:
    """The axes. Texts of the grid are decoded together.

    Every other scene is played at one batch size, with the largest chunk.
    """

    policies: tuple[str, ...] = tuple(POLICIES)
    batches: tuple[int, ...] = (1, 4)
    texts: tuple[int, ...] = (8,)  # of a cell: one number, or one for each batch size
    chunks: tuple[int, ...] = (64, 256)
    samplings: tuple[str, ...] = tuple(SAMPLINGS)
    scenes: tuple[str, ...] = tuple(SCENES)
    scene_texts: int = 8  # of a cell of any scene but together
    context: int = 256
    new_tokens: int = 64
    seed: int = 0  # of prompt 0; each further one has the next

    def __post_init__(self) -> None:
        known = {
            "policies": (*POLICIES, ASKED),
            "samplings": tuple(SAMPLINGS),
            "scenes": tuple(SCENES),
        }
        for axis, names in known.items():
            for name in getattr(self, axis):
                if name not in names:
                    raise UnknownNameError(f"name in --{axis}", name, names)
        for axis in (*known, "batches", "chunks"):
            values = getattr(self, axis)
            require(len(set(values)) == len(values) > 0, f"--{axis} is empty or names one twice")
        SchedulerConfig(self.most_together)  # so many at a time must be possible
        n_given, n_batches = len(self.texts), len(self.batches)
        require(n_given in (1, n_batches), f"--texts has {n_given} numbers, --batches {n_batches}")

    @property
    def scene_batch(self) -> int:
        """Where scenes are played: a request alone has none to arrive, leave or make room."""
        return next((batch for batch in sorted(self.batches) if batch > 1), 2)

    @property
    def most_together(self) -> int:
        """The largest batch of all cells."""
        return max(*self.batches, self.scene_batch)

    def _chunk(self, scene: str) -> int:
        """Read at once, prompts end up short of memory before the first of them is done."""
        at_once = min(self.scene_batch * self.context, MOST_AT_ONCE)
        is_short = SCENES[scene].memory == SHORT
        return max(*self.chunks, at_once if is_short else 0)

    def cells(self) -> list[Cell]:
        """Plain decoding first, whose texts the others are held against; one engine at a time."""
        texts = self.texts * len(self.batches) if len(self.texts) == 1 else self.texts
        grid = [
            Place(TOGETHER, batch, chunk, n)
            for chunk in self.chunks
            for batch, n in zip(self.batches, texts, strict=True)
            if TOGETHER in self.scenes
        ]
        played = [
            Place(scene, self.scene_batch, self._chunk(scene), self.scene_texts)
            for scene in self.scenes
            if scene != TOGETHER
        ]
        return [
            Cell(policy, *place[:3], sampling, self.context, self.new_tokens, place.texts)
            for policy in sorted(self.policies, key=lambda name: name != OFF)
            for place in sorted((*grid, *played), key=Place.engine)
            for sampling in self.samplings
        ]


QUICK = Plan(
    batches=(1, 3),
    texts=(3,),
    chunks=(16, 48),
    scene_texts=3,
    context=48,
    new_tokens=24,
)
