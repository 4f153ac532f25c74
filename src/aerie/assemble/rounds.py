"""The composition root of rounds: which buffers, kernels, policy and launcher they run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from aerie.assemble.numerics import (
    head_numerics,
    leaves_padding_alone,
    near_limit,
    row_multiple,
)
from aerie.assemble.sizes import (
    history_of,
    longest_run,
    n_nodes_of,
    n_previewed,
    n_seats_of,
    n_slots_of,
    near_width,
    scratch_of,
)
from aerie.config import EngineConfig, require
from aerie.engine.buckets import Sizes
from aerie.engine.captured import Captured
from aerie.engine.launch import Direct, Launcher
from aerie.engine.near_kv import Previews, PreviewSizes
from aerie.engine.parts import Parts
from aerie.engine.report import Report, ReportSizes
from aerie.engine.rules import RULES
from aerie.engine.state import State, StateSizes, allocate_state
from aerie.kernels.registry import Kernels
from aerie.kv.memory import Memory
from aerie.models.decoder import Decoder
from aerie.models.draft_vocabulary import (
    choose_ids,
    head_ids,
    output_weight,
    read_counts,
    slice_head,
)
from aerie.models.eagle3.head import Eagle3Head
from aerie.requests.admission import Limits
from aerie.speculation.draft import Draft
from aerie.speculation.hot import HotIds
from aerie.speculation.ngram import CopiedPaths
from aerie.speculation.policy import Policy

PAGES = {"direct": 0, "graphs": 3}  # reports under way at most, and the one that was read last


def build_launcher(
    config: EngineConfig,
    models: tuple[Decoder, Eagle3Head | None],
    kernels: Kernels,
    memory: Memory,
    policy: Policy,
    limits: Limits,
) -> Launcher:
    """Rounds over an engine's own memory and models."""
    is_slow = config.model.perf_mode and config.backend != "triton"
    require(not is_slow, f"perf_mode: kernels of backend {config.backend}, not of triton")
    target, head = models
    draft = _build_draft(config, head, kernels, policy)
    state = build_state(config, target, draft, memory, policy, limits)
    copied = None
    if state.text is not None:
        speculation = config.speculation
        longest, depth = speculation.ngram, speculation.limits.depth
        copied = CopiedPaths.over(state.text, state.n_seats, longest, depth)
    parts = Parts(
        target=target,
        pool=target.allocate_pool(n_slots_of(config)),
        table=memory.table,
        kernels=kernels,
        state=state,
        policy=policy,
        rule=RULES[config.speculation.rule],
        draft=draft,
        copied=copied,
        has_inert_request=not leaves_padding_alone(config.model),
        near_limit=_near_limits(config, state.n_seats),
        previews=_build_previews(config, target, memory, state),
    )
    scratch = scratch_of(config)
    longest = limits.context + scratch + 1
    columns = (*(n for n in config.graphs.columns if n < longest), longest)
    slots = tuple(n for n in config.graphs.slots if n <= state.n_seats)
    sizes = Sizes(
        graphs=replace(config.graphs, columns=columns, slots=slots or (state.n_seats,)),
        row_multiple=row_multiple(config.model),
        scratch=scratch,
        shape=policy.shape,
        n_nodes=n_nodes_of(config.speculation),
        max_chunk=config.scheduler.prefill_chunk,
        longest_run=longest_run(config),
    )
    return LAUNCHERS[config.engine](parts, sizes, memory)


def _near_limits(config: EngineConfig, n_seats: int) -> Tensor | None:
    """What `find_near_ties` is told, for every seat; None where near ties are not counted."""
    limit = near_limit(config.model)
    if limit is None or config.speculation.rule != "match":
        return None
    return torch.full((n_seats,), limit, device=config.model.device)


LAUNCHERS: dict[str, Callable[[Parts, Sizes, Memory], Launcher]] = {
    "direct": Direct,
    "graphs": Captured,
}


def _build_draft(
    config: EngineConfig, head: Eagle3Head | None, kernels: Kernels, policy: Policy
) -> Draft | None:
    """Drafting with a head, where the method names one."""
    if "eagle3" not in config.speculation.method:
        return None
    require(head is not None, "method eagle3 needs a draft head: give draft=DIR")
    assert head is not None
    is_captured = config.engine == "graphs"
    head, hot = _hot_head(config, head)
    return Draft(
        head=head,
        hot=hot,
        pool=head.allocate_pool(n_slots_of(config)),
        kernels=kernels,
        shape=policy.shape,
        is_fused=is_captured and config.backend == "triton",
        weighs=is_captured and policy.learns,
    )


