"""The composition root of captured rounds: which buffers, kernels and small steps they run on."""

from __future__ import annotations

from aerie.assemble_numerics import leaves_padding_alone
from aerie.config import EngineConfig, require
from aerie.engine.device_round import RoundParts
from aerie.engine.device_rounds import DeviceRounds
from aerie.engine.device_sizes import RoundSizes
from aerie.engine.device_state import StateSizes, allocate_state
from aerie.engine.graphs import smallest
from aerie.engine.step import Parts
from aerie.speculation.device_draft import DeviceDraft, best_by_kernels, grow_by_kernels
from aerie.speculation.device_policy import FixedRounds, RoundPolicy
from aerie.speculation.eagle3 import Eagle3Proposer
from aerie.speculation.planned_rounds import PlannedRounds
from aerie.speculation.planner import Planner
from aerie.speculation.policy import Policy
from aerie.speculation.round_ops import RoundOps

HISTORY = 1024  # positions kept for a head that sees everything


def build_rounds(config: EngineConfig, parts: Parts, scratch: int) -> DeviceRounds:
    """Rounds on fixed buffers over an engine's own memory and models."""
    is_slow = config.model.perf_mode and config.backend != "triton"
    require(not is_slow, f"perf_mode: kernels of backend {config.backend}, not of triton")
    device, shape, proposer = config.model.device, parts.policy.shape, parts.proposer
    ops = RoundOps(parts.kernels)
    policy = build_round_policy(config, parts.policy, ops)
    draft = None
    if isinstance(proposer, Eagle3Proposer):
        draft = build_device_draft(proposer, ops, policy)
    sizes = StateSizes(
        n_slots=smallest(config.graphs.slots, config.scheduler.max_batch),
        n_nodes=shape.capacity if draft else 1,
        n_verify=shape.verify,
        longest_path=shape.depth + 1 if draft else 1,
        features=(len(proposer.taps), parts.target.geometry.hidden_size),
        inert_row=parts.memory.inert_row,
        n_gains=(shape.depth, shape.top_k + 1) if policy.learns else (0, 0),
        n_history=history_of(draft) if draft is not None and policy.learns else 0,
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
        policy=policy,
    )
    path = sizes.longest_path
    cut = RoundSizes(config.graphs, parts.row_multiple, scratch, shape, path)
    return DeviceRounds(round_parts, cut, parts.memory, proposer)


def build_round_policy(config: EngineConfig, policy: Policy, ops: RoundOps) -> RoundPolicy:
    """The captured form of a policy."""
    if isinstance(policy, Planner):
        return PlannedRounds(policy, config.graphs.rows, config.model.device, ops)
    return FixedRounds(policy.shape, ops.choose_best)


def history_of(draft: DeviceDraft) -> int:
    """Positions of features worth keeping while nothing is drafted: what the head can see."""
    return draft.head.reach.window or HISTORY


def build_device_draft(proposer: Eagle3Proposer, ops: RoundOps, policy: RoundPolicy) -> DeviceDraft:
    """The draft of a captured round."""
    head, kernels = proposer.head, proposer.kernels
    best_children, grow_layer = (
        best_by_kernels(kernels, head),
        grow_by_kernels(kernels, policy.learns),
    )
    return DeviceDraft(head, proposer.pool, kernels, ops, best_children, grow_layer)
