"""Geometry: the sizes and features of a decoder, read strictly from config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aerie.models.architectures import Architecture, Windows, find_architecture
from aerie.models.fields import Fields, read_config
from aerie.models.quantisation import EXPERTS, LINEARS, MXFP4, read_method
from aerie.models.rope import RopeSettings
from aerie.models.rope_fields import read_rope

MXFP4_BLOCK = 32  # weights that share one scale
MAX_LAYERS = 4096
MAX_POSITIONS = 1 << 31


@dataclass(frozen=True)
class AttentionGeometry:
    """Heads, biases and reach of the attention blocks."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    windows: Windows
    has_qkv_bias: bool
    has_output_bias: bool
    has_qk_norm: bool
    has_sinks: bool


@dataclass(frozen=True)
class ExpertGeometry:
    """A mixture of experts; each is a gated MLP with a clamped activation."""

    n_experts: int
    n_active: int
    activation_alpha: float
    activation_limit: float
    is_mxfp4: bool


@dataclass(frozen=True)
class Geometry:
    """Everything the decoder's shape depends on."""

    architecture: str
    vocab_size: int  # rows of the embedding; a tokenizer may have fewer ids, never more
    hidden_size: int
    n_layers: int
    mlp_width: int
    has_mlp_bias: bool
    attention: AttentionGeometry
    experts: ExpertGeometry | None
    rope: RopeSettings
    norm_eps: float
    has_tied_head: bool
    max_positions: int


def read_geometry(directory: Path) -> Geometry:
    """Read `config.json` of a model directory; every bad field is named in one error."""
    return parse_geometry(read_config(directory))


def parse_geometry(config: Fields) -> Geometry:
    """The geometry a config describes. Raises ConfigFieldError or UnsupportedArchitectureError."""
    row = find_architecture(_architecture_name(config))
    n_layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    if config.text("hidden_act", "silu") != "silu":
        config.note("hidden_act", f"{config.text('hidden_act')!r} is not supported, only 'silu'")
    if row.needs_rope_rule and not (config.has("rope_parameters") or config.has("rope_scaling")):
        config.note("rope_scaling", f"missing, and {row.name} has no plain default")
    geometry = Geometry(
        architecture=row.name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        n_layers=n_layers,
        mlp_width=config.integer("intermediate_size"),
        has_mlp_bias=row.mlp_bias.read(config),
        attention=_read_attention(config, row, n_layers),
        experts=_read_experts(config, row),
        rope=read_rope(config, row.rope_theta),
        norm_eps=config.number("rms_norm_eps"),
        has_tied_head=config.boolean("tie_word_embeddings", False),
        max_positions=config.integer("max_position_embeddings", high=MAX_POSITIONS),
    )
    if geometry.experts and geometry.experts.is_mxfp4:
        _check_blocks(config, geometry)
    config.finish()
    return geometry


def _architecture_name(config: Fields) -> str:
    names = config.texts("architectures")
    if len(names) != 1:
        config.note("architectures", f"must name exactly one architecture, not {list(names)}")
        config.finish()
    return names[0]


def _read_attention(config: Fields, row: Architecture, n_layers: int) -> AttentionGeometry:
    n_heads = config.integer("num_attention_heads")
    n_kv_heads = config.integer("num_key_value_heads", default=n_heads)
    if n_heads % n_kv_heads:
        config.note("num_key_value_heads", f"{n_heads} heads cannot share {n_kv_heads} KV heads")
    return AttentionGeometry(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=_read_head_dim(config, row, n_heads),
        windows=row.windows(config, n_layers),
        has_qkv_bias=row.qkv_bias.read(config),
        has_output_bias=row.output_bias.read(config),
        has_qk_norm=row.has_qk_norm,
        has_sinks=row.has_sinks,
    )


def _read_head_dim(config: Fields, row: Architecture, n_heads: int) -> int:
    hidden = config.integer("hidden_size")
    if not config.has("head_dim") and row.head_dim is None and hidden % n_heads:
        config.note("hidden_size", f"{hidden} is not a multiple of num_attention_heads {n_heads}")
    head_dim = config.integer("head_dim", default=row.head_dim or max(1, hidden // n_heads))
    if head_dim % 2:
        config.note("head_dim", f"{head_dim} is odd; rotary embedding pairs dimensions")
    return head_dim


def _read_experts(config: Fields, row: Architecture) -> ExpertGeometry | None:
    method = read_method(config, EXPERTS if row.has_experts else LINEARS)
    if not row.has_experts:
        return None
    n_experts = config.integer("num_local_experts")
    n_active = config.integer("num_experts_per_tok")
    if n_active > n_experts:
        config.note("num_experts_per_tok", f"{n_active} of only {n_experts} experts")
    return ExpertGeometry(
        n_experts=n_experts,
        n_active=n_active,
        activation_alpha=config.number("swiglu_alpha", 1.702),
        activation_limit=config.number("swiglu_limit", 7.0),
        is_mxfp4=method == MXFP4,
    )


def _check_blocks(config: Fields, geometry: Geometry) -> None:
    for name, width in (
        ("hidden_size", geometry.hidden_size),
        ("intermediate_size", geometry.mlp_width),
    ):
        if width % MXFP4_BLOCK:
            config.note(name, f"{width} is not a multiple of {MXFP4_BLOCK}, as mxfp4 needs")
