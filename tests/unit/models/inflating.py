"""Small random pairs, geometries to inflate them into, and the comparison in float64; shared.

pair = write_pair(tmp_path, STRETCHED)
assert_exact(compare(pair, STRETCHED.geometry, plan_inflation(pair, STRETCHED.geometry)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aerie.attention.contract import Reach
from aerie.models.blueprint import expected_tensors
from aerie.models.eagle3 import blueprint as eagle3_blueprint
from aerie.models.eagle3.convert import write_head
from aerie.models.eagle3.export import ExportDetails, NormalHead
from aerie.models.eagle3.values import HeadConvention, HeadGeometry, HeadStorage
from aerie.models.eagle3.vocabulary import check_map
from aerie.models.fields import Fields
from aerie.models.geometry import Geometry, parse_geometry
from aerie.models.inflate.geometry import BlockSizes, ProductionGeometry
from aerie.models.inflate.paint import Canvas
from aerie.models.inflate.pair import SmallPair, read_pair
from aerie.models.inflate.plan import GAP, InflationPlan
from aerie.models.inflate.shapes import head_specs, large_head, large_target
from aerie.models.inflate.tensors import InflatedHead, InflatedTarget
from aerie.models.linear import DENSE
from aerie.models.rope import RopeSettings
from tests.oracles import decoder_straight_line
from tests.oracles.eagle3_straight_line import Plan, draft
from tests.unit.models.handmade import write_directory

Tensors = dict[str, Tensor]
Patch = Callable[[Tensors], None]  # changes large tensors in place, as a wrong recipe would

N_TOKENS, N_DRAFTED = 14, 4
CANVAS = Canvas(torch.device("cpu"), seed=5)


@dataclass(frozen=True)
class Example:
    """A small pair's sizes and the geometry it goes into."""

    geometry: ProductionGeometry
    block: BlockSizes
    hidden: int = 32
    n_layers: int = 4
    vocab: int = 50
    drafts: int = 20
    taps: tuple[int, ...] = (1, 2, 3)
    target_fields: dict[str, Any] = field(default_factory=dict)
    head_fields: dict[str, Any] = field(default_factory=dict)  # of HeadGeometry
    storage: dict[str, Any] = field(default_factory=dict)  # of HeadStorage
    convention: dict[str, Any] = field(default_factory=dict)  # of HeadConvention


def large(hidden: int, block: BlockSizes, **fields: Any) -> ProductionGeometry:
    base = ProductionGeometry(9, hidden, 96, 41, block, block)
    return replace(base, **fields)


# Head dimensions twice as large, two heads of one KV head among eight of two.
STRETCHED = Example(large(128, BlockSizes(8, 2, 32, 96)), BlockSizes(2, 1, 16, 40))
# Every factor a power of two: exact in bf16.
BINARY = Example(large(128, BlockSizes(8, 4, 32, 96)), BlockSizes(4, 2, 8, 40))
# What a file says of that geometry.
SIZES = {
    "num_hidden_layers": 9,
    "hidden_size": 128,
    "vocab_size": 96,
    "draft_vocab_size": 41,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 96,
}
# Four queries of one KV head, where a large KV head serves two.
COPIED = Example(large(256, BlockSizes(8, 4, 8, 64)), BlockSizes(4, 1, 8, 40))
# Everything a plain pair has not: biases, two draft layers, a narrower head with an embedding of
# its own, another eps, theta and rule, a logit scale, captured states in no order.
ODD = Example(
    large(96, BlockSizes(6, 3, 24, 50), n_layers=11, draft=BlockSizes(8, 8, 16, 48)),
    BlockSizes(4, 2, 8, 40),
    taps=(4, 0),
    target_fields={"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 2e-2},
    head_fields={
        "hidden_size": 24,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "head_dim": 4,
        "norm_eps": 1e-3,
        "rope": RopeSettings("llama3", 700.0, 8.0, 16, 1.0, 4.0),
    },
    storage={"has_own_embedding": True, "has_fc_bias": True, "has_qkv_bias": True},
    convention={"logit_scale": 0.25},
)
# The head reads the target's own LM head; the large one drafts from fewer ids than there are.
SHARED = Example(
    large(128, BlockSizes(8, 4, 32, 96), draft_vocab_size=64),
    BlockSizes(4, 2, 8, 40),
    drafts=50,
    storage={"has_own_head": False},
)
# Only layers are added: no dead vocabulary, no constant.
DEEPER = Example(
    large(32, BlockSizes(4, 2, 8, 40), vocab_size=50, draft_vocab_size=20),
    BlockSizes(4, 2, 8, 40),
)
EXAMPLES = {
    "stretched": STRETCHED,
    "binary": BINARY,
    "copied": COPIED,
    "odd": ODD,
    "shared": SHARED,
    "deeper": DEEPER,
}


def target_config(example: Example) -> dict[str, Any]:
    block = example.block
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": example.vocab,
        "hidden_size": example.hidden,
        "intermediate_size": block.mlp_width,
        "num_hidden_layers": example.n_layers,
        "num_attention_heads": block.n_heads,
        "num_key_value_heads": block.n_kv_heads,
        "head_dim": block.head_dim,
        "rms_norm_eps": 3e-3,  # large enough to be missed in the logits
        "rope_theta": 5000.0,
        "max_position_embeddings": 2048,
    }
    return config | example.target_fields


