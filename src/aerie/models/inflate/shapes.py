"""The values of inflated models: their geometries, the head's summary, and config.json of both."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch

from aerie.attention.contract import Reach
from aerie.models.blueprint import expected_tensors
from aerie.models.eagle3 import blueprint as eagle3_blueprint
from aerie.models.eagle3.config import SPECULATORS
from aerie.models.eagle3.convert import to_dialect
from aerie.models.eagle3.export import ExportDetails, NormalHead
from aerie.models.eagle3.names import DRAFT_TO_TARGET, TARGET_TO_DRAFT
from aerie.models.eagle3.values import (
    HeadConvention,
    HeadGeometry,
    HeadStorage,
    HeadSummary,
    usual_boundaries,
)
from aerie.models.geometry import AttentionGeometry, Geometry
from aerie.models.inflate.geometry import ProductionGeometry
from aerie.models.inflate.pair import SmallPair
from aerie.models.inflate.plan import InflationPlan
from aerie.models.linear import DENSE
from aerie.models.rope import RopeSettings
from aerie.models.tensors import TensorSpec
from aerie.models.weights_stream import PlannedTensor

DTYPE_NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def large_target(pair: SmallPair, plan: InflationPlan, large: ProductionGeometry) -> Geometry:
    """The inflated target's geometry."""
    small = pair.geometry
    return replace(
        small,
        vocab_size=large.vocab_size,
        hidden_size=large.hidden_size,
        n_layers=large.n_layers,
        mlp_width=large.target.mlp_width,
        attention=replace(
            small.attention,
            n_heads=large.target.n_heads,
            n_kv_heads=large.target.n_kv_heads,
            head_dim=large.target.head_dim,
            windows=(None,) * large.n_layers,
        ),
        norm_eps=plan.target.eps,
    )


def large_head(pair: SmallPair, plan: InflationPlan, large: ProductionGeometry) -> HeadSummary:
    """The inflated head's values; it always has an LM head of its own."""
    head = pair.head
    geometry = replace(
        head.geometry,
        target_hidden_size=large.hidden_size,
        draft_vocab_size=large.draft_vocab_size,
        norm_eps=plan.head.eps,
        **asdict(large.draft),
        **_widths(large),
    )
    convention = replace(head.convention, boundaries=plan.boundaries)
    storage = replace(head.storage, has_own_head=True)
    return HeadSummary(SPECULATORS, geometry, convention, storage, ())


def _widths(large: ProductionGeometry) -> dict[str, Any]:
    """What a target and its head share."""
    return {"hidden_size": large.hidden_size, "vocab_size": large.vocab_size}


def random_target(large: ProductionGeometry) -> Geometry:
    """A plain target of that geometry, for the control."""
    return Geometry(
        architecture="LlamaForCausalLM",
        vocab_size=large.vocab_size,
        hidden_size=large.hidden_size,
        n_layers=large.n_layers,
        mlp_width=large.target.mlp_width,
        has_mlp_bias=False,
        attention=AttentionGeometry(
            n_heads=large.target.n_heads,
            n_kv_heads=large.target.n_kv_heads,
            head_dim=large.target.head_dim,
            windows=(None,) * large.n_layers,
            has_qkv_bias=False,
            has_output_bias=False,
            has_qk_norm=False,
            has_sinks=False,
        ),
        experts=None,
        rope=RopeSettings("default", 500_000.0),
        norm_eps=1e-5,
        has_tied_head=False,
        max_positions=131_072,
    )


def random_head(large: ProductionGeometry) -> HeadSummary:
    """A plain one-layer head of that geometry, for the control."""
    taps = large.tap_boundaries or usual_boundaries(large.n_layers)
    geometry = HeadGeometry(
        target_hidden_size=large.hidden_size,
        n_captures=len(taps),
        n_layers=1,
        draft_vocab_size=large.draft_vocab_size,
        **asdict(large.draft),
        **_widths(large),
        rope=RopeSettings("default", 500_000.0),
        norm_eps=1e-5,
    )
    convention = HeadConvention(taps, True, False, False, False, False, 1.0, Reach())
    storage = HeadStorage(False, True, False, False, False, False, False, "input_layernorm")
    return HeadSummary(SPECULATORS, geometry, convention, storage, ())


def target_config(pair: SmallPair, geometry: Geometry, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of the inflated target: the small one's with other sizes."""
    attention = geometry.attention
    sizes = {
        "vocab_size": geometry.vocab_size,
        "hidden_size": geometry.hidden_size,
        "num_hidden_layers": geometry.n_layers,
        "intermediate_size": geometry.mlp_width,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "rms_norm_eps": geometry.norm_eps,
    }
    # Written under both names by some versions of transformers, each for its own readers.
    dtype_names = [name for name in ("dtype", "torch_dtype") if name in pair.config] or ["dtype"]
    kept = {key: value for key, value in pair.config.items() if key != "layer_types"}
    return {**kept, **sizes, **dict.fromkeys(dtype_names, DTYPE_NAMES[dtype])}


def head_config(summary: HeadSummary, details: ExportDetails) -> dict[str, Any]:
    """config.json of the inflated head: boundaries are stated, names are the normal ones."""
    shapes = {spec.name: torch.empty(spec.shape, device="meta") for spec in head_specs(summary)}
    normal = NormalHead(summary.geometry, summary.convention, shapes)
    config, _ = to_dialect(normal, SPECULATORS, details)
    return config


def head_specs(summary: HeadSummary) -> list[TensorSpec]:
    """Every tensor of a head, by normal name; both maps even where they are optional."""
    geometry, storage = summary.geometry, summary.storage
    specs = eagle3_blueprint.expected_tensors(geometry, summary.convention, storage)
    for name, shape in eagle3_blueprint.all_linears(geometry, storage).items():
        specs += DENSE.tensors(name, shape)
    return specs


def planned_target(geometry: Geometry, dtype: torch.dtype) -> list[PlannedTensor]:
    """The target's tensors in the order of its layers."""
    return [_planned(spec, dtype) for spec in expected_tensors(geometry, DENSE)]


def planned_head(summary: HeadSummary, dtype: torch.dtype) -> list[PlannedTensor]:
    """The head's tensors."""
    return [_planned(spec, dtype) for spec in head_specs(summary)]


def _planned(spec: TensorSpec, dtype: torch.dtype) -> PlannedTensor:
    whole = {DRAFT_TO_TARGET: torch.int64, TARGET_TO_DRAFT: torch.bool}
    # Norms stay in float32: loaders compute there, and a small pair may have stored them so.
    is_norm = spec.name.endswith("norm.weight")
    return PlannedTensor(
        spec.name, spec.shape, whole.get(spec.name, torch.float32 if is_norm else dtype)
    )