def _hot_head(config: EngineConfig, head: Eagle3Head) -> tuple[Eagle3Head, HotIds | None]:
    """The head with the ids that all requests share, and room for those of their prompts."""
    speculation = config.speculation
    if not speculation.hot_vocabulary:
        return head, None
    counts, forced = read_counts(Path(speculation.hot_counts or ""))
    known, geometry = head_ids(head), head.summary.geometry
    n_counted = counts.counts.shape[0]
    require(
        n_counted == geometry.vocab_size,
        f"hot_counts counts {n_counted} ids, the target has {geometry.vocab_size}",
    )
    shared = choose_ids(counts, speculation.hot_vocabulary, forced, known)
    weight, row_of = output_weight(head), torch.full((geometry.vocab_size,), -1)
    row_of[known] = torch.arange(len(known))
    row_of[shared] = -1
    scale = head.summary.convention.logit_scale
    sizes = n_seats_of(config), speculation.hot_prompt_ids
    shared_head = slice_head(head, shared, head_numerics(config.model, 1).dense)
    ids = shared.to(weight.device)
    return shared_head, HotIds.over(weight, scale, row_of.numpy(), ids, sizes)


def build_state(
    config: EngineConfig,
    target: Decoder,
    draft: Draft | None,
    memory: Memory,
    policy: Policy,
    limits: Limits,
) -> State:
    """Buffers for as many requests as may decode together."""
    speculation, shape = config.speculation, policy.shape
    n_seats = n_seats_of(config)
    is_tree = speculation.method != "none"
    n_taps = 0 if draft is None else len(draft.head.taps)
    is_left_alone = draft is not None and policy.learns
    run = longest_run(config)
    sizes = StateSizes(
        report=ReportSizes(
            n_seats=n_seats,
            run=run + (shape.depth + 1 if is_tree else 1),
            n_verify=run + shape.verify,
            gains=(shape.depth, shape.top_k + 1),
            counts_ties=_near_limits(config, 0) is not None,
            has_runs=run > 0,
        ),
        n_nodes=run + n_nodes_of(speculation),
        features=(n_taps, target.geometry.hidden_size),
        vocabulary=limits.vocabulary,
        inert_row=memory.inert_row,
        n_history=history_of(draft.head.reach) if is_left_alone and draft else 0,
        n_text=limits.context + 1 if "ngram" in speculation.method else 0,
        n_pages=PAGES[config.engine],
    )
    return allocate_state(sizes, target.embedding.dtype, config.model.device)


def _build_previews(
    config: EngineConfig, target: Decoder, memory: Memory, state: State
) -> Previews | None:
    """The memory of previews, where a configuration has them on."""
    if not config.partial.is_on:
        return None
    _refuse_previews(config, target)
    sizes = PreviewSizes(
        n_seats=state.n_seats,
        n_near=n_previewed(config),
        n_rows=memory.inert_row + 1,
        longest=longest_run(config),
        width=near_width(config),
        row_multiple=row_multiple(config.model),
        tiles=config.graphs.tiles,
    )
    report = Report(*(torch.zeros_like(part) for part in vars(state.report).values()))
    return Previews.empty(config.partial, sizes, target, report)


def _refuse_previews(config: EngineConfig, target: Decoder) -> None:
    """Everything that a preview cannot do, by name."""
    partial, speculation = config.partial, config.speculation
    reaches = [layer.attention.rule for layer in target.layers]
    refusals = {
        "needs rule match: coins would be tossed twice for one token": speculation.rule != "match",
        "needs drafts: speculation.method is none": speculation.method == "none",
        "needs one process: tensor_parallel is more": config.model.tensor_parallel > 1,
        "is not for targets with sliding windows": any(r.reach.window for r in reaches),
        f"has no layer left behind {partial.n_dense_layers} dense ones": len(reaches)
        <= partial.n_dense_layers,
        "has no room for a run: lower speculation.nodes or depth, or raise"
        " partial.n_spec_tokens_buf": longest_run(config) == 0,
    }
    for reason, is_so in refusals.items():
        require(not is_so, f"partial.specpv {partial.specpv} {reason}")
