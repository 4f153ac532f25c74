"""The composition root: the only file that names concrete classes and wires them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from aerie.attention import exact, pytorch
from aerie.attention.contract import PrepareAttention
from aerie.config import EngineConfig, ModelConfig, SpeculationConfig, require
from aerie.engine.engine import EngineCore, Limits
from aerie.engine.memory import Memory
from aerie.engine.step import Parts
from aerie.engine.verify import RULES
from aerie.kernels import load as load_kernels
from aerie.kernels.arrays import speaking_torch
from aerie.kernels.registry import Kernels, backend_info
from aerie.models.decoder import Decoder
from aerie.models.eagle3_head import Eagle3Head
from aerie.models.eagle3_load import load_head
from aerie.models.eagle3_resolve import HeadOptions
from aerie.models.exact_linear import TiledLinear
from aerie.models.linear import DENSE, DenseFormat
from aerie.models.load import LoadOptions, load_decoder
from aerie.speculation.eagle3 import Eagle3Proposer, TreeShape
from aerie.speculation.ngram import NgramProposer
from aerie.speculation.plain import PlainProposer
from aerie.speculation.proposer import Proposer
from aerie.speculation.tree import best_nodes

# What may stand between an engine and its kernels: a capture, a study of approximations.
Tap = Callable[[Kernels], Kernels]


def untapped(kernels: Kernels) -> Kernels:
    """The kernels as they are."""
    return kernels


@dataclass(frozen=True)
class Numerics:
    """How rows are multiplied and attended."""

    dense: DenseFormat
    prepare_attention: PrepareAttention
    row_multiple: int
    is_fused: bool  # one product for q, k, v and one for gate, up


NUMERICS = {
    "fast": Numerics(DENSE, pytorch.prepare, 1, True),
    # Vectorised exp and cos round differently from the scalar code that handles the last, odd
    # elements of an array. A multiple of 32 rows has no odd elements (16 lanes, unrolled twice).
    "exact": Numerics(DenseFormat(TiledLinear), exact.prepare, 32, False),
}


def load_target(directory: Path, config: ModelConfig) -> Decoder:
    """Load a target with the numerics the configuration asks for."""
    numerics = NUMERICS[config.numerics]
    dtype = getattr(torch, config.dtype)
    options = LoadOptions(dtype, config.device, numerics.dense, numerics.is_fused)
    return load_decoder(directory, numerics.prepare_attention, options)


def load_draft(directory: Path, target: Decoder, config: ModelConfig) -> Eagle3Head:
    """Load a draft head for a target."""
    numerics = NUMERICS[config.numerics]
    return load_head(
        directory, target, numerics.prepare_attention, HeadOptions(dense=numerics.dense)
    )


def build_kernels(backend: str, device: str) -> Kernels:
    """Kernels for the engine: tensors in and out, failures as status words."""
    kernels = load_kernels(backend, device=device, data_errors="status")
    needs_torch = "torch" in backend_info(backend).needs
    return kernels if needs_torch else speaking_torch(kernels)


def build_core(
    config: EngineConfig,
    target: Decoder,
    head: Eagle3Head | None,
    limits: Limits,
    tap: Tap = untapped,
) -> EngineCore:
    """Wire an engine from loaded models."""
    speculation, device = config.speculation, config.model.device
    kernels = tap(build_kernels(config.backend, device))
    n_slots = config.cache.n_pages * config.cache.page_size
    proposer = build_proposer(speculation, head, kernels, n_slots, device)
    # A round needs slots for what the draft feeds and for the rows that are verified.
    scratch = max(proposer.scratch, speculation.nodes)
    longest = limits.context + scratch + 1
    memory = Memory(config.cache, config.scheduler.max_batch, longest, kernels, device)
    parts = Parts(
        target=target,
        pool=target.allocate_pool(n_slots),
        memory=memory,
        kernels=kernels,
        proposer=proposer,
        select=partial(best_nodes, n_nodes=speculation.nodes),
        verify=RULES[speculation.rule],
        row_multiple=NUMERICS[config.model.numerics].row_multiple,
    )
    return EngineCore(config, parts, limits, scratch)


def build_proposer(
    config: SpeculationConfig,
    head: Eagle3Head | None,
    kernels: Kernels,
    n_slots: int,
    device: str,
) -> Proposer:
    """The proposer a method names."""
    proposer: Proposer = PlainProposer(device)
    if "eagle3" in config.method:
        require(head is not None, "method eagle3 needs a draft head: give draft=DIR")
        assert head is not None
        shape = TreeShape(config.top_k, config.depth, config.nodes)
        proposer = Eagle3Proposer(head, head.allocate_pool(n_slots), kernels, shape)
    if "ngram" in config.method:
        proposer = NgramProposer(proposer, config.ngram, config.depth)
    return proposer
