"""Reads a draft head's config.json, in any public form, into what it declares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aerie.attention.contract import Reach
from aerie.errors import UnsupportedArchitectureError
from aerie.models.architectures import misspelt
from aerie.models.eagle3.capture import DeclaredCaptures, read_captures
from aerie.models.fields import Fields, read_config
from aerie.models.packed import PackedFormat
from aerie.models.packed_formats import read_packed
from aerie.models.resolved import CONFIG, DEFAULT, Resolved
from aerie.models.rope import RopeSettings
from aerie.models.rope_fields import read_rope

DEFAULT_THETA = 10000.0  # never the target's: heads without the field were trained with this

OFFICIAL, SPECFORGE, MODELOPT, SPECULATORS = "official", "specforge", "modelopt", "speculators"

# What `architectures` may name. All of these are one Llama-like block with a doubled input.
ARCHITECTURES = (
    "LlamaForCausalLM",
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
    "Eagle3Qwen3ForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM",
    "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM",
)
REFUSED_ARCHITECTURES = {
    "Eagle3DeepseekV2ForCausalLM": "its attention is latent (MLA)",
    "Eagle3DeepseekV3ForCausalLM": "its attention is latent (MLA)",
    "PEagleDraftModel": "it drafts in parallel (P-EAGLE)",
    "PeagleLlamaForCausalLM": "it drafts in parallel (P-EAGLE)",
    "PeagleQwen3ForCausalLM": "it drafts in parallel (P-EAGLE)",
}

# ModelOpt's switches with the only value this head implements.
MODELOPT_SWITCHES = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "eh_proj_before_attn": False,
}
MODELOPT_ONLY = {*MODELOPT_SWITCHES, "next_layer_regular", "parallel_draft_step"}


@dataclass(frozen=True)
class DeclaredSizes:
    """Sizes as the config states them; None where it is silent and the tensors must tell."""

    hidden_size: int | None
    target_hidden_size: int | None
    mlp_width: int | None
    n_layers: int | None
    n_heads: int
    n_kv_heads: int
    head_dim: int | None
    vocab_size: int | None
    draft_vocab_size: int | None


@dataclass(frozen=True)
class DeclaredConvention:
    """Everything about the flow of states that the config states or leaves to a default."""

    captures: DeclaredCaptures
    uses_captures: bool
    residual: Resolved[bool]
    has_input_norm: bool
    has_chunk_norms: bool
    is_output_normed: bool
    logit_scale: float
    reach: Reach


@dataclass(frozen=True)
class DeclaredStorage:
    """Statements the file must bear out; None where the config is silent."""

    attention_bias: bool | None
    mlp_bias: bool | None
    fc_bias: bool | None
    is_head_tied: bool


@dataclass(frozen=True)
class HeadConfig:
    """One head's config.json in normal form, before its tensors have been seen."""

    dialect: str
    sizes: DeclaredSizes
    convention: DeclaredConvention
    storage: DeclaredStorage
    rope: RopeSettings
    norm_eps: float
    quantisation: PackedFormat | None
    trained_positions: int | None  # max_position_embeddings; None where the config is silent


def read_head_config(directory: Path) -> HeadConfig:
    """Read `config.json` of a head's directory; every bad field is named in one error."""
    return parse_head_config(read_config(directory))


def parse_head_config(config: Fields) -> HeadConfig:
    """What a config declares. Raises ConfigFieldError or UnsupportedArchitectureError."""
    _check_architecture(config)
    dialect = _dialect(config)
    nested = config.section("eagle_config")
    layer = config.section("transformer_layer_config") if dialect == SPECULATORS else config
    if layer.text("hidden_act", "silu") != "silu":
        layer.note("hidden_act", f"{layer.text('hidden_act')!r} is not supported, only 'silu'")
    _check_switches(config, nested)
    head = HeadConfig(
        dialect=dialect,
        sizes=_read_sizes(config, layer),
        convention=_read_convention(config, nested, layer, dialect),
        storage=DeclaredStorage(
            attention_bias=_stated(layer, "attention_bias"),
            mlp_bias=_stated(layer, "mlp_bias"),
            fc_bias=_stated(config, "bias"),
            is_head_tied=config.boolean("tie_word_embeddings", False),
        ),
        rope=_read_rope(layer),
        norm_eps=layer.number("rms_norm_eps"),
        quantisation=read_packed(config),
        trained_positions=_optional(layer, "max_position_embeddings"),
    )
    config.finish()
    return head


def _check_architecture(config: Fields) -> None:
    names = config.texts("architectures") if config.has("architectures") else ()
    for name in names:
        if name in REFUSED_ARCHITECTURES:
            why = REFUSED_ARCHITECTURES[name]
            raise UnsupportedArchitectureError(f"draft head {name} is not supported: {why}")
        if name not in ARCHITECTURES:
            raise UnsupportedArchitectureError(
                f"{name!r} is not an EAGLE-3 head that aerie knows. "
                f"{misspelt(name, ARCHITECTURES)}Known: {', '.join(ARCHITECTURES)}"
            )


