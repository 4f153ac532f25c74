"""Decides what a head's config leaves open: options first, and a reason for every value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aerie.attention.contract import Reach
from aerie.models.eagle3.capture import final_boundary, resolve_boundaries
from aerie.models.eagle3.config import HeadConfig
from aerie.models.eagle3.names import EMBEDDING, HEAD
from aerie.models.eagle3.values import HeadConvention, HeadGeometry, HeadStorage
from aerie.models.linear import DENSE, DenseFormat
from aerie.models.packed import BY_DEVICE, PackedProducts
from aerie.models.resolved import CONFIG, DEFAULT, FILE, OPTION, TARGET, Resolved
from aerie.models.tensors import Offence

# A head that saw whole texts rests its attention on their first tokens: without them a window
# would take that rest away (StreamingLLM, arXiv 2309.17453, found four to be enough).
SINKS = 4


@dataclass(frozen=True)
class HeadOptions:
    """What the caller decides; None leaves it to the checkpoint."""

    boundaries: tuple[int, ...] | None = None  # captured states of the target
    is_residual_normed: bool | None = None  # norm_before_residual
    window: int | None = None  # positions it looks back; 0: all
    sinks: int | None = None  # first positions it sees besides
    context: int | None = None  # positions a text may have; None: as many as the head was made for
    dtype: torch.dtype | None = None  # None: the target's
    dense: DenseFormat = DENSE  # how dense layers are multiplied
    is_fused: bool = False  # one product for q, k, v and for gate, up
    packed: PackedProducts = BY_DEVICE  # how packed layers are multiplied


def resolve_convention(
    config: HeadConfig, n_target_layers: int, options: HeadOptions
) -> tuple[HeadConvention, tuple[Resolved[object], ...]]:
    """The convention to run with, and its reasons."""
    declared = config.convention
    if declared.uses_captures:
        boundaries = resolve_boundaries(declared.captures, options.boundaries, n_target_layers)
    else:
        boundaries = final_boundary(options.boundaries, n_target_layers)
    residual = declared.residual
    if options.is_residual_normed is not None:
        value = options.is_residual_normed
        residual = Resolved("norm_before_residual", value, OPTION, "given by the caller")
    reach = resolve_reach(config, options)
    convention = HeadConvention(
        boundaries=boundaries.value,
        uses_captures=declared.uses_captures,
        is_residual_normed=residual.value,
        has_input_norm=declared.has_input_norm,
        has_chunk_norms=declared.has_chunk_norms,
        is_output_normed=declared.is_output_normed,
        logit_scale=declared.logit_scale,
        reach=reach.value,
    )
    rope = f"{config.rope.kind}, theta {config.rope.theta:g}"
    reason = "the head's own; never inherited from the target, 10000 where a head is silent"
    return convention, (
        Resolved("dialect", config.dialect, CONFIG, "from the fields it uses"),
        boundaries,
        residual,
        reach,
        Resolved("rope", rope, CONFIG, reason),
    )


def resolve_sharing(
    config: HeadConfig, storage: HeadStorage, geometry: HeadGeometry
) -> tuple[tuple[Resolved[object], ...], list[Offence]]:
    """Whose embedding and whose LM head are used; an offence where sharing is impossible."""
    offences: list[Offence] = []
    is_same_width = geometry.hidden_size == geometry.target_hidden_size
    is_whole = geometry.draft_vocab_size == geometry.vocab_size
    widths = f"the head is {geometry.hidden_size} wide, the target {geometry.target_hidden_size}"
    embedding = Resolved[object]("embedding", "own", FILE, f"{EMBEDDING} is stored")
    if not storage.has_own_embedding:
        embedding = Resolved("embedding", "target's", TARGET, "none is stored, widths agree")
        if not is_same_width:
            offences.append(Offence("missing", EMBEDDING, f"and cannot be shared: {widths}"))
    output = Resolved[object]("lm_head", "own", FILE, f"{HEAD}.weight is stored")
    if not storage.has_own_head and config.storage.is_head_tied and storage.has_own_embedding:
        output = Resolved("lm_head", "own embedding", CONFIG, "tie_word_embeddings")
    elif not storage.has_own_head:
        output = Resolved("lm_head", "target's", TARGET, "none is stored, sizes agree")
        if not is_same_width:
            offences.append(Offence("missing", f"{HEAD}.weight", f"and cannot be shared: {widths}"))
    if not storage.has_own_head and not is_whole:
        detail = (
            f"and cannot be shared: draft_vocab_size is {geometry.draft_vocab_size}, the target "
            f"has {geometry.vocab_size} ids"
        )
        offences.append(Offence("missing", f"{HEAD}.weight", detail))
    drafts = f"{geometry.draft_vocab_size} of {geometry.vocab_size} target ids"
    origin = FILE if storage.has_own_head else TARGET
    vocabulary = Resolved[object]("draft vocabulary", drafts, origin, "rows of the LM head in use")
    return (embedding, output, vocabulary), offences


def resolve_reach(config: HeadConfig, options: HeadOptions) -> Resolved[Reach]:
    """How far back a head looks: as asked, as it was trained, or no further than that."""
    declared, trained = config.convention.reach, config.trained_positions
    # Trained with a window, a head rests on nothing outside of it.
    own = SINKS if declared.window is None else 0
    sinks = own if options.sinks is None else options.sinks
    if options.window is not None:
        reach = Reach(options.window, sinks) if options.window else Reach()
        return Resolved("reach", reach, OPTION, "window given by the caller")
    if declared.window is not None:
        reason = "sliding_window of the head's config"
        return Resolved("reach", Reach(declared.window, sinks), CONFIG, reason)
    if trained is None or options.context is None or options.context <= trained:
        return Resolved("reach", declared, DEFAULT, "the whole context")
    reason = f"trained on {trained} positions, and a text may have {options.context}"
    return Resolved("reach", Reach(trained, sinks), DEFAULT, reason)
