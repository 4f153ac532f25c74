"""Tiny targets and draft heads written in every public dialect; shared, not a test itself.

    target = write_target(tmp_path / "target")                      an HF-format directory
    case   = CASES["modelopt_v3"]
    head   = write_head(tmp_path / "head", case)                    a head in that dialect

The spelling of each dialect is written here by hand, independently of the loader it judges.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.oracles.eagle3_straight_line import Plan

VOCAB, HIDDEN, LAYERS = 61, 32, 8
HEADS, KV_HEADS, HEAD_DIM, WIDTH = 4, 2, 8, 48
DRAFT_VOCAB = 23
EPS = 3e-3  # large enough to be missed in the logits

Tensors = dict[str, Tensor]


def random_tensor(generator: torch.Generator, *shape: int) -> Tensor:
    scale = 1.2 * shape[-1] ** -0.5 if len(shape) > 1 else 0.7
    return torch.randn(shape, generator=generator) * scale


def random_norm(generator: torch.Generator, width: int) -> Tensor:
    return torch.rand(width, generator=generator) * 0.8 + 0.6


def target_config(**fields: Any) -> dict[str, Any]:
    """config.json of the tiny target."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": EPS,
        "rope_theta": 5000.0,
        "max_position_embeddings": 512,
    }
    return config | fields


def write_target(directory: Path, seed: int = 7, **fields: Any) -> Path:
    """A random Llama-like target; its weights have the size of trained ones."""
    config = target_config(**fields)
    hidden, width, vocab = (
        config[name] for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    head_dim = hidden // config["num_attention_heads"]
    n_key = config["num_key_value_heads"] * head_dim
    g = torch.Generator().manual_seed(seed)
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocab, hidden, generator=g) * 0.5,
        "model.norm.weight": random_norm(g, hidden),
        "lm_head.weight": random_tensor(g, vocab, hidden),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for name, n_out, n_in in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", n_key, hidden),
            ("self_attn.v_proj", n_key, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", width, hidden),
            ("mlp.up_proj", width, hidden),
            ("mlp.down_proj", hidden, width),
        ):
            tensors[f"{layer}.{name}.weight"] = random_tensor(g, n_out, n_in)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = random_norm(g, hidden)
    save(directory, config, tensors)
    return directory


