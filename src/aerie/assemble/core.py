"""The composition root: the only file that names concrete classes and wires them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from aerie.assemble.choices import head_options, settled
from aerie.assemble.costs import (
    describe_costs,
    describe_pair,
    given_costs,
    is_provisional,
    keep_costs,
    kept_costs,
    shipped_costs,
)
from aerie.assemble.device import settle_model
from aerie.assemble.memory import free_bytes, give_back, kv_needs, with_pages
from aerie.assemble.numerics import choose_kind, head_numerics
from aerie.assemble.parallel import load_split, load_whole
from aerie.assemble.rounds import build_launcher
from aerie.assemble.sizes import preview_rule, scratch_of, tree_shape
from aerie.config import EngineConfig, ModelConfig, PartialConfig, SpeculationConfig, require
from aerie.costs.table import CostTable
from aerie.engine.engine import EngineCore, Limits
from aerie.kernels import load as load_kernels
from aerie.kernels.arrays import speaking_torch
from aerie.kernels.registry import Kernels, backend_info
from aerie.kv.memory import Memory
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.geometry import read_geometry
from aerie.models.quantisation import has_packed_linears
from aerie.speculation.foresight import Foresight
from aerie.speculation.offer import Offers
from aerie.speculation.planner import Planner
from aerie.speculation.policy import FixedTree, Policy
from aerie.tune.costs import UNPRICED, measure_costs
from aerie.tune.experts import counted
from aerie.tune.grid import QUICK, Grid, Progress, silent
from aerie.tune.quiet import is_quiet_now

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
    config = with_numerics(settle_model(config), directory)
    load = load_whole if config.tensor_parallel == 1 else load_split
    return load(directory, config, page_size, partial(progress, "loading weights"))


def with_numerics(config: ModelConfig, directory: Path) -> ModelConfig:
    """A configuration whose device and dtype are chosen, with its numerics chosen for a target."""
    kind = choose_kind(config, read_geometry(directory), has_packed_linears(directory))
    return replace(config, numerics=kind.value)


def load_draft(
    directory: Path, target: Decoder, config: ModelConfig, page_size: int = 1
) -> Eagle3Head:
    """Load a draft head for a target, with the same promise."""
    numerics = head_numerics(settle_model(config), page_size)
    options = replace(
        head_options(config, target.geometry.max_positions),
        dense=numerics.dense,
        is_fused=numerics.is_head_fused,
        packed=numerics.packed,
    )
    return load_head(directory, target, numerics.prepare_attention, options)


def build_kernels(backend: str, device: str, trusts: bool = False) -> Kernels:
    """Kernels for the engine: tensors in and out, failures as status words."""
    # C++ that reads beyond its arrays would go unnoticed.
    trusts &= backend != "hls"
    kernels = load_kernels(backend, device=device, data_errors="status", trusts=trusts)
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
    trusts = not config.audit
    kernels = tap(build_kernels(config.backend, device, trusts))
    scratch = scratch_of(config)
    longest = limits.context + scratch + 1
    needs = kv_needs(config, target, head if "eagle3" in speculation.method else None, longest)
    if config.cache.n_pages:
        with_pages(config, needs)  # what was asked for and does not fit is said at once
    # Costs are measured on engines of their own, before this one takes the memory.
    policy = build_policy(config, target, head, limits, costs, progress)
    config = with_pages(config, needs)
    here = kernels if device == "cpu" else build_kernels("numpy", "cpu", trusts)
    memory = Memory(config.cache, config.scheduler.max_batch, longest, here, device)
    launcher = build_launcher(config, (target, head), kernels, memory, policy, limits)
    return EngineCore(config, launcher, memory, limits, scratch)


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
    rule = preview_rule(config)
    if chosen == "fixed":
        return FixedTree(shape, rule)
    if costs is None:
        require(head is not None, f"policy {chosen} prices a draft head, and there is none")
        assert head is not None
        costs = find_costs(config, target, head, limits, progress)
    looks = config.engine == "direct"
    offers = Offers(None if looks else config.graphs.rows, shape.verify, config.model.device)
    planner = Planner(shape, costs, config.planner.explore_every, offers, looks)
    planner.foresight = None if rule is None else Foresight(rule, shape.depth)
    return planner


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
    grid = _fitting_grid(config, target, head)
    core = measured_core(config, target, head, grid)
    table = measure_costs(core, grid, record, progress)
    n_batches = len({sample.batch for sample in table.extend.samples})
    if config.engine == "graphs" and n_batches < len(grid.batches):
        # Compiling took the time: a later load, which finds the kernels, measures again.
        reason = f"{n_batches} of {len(grid.batches)} batch sizes were measured in time"
        table = replace(table, provenance={**table.provenance, "busy": reason})
    del core
    give_back(config.model.device)
    keep_costs(table, identity)
    return table


def _fitting_grid(config: EngineConfig, target: Decoder, head: Eagle3Head) -> Grid:
    """The quick grid without the points that a device has no memory for."""
    quick = QUICK[config.engine]
    needs = kv_needs(config, target, head, 0)
    beside = max(quick.batches) * quick.margin + SPARE_PAGES * config.cache.page_size
    room = free_bytes(config, needs) // needs.slot_bytes - beside
    require(
        room >= min(quick.contexts),
        f"{config.model.device} has no memory left to measure costs in: raise gpu_memory, or use"
        " policy fixed",
    )
    contexts = tuple(context for context in quick.contexts if context <= room)
    return replace(quick, contexts=contexts, most_tokens=min(quick.most_tokens, room))


def measured_core(
    config: EngineConfig, target: Decoder, head: Eagle3Head, grid: Grid
) -> EngineCore:
    """An engine on which costs are measured: room for every point."""
    page = config.cache.page_size
    n_tokens = max(batch * (context + grid.margin) for batch, context in grid.points())
    sized = replace(
        config,
        speculation=SpeculationConfig(policy="planner"),
        partial=PartialConfig(),
        cache=replace(config.cache, n_pages=-(-n_tokens // page) + SPARE_PAGES, prefix_reuse=False),
        scheduler=replace(config.scheduler, max_batch=max(grid.batches)),
        # What is to be measured must run, not what would do.
        graphs=replace(config.graphs, record_every=0),
        audit=False,
    )
    geometry = target.geometry
    limits = Limits(max(grid.contexts) + grid.margin, geometry.vocab_size, ())
    return build_core(sized, counted(target), head, limits, costs=UNPRICED)
