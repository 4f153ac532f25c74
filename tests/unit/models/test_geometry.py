"""Reading config.json: both spellings, the defaults of each architecture, every refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aerie.errors import ConfigFieldError, UnsupportedArchitectureError
from aerie.models.architectures import TABLE, find_architecture
from aerie.models.fields import Fields
from aerie.models.geometry import Geometry, parse_geometry
from aerie.models.rope import RopeSettings
from tests.unit.models.handmade import CONFIG, EXPERTS

GPT_OSS = CONFIG | EXPERTS
QWEN2 = CONFIG | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = CONFIG | {"architectures": ["Qwen3ForCausalLM"]}


def parse(config: dict[str, Any], **changes: Any) -> Geometry:
    return parse_geometry(Fields(config | changes, "config.json"))


def test_plain_values() -> None:
    geometry = parse(CONFIG)
    assert geometry.attention.head_dim == 8 and geometry.attention.n_kv_heads == 2
    assert geometry.attention.windows == (None, None)
    assert geometry.rope == RopeSettings("default", 10000.0)
    assert not geometry.has_tied_head and geometry.experts is None


def test_null_is_absent() -> None:
    quiet = dict.fromkeys(("head_dim", "rope_scaling", "num_key_value_heads", "layer_types"))
    geometry = parse(CONFIG, **quiet)
    assert geometry.attention.n_kv_heads == 4


@pytest.mark.parametrize("name", [row.name for row in TABLE])
def test_features_by_architecture(name: str) -> None:
    base = GPT_OSS if name.startswith("GptOss") else CONFIG
    quiet = {key: value for key, value in base.items() if key not in ("head_dim", "rope_theta")}
    geometry = parse(quiet, architectures=[name])
    attention = geometry.attention
    assert attention.has_qkv_bias == (name[:5] in ("Qwen2", "GptOs"))
    assert attention.has_output_bias == name.startswith("GptOss")
    assert attention.has_qk_norm == name.startswith("Qwen3")
    assert attention.has_sinks == name.startswith("GptOss")
    assert attention.head_dim == {"Qwen3": 128, "GptOs": 64}.get(name[:5], 8)
    assert geometry.rope.theta == (150000.0 if name.startswith("GptOss") else 10000.0)


def test_biases_follow_the_config() -> None:
    geometry = parse(CONFIG, attention_bias=True, mlp_bias=True)
    assert geometry.attention.has_qkv_bias and geometry.attention.has_output_bias
    assert geometry.has_mlp_bias
    assert not parse(QWEN2, attention_bias=True).attention.has_output_bias


def test_experts() -> None:
    experts = parse(GPT_OSS).experts
    assert experts is not None and experts.is_mxfp4
    assert (experts.activation_alpha, experts.activation_limit) == (1.702, 7.0)
    dense = parse(GPT_OSS, quantization_config=None, swiglu_limit=5.0).experts
    assert dense == replace(experts, is_mxfp4=False, activation_limit=5.0)


def test_windows() -> None:
    assert parse(GPT_OSS, num_hidden_layers=3).attention.windows == (8, None, 8)
    kinds = ["full_attention", "sliding_attention"]
    assert parse(GPT_OSS, layer_types=kinds).attention.windows == (None, 8)
    window = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    assert parse(QWEN2, **window).attention.windows == (None, 16)
    assert parse(QWEN3, **window, layer_types=kinds[::-1]).attention.windows == (16, None)
    off = window | {"use_sliding_window": False}
    assert parse(QWEN2, **off).attention.windows == (None, None)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_type", "type"])
def test_rope_in_every_spelling(spelling: str) -> None:
    if spelling == "rope_parameters":
        fields: dict[str, Any] = {
            "rope_theta": None,
            "rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 500000.0},
        }
    else:
        fields = {"rope_theta": 500000.0, "rope_scaling": LLAMA3 | {spelling: "llama3"}}
    want = RopeSettings(
        "llama3",
        500000.0,
        factor=8.0,
        original_positions=128,
        low_frequency=1.0,
        high_frequency=4.0,
    )
    assert parse(CONFIG, **fields).rope == want


# name: (base, changes, fields the error must name)
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "missing": (CONFIG, {"hidden_size": None}, ["hidden_size: missing"]),
    "text_for_number": (CONFIG, {"vocab_size": "61"}, ["vocab_size: '61' is not a whole"]),
    "boolean_for_number": (CONFIG, {"num_hidden_layers": True}, ["num_hidden_layers: True"]),
    "fraction": (CONFIG, {"hidden_size": 32.5}, ["hidden_size: 32.5"]),
    "negative": (CONFIG, {"intermediate_size": -1}, ["intermediate_size: -1 is outside"]),
    "zero": (CONFIG, {"vocab_size": 0}, ["vocab_size: 0 is outside"]),
    "huge": (CONFIG, {"num_hidden_layers": 10**9}, ["num_hidden_layers"]),
    "infinite_eps": (CONFIG, {"rms_norm_eps": float("inf")}, ["rms_norm_eps"]),
    "zero_eps": (CONFIG, {"rms_norm_eps": 0.0}, ["rms_norm_eps"]),
    "heads_against_kv": (CONFIG, {"num_key_value_heads": 3}, ["num_key_value_heads: 4 heads"]),
    "hidden_against_heads": (CONFIG, {"hidden_size": 33}, ["hidden_size: 33 is not a multiple"]),
    "odd_head_dim": (CONFIG, {"head_dim": 7}, ["head_dim: 7 is odd"]),
    "activation": (CONFIG, {"hidden_act": "gelu"}, ["hidden_act: 'gelu'"]),
    "rope_rule": (CONFIG, {"rope_scaling": {"type": "longrope"}}, ["rope_type: 'longrope'"]),
    "rope_section": (CONFIG, {"rope_scaling": 3}, ["rope_scaling: 3 is not an object"]),
    "rope_incomplete": (
        CONFIG,
        {"rope_scaling": {"type": "llama3"}},
        ["factor: missing", "low_freq_factor: missing", "original_max_position_embeddings"],
    ),
    "rope_contradiction": (
        CONFIG,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
        ["rope_theta: 10000.0 here but 5.0 in rope_parameters"],
    ),
    "rope_without_end": (
        CONFIG,
        {"rope_theta": 1e-30, "rope_scaling": {"type": "linear", "factor": 1e-30}},
        ["rope_theta: 1e-30 and this factor give endless frequencies"],
    ),
    "partial_rotation": (CONFIG, {"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
    "no_yarn_for_gpt_oss": (GPT_OSS, {"rope_scaling": None}, ["rope_scaling: missing"]),
    "windows_on_llama": (
        CONFIG,
        {"layer_types": ["sliding_attention"] * 2},
        ["layer_types: this architecture has only"],
    ),
    "layer_types_count": (GPT_OSS, {"layer_types": ["full_attention"]}, ["names 1 layers of 2"]),
    "layer_types_kind": (
        GPT_OSS,
        {"layer_types": ["linear_attention", "full_attention"]},
        ["layer_types: 'linear_attention'"],
    ),
    "no_window": (GPT_OSS, {"sliding_window": None}, ["sliding_window: missing"]),
    "experts_active": (GPT_OSS, {"num_experts_per_tok": 4}, ["4 of only 3 experts"]),
    "mxfp4_width": (GPT_OSS, {"intermediate_size": 40}, ["40 is not a multiple of 32"]),
    "mxfp4_on_llama": (
        CONFIG,
        {"quantization_config": {"quant_method": "mxfp4"}},
        ["quant_method 'mxfp4' is not supported", "Supported for this architecture: awq (4-bit), "],
    ),
    "other_quantization": (
        GPT_OSS,
        {"quantization_config": {"quant_method": "awq"}},
        ["quant_method 'awq' is not supported: it is AWQ", "architecture: mxfp4 (experts), plain"],
    ),
    "two_architectures": (CONFIG, {"architectures": ["A", "B"]}, ["architectures: must name"]),
    "several_at_once": (
        CONFIG,
        {"hidden_size": None, "vocab_size": -3, "head_dim": 3, "hidden_act": "relu"},
        ["hidden_size: missing", "vocab_size: -3", "head_dim: 3 is odd", "hidden_act"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_every_field(case: str) -> None:
    base, changes, fragments = REFUSED[case]
    with pytest.raises(ConfigFieldError) as caught:
        parse(base, **changes)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("LamaForCausalLM", "LlamaForCausalLM"),
        ("Qwen3ForCasualLM", "Qwen3ForCausalLM"),
        ("gpt_oss_for_causal_lm", "GptOssForCausalLM"),
        # Public architectures with names near a supported one: each is another model.
        *[
            (f"{family}ForCausalLM", None)
            for family in (
                *("DeepseekV3", "Gemma2", "Granite", "Llama4", "Llava", "Mllama", "Phi3"),
                *("Qwen", "Qwen2Moe", "Qwen3Moe", "Qwen3Next", "SmolLM3"),
            )
        ],
        ("T5", None),
        ("LlamaForCausalLMEagle3", "It is a draft head"),
    ],
)
def test_unknown_architecture_lists_the_known(name: str, meant: str | None) -> None:
    with pytest.raises(UnsupportedArchitectureError, match="Supported: LlamaForCausalLM") as caught:
        find_architecture(name)
    hints = {None: "not supported. Supported", "It is a draft head": "It is a draft head"}
    hint = hints.get(meant, f"Did you mean {meant}?")
    assert hint in str(caught.value)
