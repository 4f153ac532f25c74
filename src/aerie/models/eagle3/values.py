"""The normal form of a draft head: its sizes, its convention and what its file stores."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.attention.contract import Reach
from aerie.models.resolved import Resolved
from aerie.models.rope import RopeSettings


@dataclass(frozen=True)
class HeadGeometry:
    """Everything a head's shape depends on."""

    hidden_size: int
    target_hidden_size: int
    n_captures: int  # 0 when the head reads the target's final hidden state instead
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int  # the target's
    draft_vocab_size: int
    rope: RopeSettings
    norm_eps: float


@dataclass(frozen=True)
class HeadConvention:
    """How states flow through a head: what no tensor's shape can tell.

    A boundary b is the whole residual stream entering layer b of the target; it is the output
    of layer b - 1.
    """

    boundaries: tuple[int, ...]  # in the order the head reads them
    uses_captures: bool  # false: one boundary, the last, taken after the target's final norm
    is_residual_normed: bool  # the block adds to norm(x) instead of x
    has_input_norm: bool  # one norm over all captured states
    has_chunk_norms: bool  # one norm for each captured state
    is_output_normed: bool  # the next draft step reads norm(y) instead of y
    logit_scale: float
    reach: Reach


@dataclass(frozen=True)
class HeadStorage:
    """What the file holds beside the tensors every head has; derived from the names alone."""

    has_own_embedding: bool
    has_own_head: bool
    has_fc_bias: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    extra_norm: str  # name of the pre-attention norm in layers after the first


@dataclass(frozen=True)
class HeadSummary:
    """A loaded head described: the normal form, and a reason for every choice that was made."""

    dialect: str
    geometry: HeadGeometry
    convention: HeadConvention
    storage: HeadStorage
    resolved: tuple[Resolved[object], ...]


def usual_boundaries(n_target_layers: int) -> tuple[int, int, int]:
    """What a head reads that says nothing: the official code's choice, and the usual one since."""
    return 2, n_target_layers // 2, n_target_layers - 3


def both_notations(boundaries: tuple[int, ...]) -> str:
    """Boundaries, and the same states as layer outputs: engines differ in which they write."""
    outputs = [boundary - 1 for boundary in boundaries]
    return f"boundaries {list(boundaries)} = layer outputs {outputs}"
