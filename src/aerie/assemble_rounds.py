"""The composition root of captured rounds: which buffers, kernels and small steps they run on."""

from __future__ import annotations

import importlib

from aerie.assemble_numerics import leaves_padding_alone
from aerie.config import EngineConfig
from aerie.engine.device_round import RoundParts
from aerie.engine.device_rounds import DeviceRounds, RoundOptions
from aerie.engine.device_state import StateSizes, allocate_state
from aerie.engine.graphs import smallest
from aerie.engine.step import Parts
from aerie.speculation.device_draft import DeviceDraft, grow_by_kernels, softmax_then_topk
from aerie.speculation.device_store import Template
from aerie.speculation.eagle3 import Eagle3Proposer
from aerie.speculation.round_ops import RoundOps


def build_rounds(config: EngineConfig, parts: Parts, scratch: int) -> DeviceRounds:
    """Rounds on fixed buffers over an engine's own memory and models."""
    device, shape, proposer = config.model.device, parts.policy.shape, parts.proposer
    n_slots = smallest(config.graphs.slots, config.scheduler.max_batch)
    ops = build_round_ops(config)
    draft, template = None, None
    if isinstance(proposer, Eagle3Proposer):
        draft = build_device_draft(config, proposer, ops)
        template = Template.full(shape, n_slots, device)
    sizes = StateSizes(
        n_slots=n_slots,
        n_nodes=shape.capacity if draft else 1,
        n_verify=shape.verify,
        longest_path=shape.depth + 1 if draft else 1,
        features=(len(proposer.taps), parts.target.geometry.hidden_size),
        inert_row=parts.memory.inert_row,
    )
    round_parts = RoundParts(
        target=parts.target,
        pool=parts.pool,
        table=parts.memory.table,
        kernels=parts.kernels,
        state=allocate_state(sizes, parts.target.embedding.dtype, device),
        draft=draft,
        taps=proposer.taps,
        ops=ops,
        has_inert_request=not leaves_padding_alone(config.model),
        select=lambda tree, chosen, count: ops.choose_best(
            tree.scores, shape.verify, chosen, count
        ),
    )
    options = RoundOptions(config.graphs, parts.row_multiple, scratch, template)
    return DeviceRounds(round_parts, options, parts.memory, proposer)


def build_round_ops(config: EngineConfig) -> RoundOps:
    """The small steps of a round, in one launch each where the kernel backend has them."""
    if config.backend != "triton":
        return RoundOps()
    return RoundOps(**importlib.import_module("aerie.kernels.triton_gpu.round_ops").OPS)


def build_device_draft(
    config: EngineConfig, proposer: Eagle3Proposer, ops: RoundOps
) -> DeviceDraft:
    """The draft of a captured round; a whole layer is one launch where the backend has it."""
    head, kernels = proposer.head, proposer.kernels
    best_children, grow_layer = softmax_then_topk(head), grow_by_kernels(kernels)
    if config.backend == "triton":
        fused = importlib.import_module("aerie.kernels.triton_gpu.round_ops")
        best_children = fused.best_children(head.token_map)
        grow_layer = fused.layer_grower(config.model.device)
    return DeviceDraft(head, proposer.pool, kernels, ops, best_children, grow_layer)
