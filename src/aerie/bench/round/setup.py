"""The pair, prompts and engines that measured rounds run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aerie.api import find_pair
from aerie.assemble.core import build_core, load_draft, load_target
from aerie.assemble.numerics import find_numerics, head_numerics
from aerie.config import (
    CacheConfig,
    EngineConfig,
    GraphConfig,
    ModelConfig,
    PartialConfig,
    PlannerConfig,
    SchedulerConfig,
    SpeculationConfig,
    require,
)
from aerie.engine.engine import EngineCore, Limits
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.inflate.embed import InflateOptions, LargePair, inflate_to_device
from aerie.models.inflate.geometry import find_geometry
from aerie.models.inflate.pair import read_pair
from aerie.models.load import LoadOptions
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request, State
from aerie.text.heldout import CODE, read_tokens
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from aerie.tune.grid import Progress

PAGE = 16
SPARE_PAGES = 512  # so that pages are taken ahead, as in an engine that is not short of memory


@dataclass(frozen=True)
class RoundSetup:
    """Which pair, where, in which dtype. `geometry` None is the built-in pair as it ships."""

    device: str = "cuda"
    dtype: str = "bfloat16"
    geometry: str | None = "llama-3.1-8b"
    backend: str = "pytorch"
    engine: str = "graphs"
    linear: str = "auto"
    draft_products: str = "auto"
    numerics: str = "fast"
    perf_mode: bool = False  # a missing fast path ends the run
    costs: str | None = None  # what a planner plans from; None: what an engine finds by itself
    foreign_costs: bool = False  # they may be of another device or pair

    @property
    def model(self) -> ModelConfig:
        """The slice of the configuration."""
        return ModelConfig(
            device=self.device,
            dtype=self.dtype,
            linear=self.linear,
            draft_products=self.draft_products,
            numerics=self.numerics,
            perf_mode=self.perf_mode,
        )

    def load(self, draft_vocabulary: int | None = None) -> LargePair:
        """The pair in memory; inflated tensors are made where they stay.

        An inflated head may have a vocabulary of another size.
        """
        target_dir, draft_dir = find_pair(None, None)
        assert draft_dir is not None, "the built-in pair has a head"
        if self.geometry is None:
            target = load_target(target_dir, self.model, PAGE)
            return LargePair(target, load_draft(draft_dir, target, self.model, PAGE))
        numerics, draft = find_numerics(self.model, PAGE), head_numerics(self.model, PAGE)
        own, kind = find_geometry(self.geometry), getattr(torch, self.dtype)
        geometry = replace(own, draft_vocab_size=draft_vocabulary or own.draft_vocab_size)
        chosen = (numerics.dense, numerics.is_fused, numerics.ops)
        options = LoadOptions(kind, self.device, *chosen, packed=numerics.packed)
        made = InflateOptions(
            options, head_dense=draft.dense, head_attention=draft.prepare_attention
        )
        pair = read_pair(target_dir, draft_dir)
        return inflate_to_device(pair, geometry, numerics.prepare_attention, made)

    def core(self, pair: LargePair, speculation: SpeculationConfig, room: Room) -> EngineCore:
        """An engine over the pair with memory for what is about to be measured."""
        config = EngineConfig(
            model=self.model,
            cache=CacheConfig(room.n_pages, PAGE, prefix_reuse=room.prefix_reuse),
            graphs=room.graphs,
            scheduler=SchedulerConfig(max_batch=room.batch, prefill_chunk=room.chunk),
            speculation=speculation,
            planner=PlannerConfig(self.costs, foreign_costs=self.foreign_costs),
            backend=self.backend,
            engine=self.engine,
            partial=room.partial,
        )
        geometry = pair.target.geometry
        limits = Limits(room.context + room.margin, geometry.vocab_size, ())
        return build_core(config, pair.target, pair.head, limits)


def load_pair(
    config: EngineConfig, geometry: str | None, progress: Progress
) -> tuple[Decoder, Eagle3Head | None]:
    """The pair of a settled configuration; with a geometry, the built-in one inflated to it."""
    own, page = config.model, config.cache.page_size
    if geometry is not None:
        require(own.model is None, "--geometry inflates the built-in pair: leave --model out")
        setup = RoundSetup(own.device, own.dtype, geometry)
        setup = replace(setup, draft_products=own.draft_products, numerics=own.numerics)
        pair = setup.load()
        return pair.target, pair.head
    target_dir, draft_dir = find_pair(own.model, own.draft)
    target = load_target(target_dir, own, page, progress)
    return target, None if draft_dir is None else load_draft(draft_dir, target, own, page)


@dataclass(frozen=True)
class Room:
    """Memory of an engine: requests, tokens of each, and how prompts are cut."""

    batch: int
    context: int
    chunk: int = 2048
    margin: int = 512  # positions beyond the context: the tree and what a draft feeds
    graphs: GraphConfig = field(default_factory=GraphConfig)
    prefix_reuse: bool = False
    partial: PartialConfig = field(default_factory=PartialConfig)
    kv_tokens: int | None = None  # of all texts together; None: what so many requests need

    @property
    def n_pages(self) -> int:
        """Pages of the KV."""
        if self.kv_tokens is not None:
            return self.kv_tokens // PAGE + 1
        per_request = -(-(self.context + self.margin) // PAGE) + 1
        return self.batch * per_request + SPARE_PAGES


def read_prompts(
    n_prompts: int, n_tokens: int, vocabulary: int, kind: str = CODE, offset: int = 0
) -> list[list[int]]:
    """Token ids of so many held-out documents, cut to a length; the same every time."""
    found = read_tokens(tokenizer_of_pair().encode, n_tokens, n_prompts, kind, offset)
    assert max(max(ids) for ids in found) < vocabulary
    return found


def tokenizer_of_pair() -> Tokenizer:
    """The built-in pair's tokenizer."""
    return load_tokenizer(find_pair(None, None)[0])


def start(
    core: EngineCore,
    prompts: Sequence[Sequence[int]],
    max_tokens: int | Sequence[int],
    **options: Any,
) -> list[int]:
    """Submit prompts and step until all of them decode; returns their ids.

    They may write so many tokens, all alike or each its own number.
    """
    n_new = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
    ids = [
        core.submit(prompt, SamplingParams(max_tokens=n, ignore_eos=True, **options))
        for prompt, n in zip(prompts, n_new, strict=True)
    ]
    while any(core.request(i).state in (State.WAITING, State.READING) for i in ids):
        core.step()
    return ids


def abandon(core: EngineCore, ids: Sequence[int]) -> list[Request]:
    """End requests that were only measured, and what became of them so far."""
    for request_id in ids:
        core.cancel(request_id)
    while not core.is_idle:
        core.step()
    return [core.forget(request_id) for request_id in ids]
