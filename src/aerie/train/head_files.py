"""The head as files: saved in the dialect of official EAGLE and SGLang, and read back to train."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from aerie.attention.contract import Reach
from aerie.models.eagle3.blueprint import TargetSizes
from aerie.models.eagle3.config import SPECFORGE
from aerie.models.eagle3.convert import read_normal, write_head
from aerie.models.eagle3.export import ExportDetails, NormalHead
from aerie.models.eagle3.names import DRAFT_TO_TARGET
from aerie.models.eagle3.values import HeadConvention, HeadGeometry
from aerie.models.rope import RopeSettings
from aerie.train.checkpoints import ATTENTION, FEED_FORWARD
from aerie.train.head_model import HeadModel, HeadShape

LAYER_NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")


def _head_tensors(model: HeadModel) -> dict[str, Tensor]:
    """All weights by their normal names."""
    layer = model.midlayer
    prefix = "layers.0"
    named: dict[str, Tensor] = {"fc.weight": model.fc, "norm.weight": model.norm}
    named |= {f"{prefix}.self_attn.{name}.weight": getattr(layer, name) for name in ATTENTION}
    named |= {f"{prefix}.mlp.{name}.weight": getattr(layer, name) for name in FEED_FORWARD}
    named |= {f"{prefix}.{name}.weight": getattr(layer, name) for name in LAYER_NORMS}
    return named | {"lm_head.weight": model.lm_head}


def save_head(
    model: HeadModel, directory: Path, max_positions: int, draft_ids: Tensor | None = None
) -> None:
    """Write config.json and model.safetensors in bf16; `draft_ids` [draft vocab] if reduced."""
    shape = model.shape
    tensors = {
        name: tensor.detach().to(torch.bfloat16).cpu().contiguous().clone()
        for name, tensor in _head_tensors(model).items()
    }
    if draft_ids is not None:
        tensors[DRAFT_TO_TARGET] = draft_ids.cpu().long() - torch.arange(draft_ids.shape[0])
    head = NormalHead(_head_geometry(shape), _head_convention(shape), tensors)
    write_head(directory, head, SPECFORGE, ExportDetails(max_positions=max_positions))
    (directory / "model.safetensors").chmod(0o644)


def _head_geometry(shape: HeadShape) -> HeadGeometry:
    """The sizes, in the loader's terms."""
    return HeadGeometry(
        hidden_size=shape.hidden,
        target_hidden_size=shape.target_hidden,
        n_captures=len(shape.taps),
        n_layers=1,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        mlp_width=shape.mlp_width,
        vocab_size=shape.vocab_size,
        draft_vocab_size=shape.draft_vocab_size,
        rope=RopeSettings("default", shape.rope_theta),
        norm_eps=shape.norm_eps,
    )


def _head_convention(shape: HeadShape) -> HeadConvention:
    """The plain convention: residual before the norm, state handed on before the norm."""
    return HeadConvention(
        boundaries=shape.taps,
        uses_captures=True,
        is_residual_normed=False,
        has_input_norm=False,
        has_chunk_norms=False,
        is_output_normed=False,
        logit_scale=1.0,
        reach=Reach(window=shape.window),
    )


def load_head_model(directory: Path, target: TargetSizes) -> HeadModel:
    """A head `save_head` wrote, in float32."""
    head = read_normal(directory, target)
    geometry, convention = head.geometry, head.convention
    assert convention.reach.window is not None, "trained heads have a window"
    shape = HeadShape(
        hidden=geometry.hidden_size,
        target_hidden=geometry.target_hidden_size,
        n_heads=geometry.n_heads,
        n_kv_heads=geometry.n_kv_heads,
        head_dim=geometry.head_dim,
        mlp_width=geometry.mlp_width,
        vocab_size=geometry.vocab_size,
        draft_vocab_size=geometry.draft_vocab_size,
        taps=convention.boundaries,
        window=convention.reach.window,
        norm_eps=geometry.norm_eps,
        rope_theta=geometry.rope.theta,
    )
    model = HeadModel(shape)
    with torch.no_grad():
        for name, tensor in _head_tensors(model).items():
            tensor.copy_(head.tensors[name])
    return model
