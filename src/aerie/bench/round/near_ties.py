"""Near ties by context and batch: the engine's own count beside the texts that really part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerie.bench.round.lossless import write_texts
from aerie.bench.round.setup import Room, RoundSetup, read_prompts
from aerie.config import GraphConfig, SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.models.inflate import LargePair

CHAIN = SpeculationConfig(top_k=1, depth=7, nodes=8)
SPELLS = {"chain 7": True, "plain": False}


@dataclass(frozen=True)
class Grid:
    """Points that are looked at; those of more tokens than `most_tokens` are left out."""

    contexts: tuple[int, ...] = (1024, 8192, 32768)
    batches: tuple[int, ...] = (1, 8, 32)
    n_new: int = 128
    n_least: int = 2  # texts of a point, however small its batch
    most_tokens: int = 300_000  # what reading all of it takes, and memory

    def batches_at(self, context: int) -> tuple[int, ...]:
        """Those for which there is room."""
        return tuple(batch for batch in self.batches if batch * context <= self.most_tokens)

    def room(self, context: int) -> Room:
        """One engine for all batches of a context; prompts are read once and found again."""
        batches = self.batches_at(context)
        rows = tuple(sorted({n for batch in batches for n in (batch, 8 * batch)}))
        graphs = GraphConfig(slots=batches, rows=rows)
        # So that a batch of one finds room beside what is kept.
        n_kept = max(max(batches), self.n_least) + 1
        return Room(n_kept, context + self.n_new, graphs=graphs, prefix_reuse=True)


def count_by_size(setup: RoundSetup, pair: LargePair, grid: Grid) -> list[dict[str, Any]]:
    """Greedy texts with a chain and without, by point; JSON values."""
    found = []
    for context in grid.contexts:
        core = setup.core(pair, CHAIN, grid.room(context))
        for batch in grid.batches_at(context):
            found.append({"context": context, "batch": batch, **_point(core, context, batch, grid)})
    return found


def _point(core: EngineCore, context: int, batch: int, grid: Grid) -> dict[str, Any]:
    prompts = read_prompts(max(batch, grid.n_least), context, core.limits.vocabulary)
    texts: dict[str, list[list[int]]] = {name: [] for name in SPELLS}
    counted = {}
    for name, drafts in SPELLS.items():
        before = core.near_ties.n_tokens, core.near_ties.n_near
        for first in range(0, len(prompts), batch):
            wave = prompts[first : first + batch]
            texts[name] += write_texts(core, wave, grid.n_new, 0.0, speculative=drafts)
        n_tokens, n_near = core.near_ties.n_tokens - before[0], core.near_ties.n_near - before[1]
        rate = n_near / n_tokens if n_tokens else None
        counted[name] = {"tokens": n_tokens, "near_ties": n_near, "rate": rate}
    parted = sum(own != other for own, other in zip(*texts.values(), strict=True))
    return {"texts": len(prompts), "parted": parted, **counted}
