"""Tiny random checkpoints made by transformers, the oracle; shared, not a test itself.

    directory = build("llama3_tied", tmp_path)      an HF-format directory
    oracle    = open_oracle(directory)              transformers' own model, fp32, eager attention

Weights are larger than transformers' initial ones and norms are not all ones, so that a wrong
bias, norm, sink or frequency shows in the logits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers", reason="the oracle is not installed")

VOCAB = 97  # prime: no shape works by accident
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 15000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Recipe:
    """How to make one tiny checkpoint."""

    config_class: str
    fields: dict[str, Any]
    finish: Callable[[Path], None] | None = None  # rewrites the saved directory


def _shared(**fields: Any) -> dict[str, Any]:
    base = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 2e-2,  # large enough to be missed in the logits
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return base | fields


def _gpt_oss(**fields: Any) -> dict[str, Any]:
    return _shared(
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=4,
        head_dim=16,
        num_local_experts=5,
        num_experts_per_tok=2,
        sliding_window=24,
        rope_parameters=YARN,
        **fields,
    )


def quantise_experts(directory: Path) -> None:
    """Replace the experts by random MXFP4 blocks and scales in the public layout."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(17)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        n_experts, n_in, n_out = tensors.pop(name).shape
        shape = (n_experts, n_out, n_in // 32)
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(121, 125, shape, dtype=torch.uint8, generator=generator)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, path, metadata={"format": "pt"})
    edit_config(directory, quantization_config={"quant_method": "mxfp4"})


RECIPES = {
    "llama3_untied": Recipe("LlamaConfig", _shared(rope_parameters=LLAMA3_ROPE)),
    "llama3_tied": Recipe(
        "LlamaConfig", _shared(rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True)
    ),
    "llama_biased": Recipe("LlamaConfig", _shared(attention_bias=True, mlp_bias=True, head_dim=10)),
    "qwen2": Recipe("Qwen2Config", _shared()),
    "qwen2_window": Recipe(
        "Qwen2Config",
        _shared(use_sliding_window=True, sliding_window=20, max_window_layers=1),
    ),
    "qwen3": Recipe("Qwen3Config", _shared(head_dim=16, tie_word_embeddings=True)),
    "gpt_oss_mxfp4": Recipe("GptOssConfig", _gpt_oss(), quantise_experts),
    "gpt_oss_dense": Recipe("GptOssConfig", _gpt_oss()),
}


def build(name: str, parent: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write the checkpoint `name` below `parent` and return its directory."""
    recipe = RECIPES[name]
    directory = parent / name
    config = getattr(transformers, recipe.config_class)(**recipe.fields)
    torch.manual_seed(sorted(RECIPES).index(name))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter_name, parameter in model.named_parameters():
        _redraw(parameter_name, parameter)
    model.to(dtype).save_pretrained(directory)
    if recipe.finish is not None:
        recipe.finish(directory)
    return directory


def _redraw(name: str, parameter: torch.nn.Parameter) -> None:
    """Values of a trained model's size: hidden states near 1, logits spread by a few units."""
    with torch.no_grad():
        if "norm" in name:
            parameter.uniform_(0.6, 1.4)
        elif "bias" in name or "sinks" in name:
            parameter.normal_(0.0, 0.7)
        elif "embed" in name:
            parameter.normal_(0.0, 0.5)
        else:
            fan_in = parameter.shape[1] if parameter.dim() > 1 else 1
            parameter.normal_(0.0, 1.2 * fan_in**-0.5)


def open_oracle(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' model of a directory; MXFP4 experts are dequantised by transformers itself."""
    config = transformers.AutoConfig.from_pretrained(directory)
    is_mxfp4 = getattr(config, "quantization_config", None) is not None
    if is_mxfp4:
        return _open_dequantised(directory, config, dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


def _open_dequantised(directory: Path, config: Any, dtype: torch.dtype) -> Any:
    """Fill a model with the weights that transformers' own dequantiser computes."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = load_file(directory / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_blocks")]:
        scales = tensors.pop(name.replace("_blocks", "_scales"))
        blocks = tensors.pop(name)
        weight = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
        tensors[name.removesuffix("_blocks")] = weight.float()
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not missing and not unexpected
    return model.to(dtype).eval()


def edit_config(directory: Path, **fields: Any) -> None:
    """Set fields of config.json; a field given as None is removed."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config |= fields
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
