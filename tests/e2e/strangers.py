"""Checkpoints as a stranger brings them: tiny random targets and EAGLE-3 heads; not a test.

    model, head = write_llama(tmp_path)
    model, head = write_qwen(tmp_path)

A head knows nothing of its target, so that hardly a draft is accepted: what a page promises has to
hold all the same.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.laws.tree import ROOT

VOCAB, HIDDEN, WIDTH, LAYERS = 4096, 32, 64, 3
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}
# Any tokenizer of so many ids will do for weights that have seen no text.
TOKENIZER = ROOT / "src/aerie/assets/pair/target"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_llama(folder: Path) -> tuple[Path, Path]:
    """A Llama with biases nowhere, and its head."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 5000.0}
    return _target(folder / "llama", config, has_norms=False), _head(folder / "llama-head")


def write_qwen(folder: Path) -> tuple[Path, Path]:
    """A Qwen3: norms of queries and keys, tied embeddings; and its head."""
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_theta": 5000.0}
    tied = {**config, "tie_word_embeddings": True}
    return _target(folder / "qwen3", tied, has_norms=True), _head(folder / "qwen3-head")


def _target(folder: Path, config: dict[str, Any], has_norms: bool) -> Path:
    tensors = {"model.embed_tokens.weight": _matrix(VOCAB, HIDDEN), "model.norm.weight": _norm()}
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = _matrix(VOCAB, HIDDEN)
    for i in range(LAYERS):
        own = _block(HIDDEN)
        if has_norms:
            own |= {f"self_attn.{name}_norm.weight": _norm(HEAD_DIM) for name in "qk"}
        tensors |= {f"model.layers.{i}.{name}": value for name, value in own.items()}
    _save(folder, {**SIZES, **config, "num_hidden_layers": LAYERS, "eos_token_id": 0}, tensors)
    for name in TOKENIZER_FILES:
        shutil.copy(TOKENIZER / name, folder)
    return folder


def _head(folder: Path) -> Path:
    config = {
        **SIZES,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        "rope_theta": 5000.0,
    }
    tensors = {
        "fc.weight": _matrix(HIDDEN, 3 * HIDDEN),
        "norm.weight": _norm(),
        "lm_head.weight": _matrix(VOCAB, HIDDEN),
    }
    own = _block(2 * HIDDEN) | {"hidden_norm.weight": _norm()}
    _save(folder, config, tensors | {f"midlayer.{name}": value for name, value in own.items()})
    return folder


def _block(n_in: int) -> dict[str, Tensor]:
    """One decoder layer; a head's attention reads two rows side by side."""
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, n_in),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, n_in),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, n_in),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (WIDTH, HIDDEN),
        "mlp.up_proj": (WIDTH, HIDDEN),
        "mlp.down_proj": (HIDDEN, WIDTH),
    }
    found = {f"{name}.weight": _matrix(*shape) for name, shape in shapes.items()}
    norms = ("input_layernorm", "post_attention_layernorm")
    return found | {f"{name}.weight": _norm() for name in norms}


def _matrix(n_out: int, n_in: int) -> Tensor:
    return torch.randn(n_out, n_in, generator=_GENERATOR) * 1.2 * n_in**-0.5


def _norm(width: int = HIDDEN) -> Tensor:
    return torch.rand(width, generator=_GENERATOR) * 0.8 + 0.6


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


_GENERATOR = torch.Generator().manual_seed(20)
