"""Inflation: embeds a small target and its EAGLE-3 head exactly into a production geometry.

    pair = read_pair(model_directory, draft_directory)
    large = inflate_to_device(pair, GEOMETRIES["llama-3.1-8b"], pytorch.prepare, InflateOptions())
    inflate_to_directory(pair, GEOMETRIES["llama-3.1-8b"], out, InflateOptions())

Same tokens and same drafts as the small pair, with the bytes and the time of the large one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aerie.attention.contract import PrepareAttention
from aerie.errors import UsageError
from aerie.models.blueprint import expected_tensors
from aerie.models.decoder import Decoder
from aerie.models.eagle3.export import ExportDetails
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import build_head
from aerie.models.eagle3.names import DRAFT_TO_TARGET, TARGET_TO_DRAFT
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.eagle3.values import HeadSummary
from aerie.models.geometry import Geometry
from aerie.models.inflate.geometry import ProductionGeometry
from aerie.models.inflate.paint import Canvas, read_noise
from aerie.models.inflate.pair import SmallPair
from aerie.models.inflate.plan import InflationPlan, plan_inflation
from aerie.models.inflate.shapes import (
    DTYPE_NAMES,
    head_config,
    head_specs,
    large_head,
    large_target,
    planned_head,
    planned_target,
    random_head,
    random_target,
    target_config,
)
from aerie.models.inflate.tensors import InflatedHead, InflatedTarget, MadeLoader, TensorMaker
from aerie.models.linear import DENSE, DenseFormat
from aerie.models.load import LoadOptions, build_decoder
from aerie.models.weights_stream import PlannedTensor, write_shards

TARGET_FOLDER, HEAD_FOLDER, RECORD = "target", "head", "inflation.json"

Advance = Callable[[int, int], None]

# Copied beside an inflated target: live ids are the small pair's own.
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class InflateOptions:
    """How large tensors are made. A seed gives other noise, never other tokens."""

    load: LoadOptions = field(default_factory=lambda: LoadOptions(dtype=torch.bfloat16))
    seed: int = 0
    # The head's own arithmetic; None: the target's.
    head_dense: DenseFormat | None = None
    head_attention: PrepareAttention | None = None

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the weights; fp16 cannot hold the dead rows of the LM heads."""
        dtype = self.load.dtype or torch.bfloat16
        if dtype not in DTYPE_NAMES:
            raise UsageError(f"inflated weights are bfloat16 or float32, not {dtype}")
        return dtype

    @property
    def canvas(self) -> Canvas:
        """Where tensors are drawn."""
        return Canvas(torch.device(self.load.device), self.seed)


@dataclass(frozen=True, eq=False)
class LargePair:
    """A loaded target and its head."""

    target: Decoder
    head: Eagle3Head


def inflate_to_device(
    pair: SmallPair,
    geometry: ProductionGeometry,
    prepare_attention: PrepareAttention,
    options: InflateOptions,
) -> LargePair:
    """Build the large pair in memory, without touching a disk; tensors are made where they stay."""
    plan = plan_inflation(pair, geometry)
    values = large_target(pair, plan, geometry), large_head(pair, plan, geometry)
    return _build(_makers(plan, pair, options), values, prepare_attention, options)


def _makers(
    plan: InflationPlan, pair: SmallPair, options: InflateOptions
) -> tuple[TensorMaker, TensorMaker]:
    canvas = options.canvas
    return InflatedTarget(plan, pair, canvas), InflatedHead(plan, pair, canvas)


def random_model(
    geometry: ProductionGeometry, prepare_attention: PrepareAttention, options: InflateOptions
) -> LargePair:
    """The control: a pair of the same geometry whose every weight is random."""
    target, head = random_target(geometry), random_head(geometry)
    target_shapes = {spec.name: spec.shape for spec in expected_tensors(target, DENSE)}
    head_shapes = {spec.name: spec.shape for spec in head_specs(head)}
    makers = (
        RandomTensors(target_shapes, options.canvas),
        RandomTensors(head_shapes, options.canvas),
    )
    return _build(makers, (target, head), prepare_attention, options)


