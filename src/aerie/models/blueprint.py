"""The blueprint of a decoder: every tensor a geometry needs, by its name in a checkpoint."""

from __future__ import annotations

from aerie.models.geometry import MXFP4_BLOCK, ExpertGeometry, Geometry
from aerie.models.linear import DENSE, LinearFormat, LinearShape
from aerie.models.tensors import BYTES, TensorSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head"


def layer_prefix(layer_idx: int) -> str:
    """Where a layer's names begin."""
    return f"model.layers.{layer_idx}"


def layer_linears(geometry: Geometry) -> dict[str, LinearShape]:
    """The linear layers of one decoder layer, without its prefix; the same in every layer."""
    attention, hidden = geometry.attention, geometry.hidden_size
    n_query = attention.n_heads * attention.head_dim
    n_key = attention.n_kv_heads * attention.head_dim
    linears = {
        "self_attn.q_proj": LinearShape(n_query, hidden, attention.has_qkv_bias),
        "self_attn.k_proj": LinearShape(n_key, hidden, attention.has_qkv_bias),
        "self_attn.v_proj": LinearShape(n_key, hidden, attention.has_qkv_bias),
        "self_attn.o_proj": LinearShape(hidden, n_query, attention.has_output_bias),
    }
    if geometry.experts is None:
        width, bias = geometry.mlp_width, geometry.has_mlp_bias
        linears["mlp.gate_proj"] = LinearShape(width, hidden, bias)
        linears["mlp.up_proj"] = LinearShape(width, hidden, bias)
        linears["mlp.down_proj"] = LinearShape(hidden, width, bias)
    return linears


def router_shape(geometry: Geometry, experts: ExpertGeometry) -> LinearShape:
    """The router is never quantised."""
    return LinearShape(experts.n_experts, geometry.hidden_size, has_bias=True)


def head_shape(geometry: Geometry) -> LinearShape:
    """The LM head."""
    return LinearShape(geometry.vocab_size, geometry.hidden_size)


def expected_tensors(geometry: Geometry, linears: LinearFormat) -> tuple[TensorSpec, ...]:
    """All tensors of a checkpoint whose layers' linears are stored in the given format."""
    vocabulary = (geometry.vocab_size, geometry.hidden_size)
    specs = [
        TensorSpec(EMBEDDING, vocabulary),
        TensorSpec(FINAL_NORM, (geometry.hidden_size,)),
        # A tied head may still be written; the loader then demands that it is the embedding.
        TensorSpec(f"{HEAD}.weight", vocabulary, is_optional=geometry.has_tied_head),
    ]
    for layer_idx in range(geometry.n_layers):
        prefix = layer_prefix(layer_idx)
        specs += _layer_extras(geometry, prefix)
        for name, shape in layer_linears(geometry).items():
            specs += linears.tensors(f"{prefix}.{name}", shape)
    return tuple(specs)


def _layer_extras(geometry: Geometry, prefix: str) -> list[TensorSpec]:
    """Norms, sinks, router and experts: what is not a plain linear layer."""
    attention, hidden = geometry.attention, (geometry.hidden_size,)
    specs = [
        TensorSpec(f"{prefix}.input_layernorm.weight", hidden),
        TensorSpec(f"{prefix}.post_attention_layernorm.weight", hidden),
    ]
    if attention.has_qk_norm:
        specs.append(TensorSpec(f"{prefix}.self_attn.q_norm.weight", (attention.head_dim,)))
        specs.append(TensorSpec(f"{prefix}.self_attn.k_norm.weight", (attention.head_dim,)))
    if attention.has_sinks:
        specs.append(TensorSpec(f"{prefix}.self_attn.sinks", (attention.n_heads,)))
    if geometry.experts is not None:
        router = router_shape(geometry, geometry.experts)
        specs += DENSE.tensors(f"{prefix}.mlp.router", router)
        specs += _expert_tensors(geometry, geometry.experts, f"{prefix}.mlp.experts")
    return specs


def _expert_tensors(geometry: Geometry, experts: ExpertGeometry, prefix: str) -> list[TensorSpec]:
    specs: list[TensorSpec] = []
    hidden, width, n = geometry.hidden_size, geometry.mlp_width, experts.n_experts
    for name, n_out, n_in in (("gate_up_proj", 2 * width, hidden), ("down_proj", hidden, width)):
        specs.append(TensorSpec(f"{prefix}.{name}_bias", (n, n_out)))
        if experts.is_mxfp4:
            blocks = (n, n_out, n_in // MXFP4_BLOCK)
            specs.append(TensorSpec(f"{prefix}.{name}_scales", blocks, BYTES))
            packed = (*blocks, MXFP4_BLOCK // 2)
            specs.append(TensorSpec(f"{prefix}.{name}_blocks", packed, BYTES))
        else:
            # Unlike a linear layer's weight, stored input first.
            specs.append(TensorSpec(f"{prefix}.{name}", (n, n_in, n_out)))
    return specs
