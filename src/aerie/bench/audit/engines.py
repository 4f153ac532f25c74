"""The engines of an audit: one pair of models, loaded once, and a core for each kind of cell."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aerie.assemble import build_core, load_draft, load_target, with_numerics
from aerie.assemble_memory import give_back
from aerie.assemble_sizes import scratch_of
from aerie.bench.audit.cells import OFF, Cell
from aerie.bench.audit.scenes import KNOWING, SCENES, SHORT
from aerie.bench.provenance import provenance
from aerie.bench.round.setup import SPARE_PAGES, RoundSetup
from aerie.config import (
    CacheConfig,
    EngineConfig,
    PartialConfig,
    SchedulerConfig,
    SpeculationConfig,
    require,
)
from aerie.engine.engine import EngineCore, Limits
from aerie.models.decoder import Decoder
from aerie.models.eagle3_head import Eagle3Head
from aerie.models.hub import find_pair
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from aerie.tune.grid import Progress, silent


@dataclass(frozen=True)
class Models:
    """What is audited, in memory, and the hashes of the files it comes from."""

    target: Decoder
    head: Eagle3Head | None
    tokenizer: Tokenizer
    sha256: Mapping[str, str]
    geometry: str | None = None  # that the built-in pair was inflated to


def with_own_numerics(config: EngineConfig) -> EngineConfig:
    """A settled configuration with its numerics chosen too, as `Engine.load` chooses them."""
    target_dir = find_pair(config.model.model, config.model.draft)[0]
    return replace(config, model=with_numerics(config.model, target_dir))


def load_models(
    config: EngineConfig, geometry: str | None = None, progress: Progress = silent
) -> Models:
    """The pair of a settled configuration; with a geometry, the built-in one inflated to it."""
    target_dir, draft_dir = find_pair(config.model.model, config.model.draft)
    tokenizer, sha256 = load_tokenizer(target_dir), {"target": weights_sha256(target_dir)}
    if draft_dir is not None:
        sha256["draft"] = weights_sha256(draft_dir)
    own = config.model
    if geometry is not None:
        require(own.model is None, "--geometry inflates the built-in pair: leave --model out")
        pair = RoundSetup(own.device, own.dtype, geometry, numerics=own.numerics).load()
        return Models(pair.target, pair.head, tokenizer, sha256, Path(geometry).name)
    page = config.cache.page_size
    target = load_target(target_dir, own, page, progress)
    head = None if draft_dir is None else load_draft(draft_dir, target, own, page)
    return Models(target, head, tokenizer, sha256)


def weights_sha256(directory: Path) -> str:
    """Of the weights and the configuration in a directory: names and contents, sorted."""
    whole = hashlib.sha256()
    for path in sorted([*directory.glob("*.safetensors"), directory / "config.json"]):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name} {digest}\n".encode())
    return whole.hexdigest()


@dataclass(eq=False)
class Engines:
    """Builds the core of a cell; cells that follow each other share it where they can."""

    config: EngineConfig  # settled: numerics, dtype, device, backend, costs
    models: Models
    policies: Mapping[str, SpeculationConfig]
    most_together: int
    _key: Any = None
    _made: list[EngineCore] = field(default_factory=list)

    def core(self, cell: Cell) -> EngineCore:
        """An idle engine for a cell's conditions."""
        memory = SCENES[cell.scene].memory
        key = (cell.policy, memory, cell.chunk, cell.context, cell.new_tokens)
        if key != self._key:
            # The one before must be gone before the next one takes its memory.
            self._made.clear()
            give_back(self.config.model.device)
            self._made, self._key = [self.build(cell, memory)], key
        return self._made[0]

    def build(self, cell: Cell, memory: int) -> EngineCore:
        """As `Engine.load` builds it, but for memory that fits the cell."""
        context, geometry = cell.context + cell.new_tokens, self.models.target.geometry
        require(
            context <= geometry.max_positions,
            f"{cell.context} + {cell.new_tokens} tokens are beyond the {geometry.max_positions}"
            " positions of the model: lower --context",
        )
        config = replace(
            self.config,
            speculation=self.policies[cell.policy],
            # Plain decoding has no drafts that a part of the KV could judge.
            partial=PartialConfig() if cell.policy == OFF else self.config.partial,
            scheduler=SchedulerConfig(self.most_together, prefill_chunk=cell.chunk),
        )
        config = replace(config, cache=self._pages(config, cell, memory))
        head = None if cell.policy == OFF else self.models.head
        limits = Limits(context, geometry.vocab_size, ())
        return build_core(config, self.models.target, head, limits)

    def _pages(self, config: EngineConfig, cell: Cell, memory: int) -> CacheConfig:
        page, scratch = config.cache.page_size, scratch_of(config)
        begun = -(-(cell.context + scratch + 1) // page)
        done = -(-(cell.context + cell.new_tokens + scratch + 1) // page)
        n_pages = self.most_together * done + SPARE_PAGES
        if memory == SHORT:
            # Two are let in and both grow: there is room for a part of that, and no third request.
            n_pages = 1 + max(2 * begun + (done - begun) // 2, done)
        return CacheConfig(n_pages, page, prefix_reuse=memory == KNOWING)

    def terms(self) -> dict[str, Any]:
        """All that rows of one certificate have in common."""
        own, made = self.config.model, provenance(self.config.model.device)
        facts = ("aerie", "commit", "source_sha256", "torch", "cuda", "device", "threads")
        name = "built-in pair" if own.model is None else Path(own.model).name
        return {
            "model": name,
            "draft": None if own.draft is None else Path(own.draft).name,
            "geometry": self.models.geometry,
            "weights_sha256": dict(self.models.sha256),
            "numerics": own.numerics,
            "dtype": own.dtype,
            "engine": self.config.engine,
            "backend": self.config.backend,
            **{fact: made[fact] for fact in facts if fact in made},
        }
