"""The composition root: the only file that names concrete classes and wires them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from aerie.assemble_choices import settled
from aerie.assemble_costs import (
    describe_costs,
    describe_pair,
    given_costs,
    is_provisional,
    keep_costs,
    kept_costs,
    shipped_costs,
)
from aerie.assemble_device import settle_model
from aerie.assemble_memory import free_bytes, give_back, kv_needs, with_pages
from aerie.assemble_numerics import NUMERICS, find_numerics
from aerie.assemble_rounds import build_rounds
from aerie.config import LIMITS, EngineConfig, ModelConfig, SpeculationConfig, require
from aerie.engine.engine import EngineCore, Limits
from aerie.engine.measure import QUICK, MakeCore, Progress, measure_costs, silent
from aerie.engine.measure_device import QUICK_ROUNDS, UNPRICED, DeviceGrid, measure_device_costs
from aerie.engine.measure_quiet import is_quiet_now
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
from aerie.models.load import LoadOptions, load_decoder
from aerie.speculation.cast import Cast
from aerie.speculation.costs import CostTable
from aerie.speculation.eagle3 import Eagle3Proposer
from aerie.speculation.ngram import NgramProposer
from aerie.speculation.plain import PlainProposer
from aerie.speculation.planner import Planner
from aerie.speculation.policy import FixedTree, Policy, TreeShape
from aerie.speculation.proposer import Proposer

# So that pages are taken ahead while costs are measured, as where memory is not short.
SPARE_PAGES = 512
# What may stand between an engine and its kernels: a capture, a study of approximations.
Tap = Callable[[Kernels], Kernels]


def untapped(kernels: Kernels) -> Kernels:
    """The kernels as they are."""
    return kernels


def load_target(
    directory: Path, config: ModelConfig, page_size: int = 1, progress: Progress = silent
) -> Decoder:
    """Load a target with the numerics the configuration asks for.

    `page_size` is what the KV memory promises attention: slots of a page follow each other.
    """
    config = settle_model(config)
    numerics = find_numerics(config, page_size)
    options = LoadOptions(
        dtype=getattr(torch, config.dtype),
        device=config.device,
        dense=numerics.dense,
        is_fused=numerics.is_fused,
        ops=numerics.ops,
        on_tensor=partial(progress, "loading weights"),
    )
    return load_decoder(directory, numerics.prepare_attention, options)


def load_draft(
    directory: Path, target: Decoder, config: ModelConfig, page_size: int = 1
) -> Eagle3Head:
    """Load a draft head for a target, with the same promise."""
    numerics = find_numerics(settle_model(config), page_size)
    options = HeadOptions(config.taps, dense=numerics.dense, is_fused=numerics.is_head_fused)
    return load_head(directory, target, numerics.prepare_attention, options)


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
    costs: CostTable | None = None,
    progress: Progress = silent,
) -> EngineCore:
    """Wire an engine from loaded models; a planner plans from `costs` before any other table."""
    config = settled(config)
    speculation, device = config.speculation, config.model.device
    kernels = tap(build_kernels(config.backend, device))
    scratch = scratch_of(config)
    longest = limits.context + scratch + 1
    needs = kv_needs(config, target, head if "eagle3" in speculation.method else None, longest)
    if config.cache.n_pages:
        with_pages(config, needs)  # what was asked for and does not fit is said at once
    # Costs are measured on engines of their own, before this one takes the memory.
    policy = build_policy(config, target, head, limits, costs, progress)
    config = with_pages(config, needs)
    n_slots = config.cache.n_pages * config.cache.page_size
    parts = Parts(
        target=target,
        pool=target.allocate_pool(n_slots),
        memory=Memory(config.cache, config.scheduler.max_batch, longest, kernels, device),
        kernels=kernels,
        proposer=build_proposer(speculation, head, kernels, n_slots, device),
        policy=policy,
        verify=RULES[speculation.rule],
        row_multiple=NUMERICS[config.model.numerics].row_multiple,
    )
    rounds = build_rounds(config, parts, scratch) if config.engine == "graphs" else None
    return EngineCore(config, parts, limits, scratch, rounds)


def scratch_of(config: EngineConfig) -> int:
    """Positions a round may use behind a text: what the draft feeds, or the rows verified.

    A captured round drafts behind what it has just committed.
    """
    speculation = config.speculation
    fed = tree_shape(speculation).fed if "eagle3" in speculation.method else 0
    ahead = speculation.limits.depth + 1 if config.engine == "graphs" else 0
    return max(fed + ahead, speculation.limits.nodes)


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
        proposer = Eagle3Proposer(head, head.allocate_pool(n_slots), kernels, tree_shape(config))
    if "ngram" in config.method:
        proposer = NgramProposer(proposer, config.ngram, config.limits.depth)
    return proposer


def tree_shape(config: SpeculationConfig) -> TreeShape:
    """The largest tree a configuration allows; plain decoding verifies the root alone."""
    limits = config.limits
    return TreeShape(limits.top_k, limits.depth, 1 if config.method == "none" else limits.nodes)


def build_policy(
    config: EngineConfig,
    target: Decoder,
    head: Eagle3Head | None,
    limits: Limits,
    costs: CostTable | None = None,
    progress: Progress = silent,
) -> Policy:
    """The policy a settled configuration names, with the costs it plans from."""
    shape, chosen = tree_shape(config.speculation), config.speculation.chosen_policy
    if chosen == "fixed":
        return FixedTree(shape)
    if costs is None:
        require(head is not None, f"policy {chosen} prices a draft head, and there is none")
        assert head is not None
        costs = find_costs(config, target, head, limits, progress)
    if chosen == "cast":
        return Cast(shape, costs)
    return Planner(shape, costs, config.planner.explore_every)


def find_costs(
    config: EngineConfig, target: Decoder, head: Eagle3Head, limits: Limits, progress: Progress
) -> CostTable:
    """A table that was given, is shipped or was kept; else a coarse one, measured now and kept."""
    identity = describe_costs(config, describe_pair(target, head))
    planner = config.planner
    if planner.costs is not None:
        return given_costs(Path(planner.costs), identity, planner.foreign_costs)
    found = shipped_costs(identity) or kept_costs(identity)
    # One of a busy moment is repeated when the machine is quiet.
    if found is not None and not (is_provisional(found, identity) and is_quiet_now()):
        return found
    record = {"kind": "measured at load", **identity}
    if config.engine == "eager":
        make = scratch_cores(config, target, head, limits)
        table = measure_costs(make, QUICK, record, progress)
    else:
        grid = fitting_grid(config, target, head)
        core = graphs_core(config, target, head, grid)
        table = measure_device_costs(core, grid, record, progress)
        del core
        give_back(config.model.device)
    keep_costs(table, identity)
    return table


def fitting_grid(config: EngineConfig, target: Decoder, head: Eagle3Head) -> DeviceGrid:
    """The quick grid without the points that a device has no memory for."""
    needs = kv_needs(config, target, head, 0)
    beside = max(QUICK_ROUNDS.batches) * QUICK_ROUNDS.margin + SPARE_PAGES * config.cache.page_size
    room = free_bytes(config, needs) // needs.slot_bytes - beside
    grid = replace(QUICK_ROUNDS, most_tokens=min(QUICK_ROUNDS.most_tokens, room))
    require(
        bool(grid.points()),
        f"{config.model.device} has no memory left to measure costs in: raise gpu_memory, or use"
        " policy fixed",
    )
    return grid


def graphs_core(
    config: EngineConfig, target: Decoder, head: Eagle3Head, grid: DeviceGrid
) -> EngineCore:
    """An engine on which the costs of captured rounds are measured: room for every point."""
    page = config.cache.page_size
    n_tokens = max(batch * (context + grid.margin) for batch, context in grid.points())
    sized = replace(
        config,
        speculation=SpeculationConfig(policy="planner"),
        cache=replace(config.cache, n_pages=-(-n_tokens // page) + SPARE_PAGES, prefix_reuse=False),
        scheduler=replace(config.scheduler, max_batch=max(grid.batches)),
        # What is to be measured must run, not what would do.
        graphs=replace(config.graphs, record_every=0),
        engine="graphs",
        audit=False,
    )
    geometry = target.geometry
    limits = Limits(max(grid.contexts) + grid.margin, geometry.vocab_size, ())
    return build_core(sized, target, head, limits, costs=UNPRICED)


def scratch_cores(
    config: EngineConfig, target: Decoder, head: Eagle3Head | None, limits: Limits
) -> MakeCore:
    """Small engines of the same models, on which costs are measured."""
    limits_of = LIMITS["planner"]
    largest = SpeculationConfig(
        method="eagle3",
        policy="fixed",
        top_k=limits_of.top_k,
        depth=limits_of.depth,
        nodes=limits_of.nodes,
    )

    def make(batch: int, context: int) -> EngineCore:
        page = config.cache.page_size
        n_pages = batch * -(-(context + 512) // page) + 1
        small = replace(
            config,
            speculation=largest,
            cache=replace(config.cache, n_pages=n_pages, prefix_reuse=False),
            scheduler=replace(config.scheduler, max_batch=batch),
            engine="eager",  # the phases of a captured round cannot be told apart
            audit=False,
        )
        room = replace(limits, context=max(limits.context, context + 512))
        return build_core(small, target, head, room)

    return make