def random_values(specs: Mapping[str, tuple[int, ...]], seed: int) -> Tensors:
    """Values of a trained model's size; norms are not all ones."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in specs.items():
        if name.endswith("norm.weight"):
            out[name] = torch.rand(shape, generator=generator) * 0.8 + 0.6
        else:
            scale = 1.2 * shape[-1] ** -0.5 if len(shape) > 1 else 0.4
            out[name] = torch.randn(shape, generator=generator) * scale
    return out


def sharpen(tensors: Tensors, embedding: str, output: str, seed: int) -> None:
    """Let each token have a likely successor, so that first choices are no near ties."""
    table = tensors[embedding]
    order = torch.randperm(table.shape[0], generator=torch.Generator().manual_seed(seed))
    tensors[output] += 3 * table[order][: tensors[output].shape[0]]


def write_pair(parent: Path, example: Example, dtype: torch.dtype = torch.float32) -> SmallPair:
    """Write a random pair and read it back, as a user's would be."""
    config = target_config(example)
    geometry = parse_geometry(Fields(config, "test"))
    shapes = {spec.name: spec.shape for spec in expected_tensors(geometry, DENSE)}
    tensors = random_values(shapes, seed=7)
    tensors["model.embed_tokens.weight"] *= 2
    sharpen(tensors, "model.embed_tokens.weight", "lm_head.weight", 4)
    if geometry.has_tied_head:
        del tensors["lm_head.weight"]
    cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    write_directory(parent / "target", config, cast)
    head = small_head(example, geometry)
    stored = {name: t.to(dtype) if t.is_floating_point() else t for name, t in head.tensors.items()}
    write_head(parent / "head", replace(head, tensors=stored), "speculators", ExportDetails())
    return read_pair(parent / "target", parent / "head")


