"""Saves and reads the pair in the common format: config.json and safetensors shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from aerie.errors import UsageError
from aerie.models.geometry import Geometry, read_geometry
from aerie.models.weights import INDEX, open_checkpoint
from aerie.models.weights_stream import PlannedTensor, write_shards
from aerie.train.target_model import Layer, TargetModel, TargetShape
from aerie.train.tokenizer import END_ID

SHARD_BYTES = 12 * 1024 * 1024

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")


def _layer_tensors(layer: Layer, prefix: str) -> dict[str, Tensor]:
    """A layer's weights by their names in a checkpoint."""
    named = {f"{prefix}.self_attn.{name}.weight": getattr(layer, name) for name in ATTENTION}
    named |= {f"{prefix}.mlp.{name}.weight": getattr(layer, name) for name in FEED_FORWARD}
    return named | {f"{prefix}.{name}.weight": getattr(layer, name) for name in _NORMS}


def _target_tensors(model: TargetModel) -> dict[str, Tensor]:
    """All weights of the target by their names in a checkpoint."""
    named: dict[str, Tensor] = {"model.embed_tokens.weight": model.embed_tokens}
    for index, layer in enumerate(model.decoder_layers()):
        named |= _layer_tensors(layer, f"model.layers.{index}")
    return named | {"model.norm.weight": model.norm, "lm_head.weight": model.lm_head}


def save_target(model: TargetModel, directory: Path) -> None:
    """Write config.json, generation_config.json and the weights in bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", target_config(model.shape))
    write_json(
        directory / "generation_config.json", {"bos_token_id": END_ID, "eos_token_id": END_ID}
    )
    _save_sharded(_target_tensors(model), directory)


def target_config(shape: TargetShape) -> dict[str, object]:
    """config.json of the target."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp_width,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": END_ID,
        "eos_token_id": END_ID,
        "torch_dtype": "bfloat16",
    }


def load_target(directory: Path, device: torch.device | str, dtype: torch.dtype) -> TargetModel:
    """A target for running or further training, from a directory `save_target` wrote."""
    model = TargetModel(_trainable_shape(read_geometry(directory)))
    files = open_checkpoint(directory)
    with torch.no_grad():
        for name, tensor in _target_tensors(model).items():
            tensor.copy_(files.view(name))
    return model.to(device=device, dtype=dtype)


def _trainable_shape(geometry: Geometry) -> TargetShape:
    """The shape of a plain decoder, or an error that names what training does not cover."""
    attention = geometry.attention
    extras = {
        "an architecture other than LlamaForCausalLM": geometry.architecture != "LlamaForCausalLM",
        "biases": attention.has_qkv_bias or attention.has_output_bias or geometry.has_mlp_bias,
        "a tied head": geometry.has_tied_head,
        "a rope rule other than the plain one": geometry.rope.kind != "default",
    }
    found = [name for name, is_there in extras.items() if is_there]
    if found:
        raise UsageError(f"the fast path does not cover {', '.join(found)}")
    return TargetShape(
        vocab_size=geometry.vocab_size,
        hidden=geometry.hidden_size,
        n_layers=geometry.n_layers,
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        mlp_width=geometry.mlp_width,
        norm_eps=geometry.norm_eps,
        rope_theta=geometry.rope.theta,
        max_positions=geometry.max_positions,
    )


def _save_sharded(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """In bfloat16: one file if it is small, else shards of at most SHARD_BYTES with an index."""
    for stale in (*directory.glob("model*.safetensors"), *directory.glob(INDEX)):
        stale.unlink()
    planned = [PlannedTensor(name, tuple(t.shape), torch.bfloat16) for name, t in tensors.items()]
    write_shards(
        directory, planned, lambda own: tensors[own.name].detach().to(own.dtype), SHARD_BYTES
    )


def write_json(path: Path, value: object) -> None:
    """Indented, with a final line end."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