def _dialect(config: Fields) -> str:
    if config.has("speculators_model_type"):
        kind = config.text("speculators_model_type")
        if kind != "eagle3":
            config.note("speculators_model_type", f"{kind!r} is not supported, only 'eagle3'")
        return SPECULATORS
    nested = config.section("eagle_config")
    if MODELOPT_ONLY & nested.values.keys():
        return MODELOPT
    names = config.texts("architectures") if config.has("architectures") else ()
    return SPECFORGE if nested.values or "LlamaForCausalLM" not in names else OFFICIAL


def _check_switches(config: Fields, nested: Fields) -> None:
    """Switches that change the network must have the value this network has."""
    for name, wanted in MODELOPT_SWITCHES.items():
        if nested.boolean(name, wanted) != wanted:
            nested.note(f"eagle_config.{name}", f"{not wanted} is not supported")
    if nested.integer("parallel_draft_step", 1) != 1:
        nested.note("eagle_config.parallel_draft_step", "drafting in parallel is not supported")
    for name in ("mask_token_id", "pard_token", "ptd_token_id"):
        if config.has(name):
            config.note(name, "belongs to parallel drafting (P-EAGLE, PARD), not supported")
    if (
        not nested.boolean("next_layer_regular", True)
        and config.integer("num_hidden_layers", 1) > 1
    ):
        nested.note("eagle_config.next_layer_regular", "only regular further layers are supported")


def _read_sizes(config: Fields, layer: Fields) -> DeclaredSizes:
    n_heads = layer.integer("num_attention_heads")
    n_kv_heads = layer.integer("num_key_value_heads", default=n_heads)
    if n_heads % n_kv_heads:
        layer.note("num_key_value_heads", f"{n_heads} heads cannot share {n_kv_heads} KV heads")
    head_dim = _optional(layer, "head_dim")
    if head_dim is not None and head_dim % 2:
        layer.note("head_dim", f"{head_dim} is odd; rotary embedding pairs dimensions")
    return DeclaredSizes(
        hidden_size=_optional(layer, "hidden_size"),
        target_hidden_size=_optional(config, "target_hidden_size"),
        mlp_width=_optional(layer, "intermediate_size"),
        n_layers=_optional(layer, "num_hidden_layers"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=_optional(layer, "vocab_size"),
        draft_vocab_size=_optional(config, "draft_vocab_size"),
    )


def _read_convention(
    config: Fields, nested: Fields, layer: Fields, dialect: str
) -> DeclaredConvention:
    owner = nested if nested.has("use_aux_hidden_state") else config
    input_norm = _either(config, nested, "norm_before_fc")
    chunk_norms = config.boolean("fc_norm", False) or config.boolean("use_aux_norm", False)
    if input_norm and chunk_norms:
        # vLLM and SGLang would apply both, TensorRT-LLM one, speculators refuses: no reading
        # can be right for all such heads.
        config.note("norm_before_fc", "and fc_norm are both set; engines disagree on what it means")
    return DeclaredConvention(
        captures=read_captures(config, nested),
        uses_captures=owner.boolean("use_aux_hidden_state", True),
        residual=_read_residual(config, dialect),
        has_input_norm=input_norm,
        has_chunk_norms=chunk_norms,
        is_output_normed=config.boolean("norm_output", False)
        or nested.boolean("return_hidden_post_norm", False),
        logit_scale=config.number("logit_scale", 1.0),
        reach=_read_reach(layer),
    )


def _read_residual(config: Fields, dialect: str) -> Resolved[bool]:
    name = "norm_before_residual"
    if config.has(name):
        return Resolved(name, config.boolean(name), CONFIG, "stated")
    reason = "absent, and the format's default is false"
    if dialect == SPECULATORS:
        reason = "absent; vLLM would read true and speculators false, so the probe must confirm it"
    return Resolved(name, False, DEFAULT, reason)


def _read_reach(layer: Fields) -> Reach:
    """A window the head was trained with; sinks are a choice of the engine, never in a file."""
    types = set(layer.texts("layer_types")) if layer.has("layer_types") else set()
    if len(types) > 1:
        layer.note("layer_types", f"mixes {sorted(types)}; all layers of a head must agree")
    is_on = layer.boolean("use_sliding_window", True) and types != {"full_attention"}
    if not is_on or not layer.has("sliding_window"):
        return Reach()
    return Reach(window=layer.integer("sliding_window"))


def _read_rope(layer: Fields) -> RopeSettings:
    name = "rope_parameters" if layer.has("rope_parameters") else "rope_scaling"
    section = layer.section(name)
    if not section.has("mrope_section"):
        return read_rope(layer, DEFAULT_THETA)
    # Text positions are equal on all axes of a multimodal rotation, which makes it the plain one.
    plain = {k: v for k, v in section.values.items() if k == "rope_theta"}
    flat = Fields({**layer.values, name: plain}, layer.source)
    flat.problems = layer.problems
    return read_rope(flat, DEFAULT_THETA)


def _either(config: Fields, nested: Fields, name: str) -> bool:
    owner = nested if nested.has(name) else config
    if nested.has(name) and config.has(name) and nested.boolean(name) != config.boolean(name):
        config.note(name, "differs between the top level and eagle_config")
    return owner.boolean(name, False)


def _optional(config: Fields, name: str) -> int | None:
    return config.integer(name) if config.has(name) else None


def _stated(config: Fields, name: str) -> bool | None:
    return config.boolean(name) if config.has(name) else None