def small_head(example: Example, target: Geometry) -> NormalHead:
    block = example.block
    geometry = HeadGeometry(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        n_captures=len(example.taps),
        n_layers=1,
        n_heads=block.n_heads,
        n_kv_heads=block.n_kv_heads,
        head_dim=block.head_dim,
        mlp_width=block.mlp_width,
        vocab_size=target.vocab_size,
        draft_vocab_size=example.drafts,
        rope=RopeSettings("default", 10000.0),
        norm_eps=3e-3,
    )
    geometry = replace(geometry, **example.head_fields)
    convention = HeadConvention(example.taps, True, False, False, False, False, 1.0, Reach())
    convention = replace(convention, **example.convention)
    storage = HeadStorage(False, True, False, False, False, False, False, "input_layernorm")
    storage = replace(storage, **example.storage)
    specs = eagle3_blueprint.expected_tensors(geometry, convention, storage)
    for name, shape in eagle3_blueprint.all_linears(geometry, storage).items():
        specs += DENSE.tensors(name, shape)
    shapes = {spec.name: spec.shape for spec in specs if spec.name not in ("d2t", "t2d")}
    tensors = random_values(shapes, seed=11)
    if example.drafts < example.vocab:
        generator = torch.Generator().manual_seed(3)
        ids = torch.randperm(example.vocab, generator=generator)[: example.drafts].sort().values
        tensors["d2t"] = ids - torch.arange(example.drafts)
    return NormalHead(geometry, convention, tensors)


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far a large pair is from its small one."""

    target_error: float
    head_error: float
    target_gap: float  # of the lowest live logit over the highest dead one
    head_gap: float
    is_map_right: bool


def assert_exact(found: Comparison) -> None:
    """The one definition of an exact inflation; every mutation must break it."""
    assert found.target_error <= 1e-10, found
    assert found.head_error <= 1e-10, found
    assert found.target_gap >= GAP, found
    assert found.head_gap >= GAP, found
    assert found.is_map_right, found


def compare(
    pair: SmallPair,
    geometry: ProductionGeometry,
    plan: InflationPlan,
    patch: Patch = lambda tensors: None,
) -> Comparison:
    """Both pairs in float64 through the oracles; `patch` spoils the large tensors first."""
    values, summary = large_target(pair, plan, geometry), large_head(pair, plan, geometry)
    maker, head_maker = InflatedTarget(plan, pair, CANVAS), InflatedHead(plan, pair, CANVAS)
    tensors = {
        spec.name: maker.make(spec.name, torch.float64) for spec in expected_tensors(values, DENSE)
    }
    head = {spec.name: head_maker.make(spec.name, torch.float64) for spec in head_specs(summary)}
    whole = {**tensors, **{f"head:{name}": tensor for name, tensor in head.items()}}
    patch(whole)
    tensors = {name: t for name, t in whole.items() if not name.startswith("head:")}
    head = {n.removeprefix("head:"): t for n, t in whole.items() if n.startswith("head:")}
    big = run(values, tensors, NormalHead(summary.geometry, summary.convention, head))
    own = run(pair.geometry, dict(pair.tensors), pair.head)
    n_ids, n_drafts = pair.geometry.vocab_size, pair.head.geometry.draft_vocab_size
    offences = check_map(head["d2t"], head["t2d"], geometry.vocab_size)
    small_map = pair.head.tensors.get("d2t", torch.zeros(n_drafts, dtype=torch.int64))
    dead = plan.draft_ids[n_drafts:]
    return Comparison(
        target_error=float((big[0][:, :n_ids] - own[0]).abs().max()),
        head_error=float((big[1][:, :n_drafts] - own[1]).abs().max()),
        target_gap=gap(big[0], n_ids),
        head_gap=gap(big[1], n_drafts),
        is_map_right=not offences
        and torch.equal(head["d2t"][:n_drafts], small_map)
        and bool((dead >= n_ids).all()),
    )


def gap(logits: Tensor, n_live: int) -> float:
    if logits.shape[1] == n_live:
        return float("inf")
    return float(logits[:, :n_live].min() - logits[:, n_live:].max())


def run(geometry: Geometry, tensors: Tensors, head: NormalHead) -> tuple[Tensor, Tensor]:
    """Logits of the target over some tokens, and of the head over them and some drafted ones."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (N_TOKENS,), generator=generator)
    drafted = torch.randint(0, 50, (N_DRAFTED,), generator=generator)
    attention = geometry.attention
    plan = Plan(
        attention.n_heads,
        attention.n_kv_heads,
        attention.head_dim,
        n_layers=geometry.n_layers,
        eps=geometry.norm_eps,
        theta=geometry.rope.theta,
    )
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    weights = plain_names(wide, "attention_norm")
    states = decoder_straight_line.states(tokens, weights, plan)
    logits = decoder_straight_line.logits(states[-1], weights, plan)
    own = plain_names(dict(head.tensors), "hidden_norm")
    own.setdefault("embed", weights["embed"])
    own.setdefault("lm_head", weights["lm_head"])
    captured = [states[boundary][:-1] for boundary in head.convention.boundaries]
    stages = draft(captured, tokens[1:], drafted, own, head_plan(head))
    return logits, torch.cat([stage["logits"] for stage in stages])


def head_plan(head: NormalHead) -> Plan:
    geometry, rope = head.geometry, head.geometry.rope
    scaling = (rope.factor, rope.low_frequency, rope.high_frequency, rope.original_positions)
    return Plan(
        geometry.n_heads,
        geometry.n_kv_heads,
        geometry.head_dim,
        n_layers=geometry.n_layers,
        eps=geometry.norm_eps,
        theta=rope.theta,
        llama3=scaling if rope.kind == "llama3" else None,
        logit_scale=head.convention.logit_scale,
    )


def plain_names(tensors: Tensors, input_norm: str) -> Tensors:
    """Checkpoint names as the oracles spell them; `input_norm` is what layers begin with."""
    whole = {"embed_tokens": "embed", "norm": "norm", "lm_head": "lm_head", "fc": "fc"}
    inner = {f"{p}_proj": p for p in ("q", "k", "v", "o", "gate", "up", "down")}
    inner["post_attention_layernorm"] = "post_norm"
    out = {}
    for name, tensor in tensors.items():
        parts = name.removeprefix("model.").split(".")
        suffix = "_bias" if parts[-1] == "bias" else ""
        if parts[0] in whole:
            out[f"{whole[parts[0]]}{suffix}"] = tensor
        elif parts[0] == "layers":
            inputs = {"input_layernorm": input_norm, "hidden_norm": "hidden_norm"}
            if input_norm == "hidden_norm" and parts[1] == "0":
                inputs["input_layernorm"] = "embed_norm"
            out[f"{parts[1]}.{({**inner, **inputs})[parts[-2]]}{suffix}"] = tensor
    return out
