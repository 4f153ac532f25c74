"""Checkpoints written from the blueprint alone: no transformers needed; shared, not a test itself.

directory = write_checkpoint(tmp_path / "m", CONFIG)             one file
directory = write_checkpoint(tmp_path / "m", CONFIG, n_shards=3) with an index
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aerie.models.blueprint import expected_tensors
from aerie.models.fields import Fields
from aerie.models.geometry import parse_geometry
from aerie.models.linear import DENSE
from aerie.models.weights import INDEX, SINGLE, save_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 8,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
    "quantization_config": {"quant_method": "mxfp4"},
}


def random_tensors(
    config: dict[str, Any], dtype: torch.dtype = torch.float32, seed: int = 0
) -> dict[str, Tensor]:
    """Every tensor the config's geometry needs, at a trained model's scale."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for spec in expected_tensors(parse_geometry(Fields(config, "test")), DENSE):
        if spec.is_optional:
            continue
        if "U8" in spec.dtypes:
            tensors[spec.name] = torch.randint(
                118, 122, spec.shape, dtype=torch.uint8, generator=generator
            )
        elif "norm" in spec.name:
            tensors[spec.name] = torch.rand(spec.shape, generator=generator).add_(0.5).to(dtype)
        else:
            values = torch.randn(spec.shape, generator=generator)
            tensors[spec.name] = values.mul_(spec.shape[-1] ** -0.5).to(dtype)
    return tensors


def write_directory(
    directory: Path, config: dict[str, Any], tensors: dict[str, Tensor], n_shards: int = 0
) -> Path:
    """Config and weights; `n_shards` of 0 means a single file without an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if n_shards == 0:
        save_tensors(directory / SINGLE, tensors, {"format": "pt"})
        return directory
    weight_map: dict[str, str] = {}
    for shard in range(n_shards):
        file_name = f"model-{shard + 1:05d}-of-{n_shards:05d}.safetensors"
        held = {name: tensors[name] for name in sorted(tensors)[shard::n_shards]}
        save_tensors(directory / file_name, held, {"format": "pt"})
        weight_map |= dict.fromkeys(held, file_name)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def write_checkpoint(
    directory: Path,
    config: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    n_shards: int = 0,
) -> Path:
    """A complete random checkpoint."""
    return write_directory(directory, config, random_tensors(config, dtype), n_shards)
