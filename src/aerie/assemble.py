"""The composition root: the only file that names concrete classes and wires them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from aerie.assemble_costs import NO_TABLE, PairKey, choose_table, describe_pair, shipped_costs
from aerie.assemble_numerics import NUMERICS, find_numerics
from aerie.assemble_rounds import build_rounds
from aerie.config import LIMITS, EngineConfig, ModelConfig, SpeculationConfig, require
from aerie.engine.engine import EngineCore, Limits
from aerie.engine.measure import QUICK, MakeCore, measure_costs
from aerie.engine.measure_device import QUICK_ROUNDS, UNPRICED, DeviceGrid, measure_device_costs
from aerie.engine.memory import Memory
from aerie.engine.step import Parts
from aerie.engine.verify import RULES
from aerie.kernels import load as load_kernels
from aerie.kernels.arrays import speaking_torch
from aerie.kernels.registry import Kernels, backend_info, why_unavailable
from aerie.models.decoder import Decoder
from aerie.models.eagle3_head import Eagle3Head
from aerie.models.eagle3_load import load_head
from aerie.models.eagle3_resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.resolved import Resolved
from aerie.speculation.cast import Cast
from aerie.speculation.costs import CostTable, load_costs
from aerie.speculation.eagle3 import Eagle3Proposer
from aerie.speculation.ngram import NgramProposer
from aerie.speculation.plain import PlainProposer
from aerie.speculation.planner import Planner
from aerie.speculation.policy import FixedTree, Policy, TreeShape
from aerie.speculation.proposer import Proposer

# What may stand between an engine and its kernels: a capture, a study of approximations.
Tap = Callable[[Kernels], Kernels]


def untapped(kernels: Kernels) -> Kernels:
    """The kernels as they are."""
    return kernels


def load_target(directory: Path, config: ModelConfig, page_size: int = 1) -> Decoder:
    """Load a target with the numerics the configuration asks for.

    `page_size` is what the KV memory promises attention: slots of a page follow each other.
    """
    numerics = find_numerics(config, page_size)
    dtype = getattr(torch, config.dtype)
    options = LoadOptions(dtype, config.device, numerics.dense, numerics.is_fused, numerics.ops)
    return load_decoder(directory, numerics.prepare_attention, options)


def load_draft(
    directory: Path, target: Decoder, config: ModelConfig, page_size: int = 1
) -> Eagle3Head:
    """Load a draft head for a target, with the same promise."""
    numerics = find_numerics(config, page_size)
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
) -> EngineCore:
    """Wire an engine from loaded models; a planner plans from `costs` before any other table."""
    config = settled(config, None if head is None else describe_pair(target, head))
    speculation, device = config.speculation, config.model.device
    kernels = tap(build_kernels(config.backend, device))
    n_slots = config.cache.n_pages * config.cache.page_size
    proposer = build_proposer(speculation, head, kernels, n_slots, device)
    is_captured = choose_engine(config).value == "graphs"
    # A round needs slots for what the draft feeds and for the rows that are verified; a captured
    # one drafts behind what it has just committed.
    own = proposer.scratch + (speculation.limits.depth + 1 if is_captured else 0)
    scratch = max(own, speculation.limits.nodes)
    longest = limits.context + scratch + 1
    memory = Memory(config.cache, config.scheduler.max_batch, longest, kernels, device)
    parts = Parts(
        target=target,
        pool=target.allocate_pool(n_slots),
        memory=memory,
        kernels=kernels,
        proposer=proposer,
        policy=build_policy(config, target, head, limits, costs),
        verify=RULES[speculation.rule],
        row_multiple=NUMERICS[config.model.numerics].row_multiple,
    )
    rounds = build_rounds(config, parts, scratch) if is_captured else None
    return EngineCore(config, parts, limits, scratch, rounds)


def settled(config: EngineConfig, pair: PairKey | None = None) -> EngineConfig:
    """The configuration with its policy and its kernels chosen, for a pair that was loaded."""
    speculation = replace(config.speculation, policy=choose_policy(config, pair).value)
    return replace(config, speculation=speculation, backend=choose_backend(config).value)


def choose_backend(config: EngineConfig) -> Resolved[str]:
    """The kernel backend, with the reason for it."""
    if config.backend != "auto":
        return Resolved("backend", config.backend, "config", "asked for")
    if not config.model.device.startswith("cuda"):
        reason = "NumPy starts an operation on a small array in a third of torch's time"
        return Resolved("backend", "numpy", "automatic", reason)
    missing = why_unavailable(backend_info("triton"))
    if missing is not None:
        return Resolved("backend", "pytorch", "automatic", missing)
    return Resolved("backend", "triton", "automatic", "one launch where PyTorch takes dozens")


def choose_policy(config: EngineConfig, pair: PairKey | None = None) -> Resolved[str]:
    """The policy, with the reason for it; `pair` describes what was loaded."""
    speculation = config.speculation
    chosen = speculation.chosen_policy
    if speculation.policy != "auto":
        return Resolved("policy", chosen, "config", "asked for")
    if chosen == "fixed":
        return Resolved("policy", chosen, "config", "a shape was given, or nothing can be planned")
    is_priced = config.planner.costs is not None
    if config.model.device.startswith("cuda") and config.engine != "eager" and not is_priced:
        table = choose_table(config.model.device, pair)
        value = "fixed" if table.value == NO_TABLE else chosen
        return Resolved("policy", value, table.origin, table.reason)
    return Resolved("policy", chosen, "automatic", "trees are paid for by measured cost")


def choose_engine(config: EngineConfig) -> Resolved[str]:
    """The loop that runs the rounds. Asked for, it must be possible; automatic, it says why."""
    obstacle = why_not_captured(config)
    if config.engine == "graphs":
        require(obstacle is None, f"engine graphs cannot run this: {obstacle}; use engine auto")
    if config.engine != "auto":
        return Resolved("engine", config.engine, "config", "asked for")
    if obstacle is not None:
        return Resolved("engine", "eager", "automatic", obstacle)
    if not config.model.device.startswith("cuda"):
        return Resolved("engine", "eager", "automatic", "only a GPU gains from captured rounds")
    reason = "launch by launch, a GPU would wait for the host"
    return Resolved("engine", "graphs", "automatic", reason)


def why_not_captured(config: EngineConfig) -> str | None:
    """What a configuration asks for that the host must decide within a round, or None."""
    speculation = config.speculation
    if speculation.rule != "match":
        return f"rule {speculation.rule} draws its coins on the host"
    if "ngram" in speculation.method:
        return "n-gram paths are looked up in the text on the host"
    if speculation.method != "none" and speculation.chosen_policy == "cast":
        return "policy cast decides layer by layer on the host"
    return None


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
) -> Policy:
    """The policy a configuration names, with the costs it plans from."""
    shape, chosen = tree_shape(config.speculation), config.speculation.chosen_policy
    if chosen == "fixed":
        return FixedTree(shape)
    if costs is None:
        costs = find_costs(config, target, head, limits)
    if chosen == "cast":
        return Cast(shape, costs)
    return Planner(shape, costs, config.planner.explore_every)


def find_costs(
    config: EngineConfig, target: Decoder, head: Eagle3Head | None, limits: Limits
) -> CostTable:
    """A file that was given, a table that is shipped, or a coarse one measured now."""
    if config.planner.costs is not None:
        return load_costs(Path(config.planner.costs))
    device = config.model.device
    provenance = {"kind": "measured at load", "device": device}
    if choose_engine(config).value == "eager":
        return measure_costs(scratch_cores(config, target, head, limits), QUICK, provenance)
    assert head is not None, "captured rounds are planned for a draft head"
    shipped = shipped_costs(device, describe_pair(target, head))
    if shipped is not None:
        return shipped
    core = graphs_core(config, target, head, QUICK_ROUNDS)
    return measure_device_costs(core, QUICK_ROUNDS, provenance)


def graphs_core(
    config: EngineConfig, target: Decoder, head: Eagle3Head, grid: DeviceGrid
) -> EngineCore:
    """An engine on which the costs of captured rounds are measured: room for every point."""
    page = config.cache.page_size
    n_tokens = max(batch * (context + grid.margin) for batch, context in grid.points())
    sized = replace(
        config,
        speculation=SpeculationConfig(policy="planner"),
        cache=replace(config.cache, n_pages=-(-n_tokens // page) + 512, prefix_reuse=False),
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