@dataclass(frozen=True)
class RandomTensors:
    """Makes tensors of given shapes at a fresh model's scale."""

    shapes: dict[str, tuple[int, ...]]
    canvas: Canvas

    def make(self, name: str, dtype: torch.dtype) -> Tensor:
        """Noise; ones in norms; the first ids as the draft vocabulary."""
        shape = self.shapes[name]
        if name == DRAFT_TO_TARGET:
            return self.canvas.zeros(shape, torch.int64)
        if name == TARGET_TO_DRAFT:
            n_drafts = self.shapes[DRAFT_TO_TARGET][0]
            return torch.arange(shape[0], device=self.canvas.device) < n_drafts
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=dtype, device=self.canvas.device)
        return self.canvas.noise(name, shape, dtype, read_noise(shape[-1]))


def inflate_to_directory(
    pair: SmallPair,
    geometry: ProductionGeometry,
    out: Path,
    options: InflateOptions,
    advance: Advance = lambda done, total: None,
) -> dict[str, Any]:
    """Write `out`/target and `out`/head, tensor by tensor; returns what inflation.json records.

    `advance` is told (bytes begun, bytes in all) before every tensor.
    """
    plan = plan_inflation(pair, geometry)
    target, head = large_target(pair, plan, geometry), large_head(pair, plan, geometry)
    tensors = planned_target(target, options.dtype), planned_head(head, options.dtype)
    sizes = [sum(tensor.n_bytes for tensor in planned) for planned in tensors]
    folders = out / TARGET_FOLDER, out / HEAD_FOLDER
    _make_folders(folders, sum(sizes))
    details = ExportDetails(target.max_positions, TARGET_FOLDER, target.architecture)
    _write_json(folders[0] / "config.json", target_config(pair, target, options.dtype))
    _write_json(folders[1] / "config.json", head_config(head, details))
    n_begun = 0

    def make(maker: TensorMaker, tensor: PlannedTensor) -> Tensor:
        nonlocal n_begun
        n_begun += tensor.n_bytes
        advance(n_begun, sum(sizes))
        return maker.make(tensor.name, tensor.dtype)

    makers = _makers(plan, pair, options)
    for folder, planned, maker in zip(folders, tensors, makers, strict=True):
        write_shards(folder, planned, partial(make, maker))
    record = {
        **describe(pair, geometry, plan),
        "target_bytes": sizes[0],
        "head_bytes": sizes[1],
        "dtype": DTYPE_NAMES[options.dtype],
        "seed": options.seed,
    }
    _write_json(out / RECORD, record)
    return record


def describe(pair: SmallPair, geometry: ProductionGeometry, plan: InflationPlan) -> dict[str, Any]:
    """The recipe's numbers, as JSON values."""
    small, head = pair.geometry, pair.head.geometry
    return {
        "geometry": asdict(geometry),
        "small": {
            "layers": small.n_layers,
            "hidden_size": small.hidden_size,
            "vocab_size": small.vocab_size,
            "draft_vocab_size": head.draft_vocab_size,
        },
        "live_layers": [place for place, layer in enumerate(plan.layers) if layer is not None],
        "boundaries": list(plan.boundaries),
        "constant": plan.constant,
        "target_eps": plan.target.eps,
        "head_eps": plan.head.eps,
        "is_exact_in_bf16": not plan.warnings,
        "warnings": list(plan.warnings),
    }


def copy_companions(model: Path, out: Path) -> list[str]:
    """Copy the tokenizer and its relatives beside the inflated target; returns their names."""
    found = [name for name in COMPANIONS if (model / name).is_file()]
    for name in found:
        shutil.copyfile(model / name, out / TARGET_FOLDER / name)
    return found


def _build(
    makers: tuple[TensorMaker, TensorMaker],
    values: tuple[Geometry, HeadSummary],
    prepare_attention: PrepareAttention,
    options: InflateOptions,
) -> LargePair:
    device = torch.device(options.load.device)
    loaders = [MadeLoader(maker, options.dtype, device) for maker in makers]
    target = build_decoder(values[0], loaders[0], prepare_attention, options.load)
    dense, prepare_head = options.head_dense, options.head_attention
    chosen = HeadOptions(dense=dense or options.load.dense, is_fused=options.load.is_fused)
    head = build_head(values[1], loaders[1], target, prepare_head or prepare_attention, chosen)
    return LargePair(target, head)


def _make_folders(folders: Sequence[Path], n_bytes: int) -> None:
    for folder in folders:
        if any(folder.glob("*.safetensors")):
            raise UsageError(f"{folder} already holds weights; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folders[0]).free
    if free < n_bytes:
        raise UsageError(
            f"{folders[0].parent} has {free / 1e9:.1f} GB free, {n_bytes / 1e9:.1f} GB are needed"
        )


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