def save(directory: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """Write config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {name: t.contiguous() for name, t in tensors.items()}, directory / "model.safetensors"
    )


@dataclass(frozen=True)
class Case:
    """One dialect: the head in plain names, and how a checkpoint of that dialect spells it."""

    plan: Plan
    weights: Callable[[], Tensors]
    boundaries: tuple[int, ...]  # what the loader must resolve
    config: dict[str, Any]
    layer_name: str = "midlayer"  # of layer 0
    prefix: str = ""  # before everything but the LM head and the maps
    extra_norm: str = "input_layernorm"
    chunk_names: tuple[str, ...] = ("fc_norm.0", "fc_norm.1", "fc_norm.2")
    has_map: bool = True
    left_out: tuple[str, ...] = ()  # plain names the file does not store
    origins: dict[str, str] = field(default_factory=dict)


def plan_of(**fields: Any) -> Plan:
    return Plan(HEADS, KV_HEADS, HEAD_DIM, eps=EPS, **fields)


def head_weights(
    hidden: int = HIDDEN,
    n_captures: int = 3,
    n_layers: int = 1,
    draft_vocab: int = DRAFT_VOCAB,
    options: tuple[str, ...] = (),
    seed: int = 11,
) -> Callable[[], Tensors]:
    """Random weights in plain names; options: bias, qk_norm, fc_bias, input_norm, chunk_norms."""

    def make() -> Tensors:
        g = torch.Generator().manual_seed(seed)
        n_query, n_key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        w = {
            "norm": random_norm(g, hidden),
            "lm_head": random_tensor(g, draft_vocab, hidden) * 2,
            "embed": torch.randn(VOCAB, hidden, generator=g) * 0.5,
        }
        if n_captures:
            w["fc"] = random_tensor(g, hidden, n_captures * HIDDEN)
        for i in range(n_layers):
            n_in = hidden if i else 2 * hidden
            shapes = {"q": (n_query, n_in), "k": (n_key, n_in), "v": (n_key, n_in)}
            shapes |= {"o": (hidden, n_query), "gate": (WIDTH, hidden), "up": (WIDTH, hidden)}
            shapes |= {"down": (hidden, WIDTH)}
            for name, shape in shapes.items():
                w[f"{i}.{name}"] = random_tensor(g, *shape)
                if "bias" in options and name in ("q", "k", "v", "o"):
                    w[f"{i}.{name}_bias"] = random_tensor(g, shape[0])
            for name in ("hidden_norm", "post_norm", *(() if i else ("embed_norm",))):
                w[f"{i}.{name}"] = random_norm(g, hidden)
            if "qk_norm" in options:
                for name in ("q_norm", "k_norm"):
                    w[f"{i}.{name}"] = random_norm(g, HEAD_DIM)
        if "fc_bias" in options:
            w["fc_bias"] = random_tensor(g, hidden)
        if "input_norm" in options:
            w["input_norm"] = random_norm(g, n_captures * HIDDEN)
        if "chunk_norms" in options:
            for k in range(n_captures):
                w[f"chunk_norm_{k}"] = random_norm(g, HIDDEN)
        return w

    return make


def draft_ids() -> Tensor:
    """The draft vocabulary, neighbours among it as in any list of frequent tokens."""
    g = torch.Generator().manual_seed(3)
    return torch.randperm(VOCAB, generator=g)[:DRAFT_VOCAB].sort().values


def base_config(**fields: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": 16,  # shorter than the tests: no limit may come from it
    }
    return {key: value for key, value in (config | fields).items() if value is not ...}


def speculators_config(layer: dict[str, Any], **fields: Any) -> dict[str, Any]:
    own = {"architectures", "draft_vocab_size"}
    config = base_config(**layer)
    inner = {key: value for key, value in config.items() if key not in own}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config["draft_vocab_size"],
        "transformer_layer_config": inner,
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": []},
        **fields,
    }


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA3_PLAN = (8.0, 1.0, 4.0, 16)
MODELOPT = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
IDS = "eagle_aux_hidden_state_layer_ids"
SHARED = ("embed", "lm_head")

CASES: dict[str, Case] = {
    "official": Case(
        plan_of(),
        head_weights(),
        (2, 4, 5),
        base_config(architectures=["LlamaForCausalLM"]),
        left_out=("embed",),
        origins={"boundaries": "default", "norm_before_residual": "default"},
    ),
    "specforge": Case(
        plan_of(),
        head_weights(),
        (2, 4, 6),
        base_config(eagle_config={IDS: [1, 3, 5], "use_aux_hidden_state": True}),
        left_out=("embed",),
        origins={"boundaries": "config"},
    ),
    "modelopt": Case(
        plan_of(theta=700.0, llama3=LLAMA3_PLAN),
        head_weights(draft_vocab=VOCAB),
        (2, 5, 7),
        base_config(
            draft_vocab_size=None,
            rope_theta=700.0,
            rope_scaling=LLAMA3,
            eagle_config={**MODELOPT, IDS: [1, 4, 6]},
        ),
        layer_name="layers.0",
        has_map=False,
        left_out=SHARED,
        origins={"embedding": "target", "lm_head": "target"},
    ),
    "modelopt_final_state": Case(
        plan_of(),
        head_weights(n_captures=0, draft_vocab=VOCAB),
        (LAYERS,),
        base_config(
            draft_vocab_size=None, eagle_config={**MODELOPT, "use_aux_hidden_state": False}
        ),
        layer_name="layers.0",
        has_map=False,
        left_out=SHARED,
    ),
    "modelopt_input_norm": Case(
        plan_of(),
        head_weights(options=("input_norm",)),
        (4, 6, 8),
        base_config(eagle_config={**MODELOPT, "norm_before_fc": True, IDS: [4, 6, 8]}),
        layer_name="layers.0",
        left_out=("embed",),
    ),
    "modelopt_post_norm": Case(
        plan_of(norm_output=True),
        head_weights(),
        (1, 2, 3),
        base_config(eagle_config={**MODELOPT, "return_hidden_post_norm": True, IDS: [0, 1, 2]}),
        layer_name="layers.0",
    ),
    "speculators": Case(
        plan_of(norm_before_residual=True, theta=900.0),
        head_weights(options=("qk_norm",)),
        (2, 4, 6),
        speculators_config(
            {
                "rope_parameters": {"rope_type": "default", "rope_theta": 900.0},
                "head_dim": HEAD_DIM,
            },
            norm_before_residual=True,
            target_hidden_size=HIDDEN,
            **{IDS: [2, 4, 6]},
        ),
        layer_name="layers.0",
        origins={"norm_before_residual": "config", "embedding": "file"},
    ),
    "speculators_silent": Case(
        plan_of(),
        head_weights(),
        (2, 4, 5),
        speculators_config({}),
        layer_name="layers.0",
        prefix="model.",
        origins={"norm_before_residual": "default"},
    ),
    "narrow": Case(
        plan_of(),
        head_weights(hidden=24),
        (2, 4, 5),
        base_config(hidden_size=24, head_dim=HEAD_DIM, target_hidden_size=HIDDEN),
        prefix="model.",
    ),
    "legacy_chunk_norms": Case(
        plan_of(),
        head_weights(options=("chunk_norms",)),
        (2, 4, 5),
        base_config(use_aux_norm=True),
        chunk_names=("aux_norm_low", "aux_norm_mid", "aux_norm_high"),
        left_out=("embed",),
    ),
    "chunk_norms_and_norm_output": Case(
        plan_of(norm_output=True),
        head_weights(options=("chunk_norms",)),
        (2, 4, 5),
        base_config(fc_norm=True, norm_output=True),
        left_out=("embed",),
    ),
    "two_layers": Case(
        plan_of(n_layers=2),
        head_weights(n_layers=2),
        (2, 4, 5),
        base_config(num_hidden_layers=2),
        layer_name="layers.0",
    ),
    "two_layers_hidden_norm": Case(
        plan_of(n_layers=2, norm_before_residual=True),
        head_weights(n_layers=2),
        (2, 4, 5),
        base_config(num_hidden_layers=2, norm_before_residual=True),
        extra_norm="hidden_norm",
    ),
    "biases_and_scale": Case(
        plan_of(logit_scale=0.25),
        head_weights(options=("bias", "fc_bias")),
        (2, 4, 5),
        base_config(attention_bias=True, bias=True, logit_scale=0.25),
        left_out=("embed",),
    ),
    "one_capture": Case(
        plan_of(),
        head_weights(n_captures=1),
        (6,),
        base_config(eagle_config={IDS: [5]}),
        left_out=("embed",),
    ),
    "two_captures_counted": Case(
        plan_of(),
        head_weights(n_captures=2),
        (7, 3),  # as listed: fc's columns follow this order, sorted or not
        base_config(num_aux_hidden_states=2, **{IDS: [7, 3]}),
        left_out=("embed",),
    ),
    "window": Case(
        plan_of(window=5),
        head_weights(),
        (2, 4, 5),
        base_config(sliding_window=5, layer_types=["sliding_attention"]),
        left_out=("embed",),
        origins={"reach": "config"},
    ),
    "multimodal_rope": Case(
        plan_of(theta=800.0),
        head_weights(),
        (2, 4, 5),
        base_config(rope_theta=800.0, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}),
        left_out=("embed",),
    ),
    "tied_own_embedding": Case(
        plan_of(),
        head_weights(draft_vocab=VOCAB),
        (2, 4, 5),
        base_config(tie_word_embeddings=True, draft_vocab_size=VOCAB),
        has_map=False,
        left_out=("lm_head",),
        origins={"lm_head": "config"},
    ),
}

ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def stored_name(case: Case, plain: str) -> str:
    """The name a checkpoint of this dialect gives to a plain one."""
    part = "bias" if plain.endswith("_bias") else "weight"
    plain = plain.removesuffix("_bias")
    if plain == "lm_head":
        return f"lm_head.{part}"
    whole = {"embed": "embed_tokens", "norm": "norm", "fc": "fc", "input_norm": "input_norm"}
    if plain in whole:
        return f"{case.prefix}{whole[plain]}.{part}"
    if plain.startswith("chunk_norm_"):
        return f"{case.prefix}{case.chunk_names[int(plain[-1])]}.{part}"
    layer, name = plain.split(".")
    place = case.layer_name if layer == "0" else f"layers.{layer}"
    norms = {"embed_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}
    norms["hidden_norm"] = "hidden_norm" if layer == "0" else case.extra_norm
    if name in norms:
        inner = norms[name]
    elif name in MLP:
        inner = f"mlp.{MLP[name]}"
    else:
        inner = f"self_attn.{ATTENTION.get(name, name)}"
    return f"{case.prefix}{place}.{inner}.{part}"


def stored_tensors(case: Case) -> Tensors:
    """The file of a case, before any corruption."""
    tensors = {
        stored_name(case, plain): tensor
        for plain, tensor in case.weights().items()
        if plain not in case.left_out
    }
    if case.has_map:
        ids = draft_ids()
        tensors["d2t"] = ids - torch.arange(DRAFT_VOCAB)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def write_head(directory: Path, case: Case) -> Path:
    """Write the head of a case."""
    save(directory, case.config, stored_tensors(case))
    return directory


def oracle_weights(case: Case, target: Tensors) -> Tensors:
    """Plain weights with whatever the dialect shares filled in from the target's file."""
    weights = case.weights()
    if "embed" in case.left_out:
        weights["embed"] = target["model.embed_tokens.weight"]
    if "lm_head" in case.left_out:
        is_tied = bool(case.config.get("tie_word_embeddings"))
        weights["lm_head"] = weights["embed"] if is_tied else target["lm_head.weight"]
    return weights
