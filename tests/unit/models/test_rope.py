"""Rotary frequencies against transformers' tables, and the rotation's own laws."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aerie.models.fields import Fields
from aerie.models.layer_ops import rotate
from aerie.models.rope import RopeSettings, Rotary, build_rotary, inverse_frequencies
from aerie.models.rope_fields import read_rope

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 32.0, "original_max_position_embeddings": 4096}
RULES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
    "yarn": {"rope_type": "yarn", "rope_theta": 150000.0, **YARN},
    "yarn_exact": {"rope_type": "yarn", "rope_theta": 150000.0, "truncate": False, **YARN},
    "yarn_betas": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        **YARN,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "mscale": 0.8,
        "mscale_all_dim": 1.1,
        **YARN,
    },
    "yarn_factor": {"rope_type": "yarn", "rope_theta": 1e4, "attention_factor": 1.5, **YARN},
}


@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize("rule", RULES)
def test_frequencies_equal_transformers(rule: str, head_dim: int) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle is not installed")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters=dict(RULES[rule]),
    )
    oracle = LlamaRotaryEmbedding(config)
    settings = read_rope(Fields({"rope_parameters": RULES[rule]}, "test"), 10000.0)
    got = inverse_frequencies(settings, head_dim)
    torch.testing.assert_close(got, oracle.inv_freq, rtol=3e-7, atol=0)
    assert settings.attention_factor == pytest.approx(oracle.attention_scaling, rel=1e-12)


def turned(rotary: Rotary, positions: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    rotation = rotary.at(positions)
    return rotate(heads, rotation.cos, rotation.sin)


def test_rotation_is_relative_and_keeps_lengths() -> None:
    rotary = build_rotary(RopeSettings("default", 10000.0), 16, "cpu")
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 3, 16, generator=generator).unbind(0)

    def score(at: int, other: int) -> torch.Tensor:
        places = torch.tensor([at]), torch.tensor([other])
        return (turned(rotary, places[0], query) * turned(rotary, places[1], key)).sum(-1)

    torch.testing.assert_close(score(5, 2), score(105, 102), rtol=0, atol=1e-4)
    far = turned(rotary, torch.tensor([77]), query)
    torch.testing.assert_close(far.norm(dim=-1), query.norm(dim=-1))
    assert torch.equal(turned(rotary, torch.tensor([0]), query), query)


def test_theta_defaults_to_the_readers() -> None:
    assert read_rope(Fields({}, "test"), 10000.0) == RopeSettings("default", 10000.0)
    assert read_rope(Fields({"rope_theta": 5e5}, "test"), 10000.0).theta == 5e5


def test_half_precision_rounds_once() -> None:
    rotary = build_rotary(RopeSettings("default", 10000.0), 8, "cpu")
    heads = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    positions = torch.arange(4) * 1000
    wide = turned(rotary, positions, heads.float())
    assert torch.equal(turned(rotary, positions, heads), wide.bfloat16())
