"""Runs the cells of an audit: every text, whole, against the plain text of its prompt and seed."""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aerie.assemble.core import build_core, with_numerics
from aerie.assemble.memory import give_back
from aerie.assemble.sizes import scratch_of
from aerie.bench.audit.cells import KNOWING, OFF, SAMPLINGS, SCENES, SHORT, Cell, Job, Plan, Played
from aerie.bench.audit.certificate import Row, Rows, digest
from aerie.bench.comparison import policy_of, where_texts_part
from aerie.bench.provenance import provenance
from aerie.bench.round.setup import SPARE_PAGES, load_pair
from aerie.by_context import ByContext
from aerie.config import (
    CacheConfig,
    EngineConfig,
    PartialConfig,
    SchedulerConfig,
    SpeculationConfig,
    require,
)
from aerie.engine.engine import EngineCore, Limits
from aerie.errors import UsageError
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.hub import find_pair
from aerie.requests.params import SamplingParams
from aerie.text.heldout import read_documents
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from aerie.tune.grid import Progress, silent

LONGER = (1, 2, 4)  # documents are measured by the built-in pair's tokens, others may be larger


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
    target, head = load_pair(config, geometry, progress)
    name = None if geometry is None else Path(geometry).name
    return Models(target, head, tokenizer, sha256, name)


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


@dataclass(eq=False)
class Audit:
    """A plan on engines; rows tell what is done."""

    plan: Plan
    engines: Engines
    rows: Rows

    def run(self, tell: Callable[[Row], None], seconds: float = 0.0) -> None:
        """All cells that are left; none begins after so many seconds, where a limit is given."""
        begun = time.monotonic()
        for cell in self.rows.left(self.plan):
            if seconds and time.monotonic() - begun > seconds:
                return
            row = self.run_cell(cell)
            self.rows.add(row)
            tell(row)

    def run_cell(self, cell: Cell) -> dict[str, Any]:
        """One cell's row."""
        jobs = self._jobs(cell)
        self._require_plain(cell)
        core, start = self.engines.core(cell), time.perf_counter()
        played = SCENES[cell.scene].play(core, jobs, cell.batch)
        seconds = time.perf_counter() - start
        known = {n: self.rows.plain.get(cell.key(n)) for n in played.texts}
        # The first plain text of a prompt is what all others of it are held against.
        first = {n: played.texts[n] for n, tokens in known.items() if tokens is None}
        parted = [job for job in jobs if known[job.number] not in (None, played.texts[job.number])]
        drafts = sum(own.num_drafts for own in played.statistics)
        accepted = sum(own.num_accepted_tokens for own in played.statistics)
        counted, met = SCENES[cell.scene].counted, played.met()
        return {
            "cell": asdict(cell),
            "seeds": [jobs[0].params.seed, jobs[-1].params.seed],
            "policy": policy_of(self.engines.policies[cell.policy]),
            "texts": len(jobs),
            "compared": len(jobs) - len(first),
            "differing": len(parted),
            "first_difference": self._difference(parted, known, played) if parted else None,
            "texts_sha256": digest(played.texts),
            "prompts_sha256": digest({job.number: job.prompt for job in jobs}),
            "met": met,
            "is_void": counted is not None and not met[counted],
            "acceptance_length": round(1 + accepted / drafts, 4) if drafts else None,
            "acceptance_by_context": ByContext.total(
                own.by_context for own in played.statistics
            ).lengths(),
            "seconds": round(seconds, 3),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "plain": first,
        }

    def _jobs(self, cell: Cell) -> list[Job]:
        prompts, seed = self._prompts, self.plan.seed
        how = {"ignore_eos": True, **SAMPLINGS[cell.sampling]}
        return [
            Job(number, prompts[number], SamplingParams(cell.new_tokens, seed=seed + number, **how))
            for number in range(cell.texts)
        ]

    @cached_property
    def _prompts(self) -> list[list[int]]:
        """Held-out documents, enough for every cell."""
        n, encode = (
            max(own.texts for own in self.plan.cells()),
            self.engines.models.tokenizer.encode,
        )
        return read_exactly(encode, self.plan.context, n)

    def _require_plain(self, cell: Cell) -> None:
        missing = [n for n in range(cell.texts) if cell.key(n) not in self.rows.plain]
        if missing and cell.policy != OFF:
            raise UsageError(
                f"{cell.name}: nothing to compare {len(missing)} of {cell.texts} texts with: run"
                f" policy {OFF} with as many texts before it, into the same --record"
            )

    def _difference(
        self, parted: Sequence[Job], known: Mapping[int, Any], played: Played
    ) -> dict[str, Any]:
        """The earliest place at which texts of a cell part, by prompt."""
        job = parted[0]
        target, texts = self.engines.models.target, (known[job.number], played.texts[job.number])
        found = where_texts_part(target, job.prompt, job.params, *texts)
        assert found is not None, "only texts that differ are asked about"
        named = {"prompt": job.number, "seed": job.params.seed, "index": found.index}
        tokens = {"plain": found.plain, "other": found.speculative}
        decode = self.engines.models.tokenizer.decode
        words = {name: decode([own]) if own >= 0 else None for name, own in tokens.items()}
        return {**named, **tokens, "words": words, "logit_gap": found.logit_gap}


def read_exactly(
    encode: Callable[[str], Sequence[int]], context: int, n_prompts: int
) -> list[list[int]]:
    """So many held-out prompts of exactly so many tokens, by any tokenizer; always the same."""
    for factor in LONGER:
        documents = read_documents(factor * context, n_prompts)
        found = [list(encode(document.text)[:context]) for document in documents]
        if all(len(tokens) == context for tokens in found):
            return found
    raise UsageError(f"the held-out documents are too short for {n_prompts} prompts of {context}")
