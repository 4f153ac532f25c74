"""The small pair that is inflated: read strictly, and refused where no exact embedding exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import UsageError
from aerie.models.eagle3.blueprint import TargetSizes
from aerie.models.eagle3.convert import read_normal
from aerie.models.eagle3.export import NormalHead
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.fields import read_config
from aerie.models.geometry import Geometry, read_geometry
from aerie.models.inflate.axes import kv_copies
from aerie.models.inflate.geometry import BlockSizes, ProductionGeometry
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.rope_buffers import without_buffers
from aerie.models.weights import open_checkpoint


@dataclass(frozen=True, eq=False)
class SmallPair:
    """A target and its head; tensors are views of the files."""

    geometry: Geometry
    config: Mapping[str, Any]  # config.json of the target
    tensors: Mapping[str, Tensor]  # of the target
    head: NormalHead

    @property
    def target_block(self) -> BlockSizes:
        """Sizes of the target's layers."""
        attention = self.geometry.attention
        width = self.geometry.mlp_width
        return BlockSizes(attention.n_heads, attention.n_kv_heads, attention.head_dim, width)

    @property
    def head_block(self) -> BlockSizes:
        """Sizes of the head's layers."""
        head = self.head.geometry
        return BlockSizes(head.n_heads, head.n_kv_heads, head.head_dim, head.mlp_width)


def read_pair(model: Path, draft: Path) -> SmallPair:
    """Read a target and a head of any dialect.

    Both are loaded once as the engine would, so that every broken tensor or field is named here.
    """
    target = load_decoder(model, pytorch.prepare, LoadOptions())
    load_head(draft, target, pytorch.prepare, HeadOptions())
    geometry = read_geometry(model)
    files = without_buffers(open_checkpoint(model))
    sizes = TargetSizes(geometry.n_layers, geometry.hidden_size, geometry.vocab_size)
    return SmallPair(
        geometry=geometry,
        config=read_config(model).values,
        tensors={name: files.view(name) for name in files.entries},
        head=read_normal(draft, sizes),
    )


def refuse_pair(pair: SmallPair, geometry: ProductionGeometry) -> None:
    """Raise one UsageError that names everything that stands against an exact embedding."""
    problems = [*_target_features(pair), *_head_features(pair), *_sizes(pair, geometry)]
    if problems:
        listed = "\n  ".join(problems)
        raise UsageError(f"this pair cannot be inflated exactly into that geometry:\n  {listed}")


def _target_features(pair: SmallPair) -> list[str]:
    attention, geometry = pair.geometry.attention, pair.geometry
    found = {
        "it has q/k norms, which divide by a mean over head dimensions": attention.has_qk_norm,
        "it has attention sinks": attention.has_sinks,
        "some of its layers have a sliding window": any(attention.windows),
        "it has experts": geometry.experts is not None,
        "its LM head is tied to the embedding, which then holds the constant in every live row": (
            geometry.has_tied_head
        ),
        "its rotary rule is YaRN, whose ramp depends on the number of pairs": (
            geometry.rope.kind == "yarn"
        ),
        "its weights are quantised": "quantization_config" in pair.config,
    }
    return [f"target: {text}" for text, is_found in found.items() if is_found]


def _head_features(pair: SmallPair) -> list[str]:
    head = pair.head
    convention = head.convention
    found = {
        "it has q/k norms, which divide by a mean over head dimensions": head.storage.has_qk_norm,
        "norm_before_residual: the residual would carry a scaled constant": (
            convention.is_residual_normed
        ),
        "norm_output: the next step would read a scaled constant": convention.is_output_normed,
        "norm_before_fc or fc_norm: fc would copy a scaled constant": (
            convention.has_input_norm or convention.has_chunk_norms
        ),
        "it reads the target's final state after its norm, where the constant is scaled": (
            not convention.uses_captures
        ),
        "its rotary rule is YaRN, whose ramp depends on the number of pairs": (
            head.geometry.rope.kind == "yarn"
        ),
        "its weights are quantised": head.quantisation is not None,
    }
    return [f"head: {text}" for text, is_found in found.items() if is_found]


def _sizes(pair: SmallPair, geometry: ProductionGeometry) -> list[str]:
    target, head = pair.geometry, pair.head.geometry
    pairs = [
        ("target layers", target.n_layers, geometry.n_layers),
        ("target width", target.hidden_size, geometry.hidden_size),
        ("head width", head.hidden_size, geometry.hidden_size),
        ("vocabulary", target.vocab_size, geometry.vocab_size),
        ("draft vocabulary", head.draft_vocab_size, geometry.draft_vocab_size),
        *_block_sizes("target", pair.target_block, geometry.target),
        *_block_sizes("head", pair.head_block, geometry.draft),
    ]
    problems = [
        f"{name}: {small} does not fit into {large}"
        for name, small, large in pairs
        if small > large
    ]
    for name, small, large in (
        ("target", pair.target_block.head_dim, geometry.target.head_dim),
        ("head", pair.head_block.head_dim, geometry.draft.head_dim),
    ):
        if large % small:
            problems.append(f"{name} head_dim: {large} is not a multiple of {small}")
    dead_drafts = geometry.draft_vocab_size - head.draft_vocab_size
    dead_ids = geometry.vocab_size - target.vocab_size
    if dead_drafts > dead_ids:
        problems.append(f"draft vocabulary: {dead_drafts} dead rows, but {dead_ids} dead ids")
    is_full = max(target.hidden_size, head.hidden_size) == geometry.hidden_size
    if is_full and (dead_ids or dead_drafts):
        problems.append("width: dead vocabulary needs one dimension that the pair does not use")
    return problems


def _block_sizes(name: str, small: BlockSizes, large: BlockSizes) -> list[tuple[str, int, int]]:
    needed = small.n_kv_heads * kv_copies(small, large)
    return [
        (f"{name} query heads", small.n_heads, large.n_heads),
        (f"{name} KV heads, with the copies their queries need", needed, large.n_kv_heads),
        (f"{name} head_dim", small.head_dim, large.head_dim),
        (f"{name} MLP width", small.mlp_width, large.mlp_width),
    ]
