"""Names of a draft head's tensors: every public spelling, rewritten to one normal form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from aerie.models.rope_buffers import is_buffer
from aerie.models.tensors import Offence

# Applied in order to the whole name. The normal form is the decoder's own, without `model.`.
RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^(?:draft_model\.)?model\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)

# Tensors of relatives of EAGLE-3 that this head does not implement: pattern, what it tells.
FOREIGN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"mask_hidden"), "a P-EAGLE head (parallel drafting); not supported"),
    (
        re.compile(r".*\.(?:q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\..*"),
        "a head with latent attention (MLA); not supported",
    ),
    (re.compile(r"eh_proj\..*"), "an EAGLE-3 variant with eh_proj before attention; not supported"),
    (re.compile(r".*\.mlp\.(?:experts|router|gate)\..*"), "a head with experts; not supported"),
)

# What the absence of a tensor tells.
ABSENT = {
    "layers.0.hidden_norm.weight": (
        "Every EAGLE-3 head has a hidden_norm: this is a whole model, or another kind of draft "
        "(EAGLE 1 or 2)."
    )
}

EMBEDDING, FINAL_NORM, HEAD, FC = "embed_tokens.weight", "norm.weight", "lm_head", "fc"
INPUT_NORM = "input_norm.weight"
DRAFT_TO_TARGET, TARGET_TO_DRAFT = "d2t", "t2d"


@dataclass(frozen=True)
class NameTable:
    """Stored names by normal name; rotary tables, which hold nothing trained, are apart."""

    stored: dict[str, str]
    buffers: tuple[str, ...]
    offences: tuple[Offence, ...]


def normalise(name: str) -> str:
    """The normal form of one stored name."""
    for pattern, replacement in RULES:
        name = pattern.sub(replacement, name)
    return name


def normalise_all(names: Iterable[str]) -> NameTable:
    """Normal forms of a whole checkpoint; two names for one tensor are an offence."""
    stored: dict[str, str] = {}
    buffers: list[str] = []
    offences: list[Offence] = []
    for name in sorted(names):
        normal = normalise(name)
        if is_buffer(normal):
            buffers.append(name)
        elif normal in stored:
            detail = f"is stored twice, as {stored[normal]} and as {name}"
            offences.append(Offence("ambiguous", normal, detail))
        else:
            stored[normal] = name
    return NameTable(stored, tuple(buffers), tuple(offences))


def explained(offence: Offence) -> Offence:
    """The offence with what it tells of its checkpoint, if it tells anything."""
    if offence.kind == "missing":
        return replace(offence, hint=ABSENT.get(offence.name, ""))
    meanings = [meaning for pattern, meaning in FOREIGN if pattern.fullmatch(offence.name)]
    if offence.kind == "unknown" and meanings:
        return replace(offence, detail=f"({meanings[0]})")
    return offence


def chunk_norm(chunk_idx: int) -> str:
    """The norm of one captured state."""
    return f"fc_norm.{chunk_idx}.weight"


def layer_prefix(layer_idx: int) -> str:
    """Where a draft layer's names begin."""
    return f"layers.{layer_idx}"
