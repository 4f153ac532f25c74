"""The composition root of the models' arithmetic: products, attention and what runs between."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

import torch

from aerie.attention import exact, pytorch
from aerie.attention.contract import PrepareAttention
from aerie.attention.gather import Rooms
from aerie.chips import CHIPS, MEASURED, record_of
from aerie.config import ModelConfig, require
from aerie.models.eight_bits import eight_bit_format
from aerie.models.geometry import Geometry
from aerie.models.layer_ops import CPU_OPS, TORCH_OPS, LayerOps, fused_ops
from aerie.models.linear import COLUMN_MAJOR, DENSE, DenseFormat, TiledLinear
from aerie.models.packed import BY_DEVICE, PackedProducts
from aerie.models.resolved import Resolved
from aerie.near_ties import LIMITS


@dataclass(frozen=True)
class Numerics:
    """How rows are multiplied, attended and treated in between."""

    dense: DenseFormat
    prepare_attention: PrepareAttention
    row_multiple: int
    is_fused: bool  # one product for q, k, v and one for gate, up
    is_head_fused: bool = False  # the same for the draft head
    ops: LayerOps = TORCH_OPS
    packed: PackedProducts = BY_DEVICE


# The least side of a tile that a matrix unit takes (`kernels/triton_gpu/exact_linear.py`).
EXACT_MULTIPLE = 16

NUMERICS = {
    "fast": Numerics(DENSE, pytorch.prepare, 1, True),
    # Vectorised exp and cos round differently from the scalar code that handles the last, odd
    # elements of an array. A multiple of 32 rows has no odd elements (16 lanes, unrolled twice).
    "exact": Numerics(DenseFormat(TiledLinear), exact.prepare, 32, False),
}


def find_numerics(config: ModelConfig, page_size: int = 1) -> Numerics:
    """How the rows of a configuration are computed whose device and dtype are chosen.

    `page_size` is what the KV memory promises: slots of a page follow each other.
    """
    found = NUMERICS[_kind(config)]
    if config.perf_mode:
        _require_fast(config)
    if config.numerics == "exact":
        return _exact_on_gpu(config) if config.device.startswith("cuda") else found
    found = replace(found, is_head_fused=True)
    if not config.device.startswith("cuda"):
        # Other dtypes are multiplied by another library, which packs weights as it likes.
        dense = COLUMN_MAJOR if config.dtype == "float32" else DENSE
        attention = partial(pytorch.prepare_blocks, rooms=Rooms())
        return replace(found, dense=dense, ops=CPU_OPS, prepare_attention=attention)
    chosen = {choice.name: choice.value for choice in choose_numerics(config)}
    if chosen["attention"] == "triton":
        found = replace(found, prepare_attention=_tree_attention(page_size, config.perf_mode))
    if chosen["layer_ops"] == "triton":
        found = replace(found, ops=fused_ops())
    if chosen["linear"] == "tuned":
        found = replace(found, dense=DenseFormat(_tuned_products(config)))
    return replace(found, packed=_packed_products(config))


# Rows from which a GPU writes packed weights out and leaves the product to the library. By the
# times of an H200 a weight takes 1.4 ps for every tile of 128 rows where its codes are multiplied;
# written out, read again and multiplied by the library, 1.2 ps and 0.3 ps for every 128 rows. That
# is arithmetic, by which 256 rows would do. But a weight that is written out is rounded, and near
# ties between a text with drafts and one without would be wider: so verifications, of 512 rows at
# most, multiply codes as plain steps do, and chunks of prompts alone take this way.
DENSE_FROM = 513


def _packed_products(config: ModelConfig) -> PackedProducts:
    """Fast ones on a GPU: the library unpacks where it was asked for, in perf mode nothing else.

    Many rows are multiplied densely there and nowhere else. Exact numerics need one order of sums
    for every number of rows; on a CPU a product unpacks its weight once for all rows as it is.
    """
    if config.linear == "library":
        return PackedProducts("pytorch", dense_from=DENSE_FROM)
    demanded_by = "perf_mode" if config.perf_mode else ""
    return PackedProducts(demanded_by=demanded_by, dense_from=DENSE_FROM)


def head_numerics(config: ModelConfig, page_size: int = 1) -> Numerics:
    """The draft's: on a GPU fast ones always, for what it proposes is verified anyway."""
    if config.device.startswith("cuda"):
        config = replace(config, numerics="fast")
    found = find_numerics(config, page_size)
    if choose_draft_products(config).value == "fp8":
        found = replace(found, dense=eight_bit_format(found.dense))
    return found


def near_limit(config: ModelConfig) -> float | None:
    """What a logit between 1 and 2 may move; None where numerics are exact and nothing does."""
    return None if _kind(config) == "exact" else LIMITS[config.dtype]


def row_multiple(config: ModelConfig) -> int:
    """What the rows of a forward are padded to."""
    return 1 if config.device.startswith("cuda") else NUMERICS[_kind(config)].row_multiple


def choose_kind(config: ModelConfig, geometry: Geometry, is_packed: bool = False) -> Resolved[str]:
    """Fast or exact numerics, with the reason; asked for, they must be possible.

    `is_packed` says whether the target's linears are.
    """
    is_gpu = config.device.startswith("cuda")
    missing, place = _not_covered(geometry, is_gpu), "GPU" if is_gpu else "CPU"
    if config.numerics != "auto":
        is_possible = config.numerics == "fast" or not missing
        words = f"exact numerics on a {place} do not cover {missing}: use numerics fast"
        require(is_possible, words)
        return Resolved("numerics", config.numerics, "config", "asked for")
    parts = ("attention", "layer_ops", "linear")
    reasons = {
        "on a CPU exact ones take several times as long": not is_gpu,
        "exact ones do not cover " + missing: bool(missing),
        f"exact ones are slow in {config.dtype}": config.dtype != "bfloat16",
        "exact ones read prompts several times slower from packed weights": is_packed,
        "exact ones have not run on this GPU": is_gpu and _device_table(config.device) is None,
        "a part of them was asked for": any(getattr(config, name) != "auto" for name in parts),
        "perf_mode is for them": config.perf_mode,
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason is not None:
        return Resolved("numerics", "fast", "automatic", reason)
    reason = "texts do not depend on what shares the batch, at 0.91 to 1.01 of the speed"
    return Resolved("numerics", "exact", "automatic", reason)


def _kind(config: ModelConfig) -> str:
    """Where nothing was chosen, fast."""
    return "exact" if config.numerics == "exact" else "fast"


def _not_covered(geometry: Geometry, is_gpu: bool) -> str:
    """What exact numerics cannot compute of an architecture; nothing: an empty text."""
    attention = geometry.attention
    heads = attention.n_heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
    widths = (geometry.hidden_size, geometry.mlp_width, geometry.vocab_size, *heads)
    # As many rows go through an expert as chose it, in one product: its bits depend on the batch.
    has = {"experts": geometry.experts is not None}
    if is_gpu:
        has |= {
            "sliding windows": any(window is not None for window in attention.windows),
            "attention sinks": attention.has_sinks,
            f"widths that {EXACT_MULTIPLE} does not divide": any(
                n % EXACT_MULTIPLE for n in widths
            ),
        }
    found = [name for name, holds in has.items() if holds]
    return f"{' and '.join(found)} ({geometry.architecture})" if found else ""


def _exact_on_gpu(config: ModelConfig) -> Numerics:
    # Late, as below.
    attention = importlib.import_module("aerie.attention.triton.exact")
    linear = importlib.import_module("aerie.kernels.triton_gpu.exact_linear")
    plans = importlib.import_module("aerie.kernels.triton_gpu.gemm_plan")
    name = _device_table(config.device) if config.dtype == "bfloat16" else None
    table = None if name is None else plans.shipped_table(name)
    dense = DenseFormat(linear.exact_linears(config.device, table).make)
    packed = PackedProducts(demanded_by="exact numerics on a GPU")
    return Numerics(dense, attention.ExactAttention(), 1, True, ops=fused_ops(), packed=packed)


def _require_fast(config: ModelConfig) -> None:
    """In perf mode nothing may stand in for the fast form of anything."""
    require(config.device.startswith("cuda"), "perf_mode needs a GPU: set device to cuda")
    require(_kind(config) == "fast", "perf_mode needs numerics fast")
    fast = {"attention": "triton", "layer_ops": "triton", "linear": "tuned"}
    for choice in choose_numerics(config):
        is_fast = choice.value == fast[choice.name]
        require(is_fast, f"perf_mode: {choice.name} is {choice.value} ({choice.reason})")


def choose_numerics(config: ModelConfig) -> tuple[Resolved[str], ...]:
    """Attention, products and small operations of a run, with the reasons."""
    is_gpu = config.device.startswith("cuda")
    if config.numerics == "exact":
        small = ("triton", "row by row") if is_gpu else ("pytorch", "row by row")
        made_of = {"attention": ("exact", "blocks by position"), "layer_ops": small}
        made_of["linear"] = ("exact", "one order along the inner axis")
        return tuple(
            Resolved(n, v, "config", f"numerics exact: {r}") for n, (v, r) in made_of.items()
        )
    is_tunable = is_gpu and config.dtype == "bfloat16" and _device_table(config.device) is not None
    automatic = {
        "attention": ("triton", "reads each key once for a whole tree"),
        "layer_ops": ("triton", "one launch for each, where PyTorch takes up to ten"),
        "linear": ("tuned", "a tuned table for this device is shipped")
        if is_tunable
        else ("library", "no table was tuned for this device and dtype"),
    }
    found = []
    for name, (value, reason) in automatic.items():
        asked = getattr(config, name)
        if asked != "auto":
            found.append(Resolved(name, asked, "config", "asked for"))
        elif not is_gpu:
            plain = "library" if name == "linear" else "pytorch"
            found.append(Resolved(name, plain, "automatic", "Triton compiles for GPUs only"))
        else:
            found.append(Resolved(name, value, "automatic", reason))
    return tuple(found)


def choose_draft_products(config: ModelConfig) -> Resolved[str]:
    """How the draft head's dense layers are multiplied, with the reason; packed ones stay so."""
    name, is_gpu = "draft_products", config.device.startswith("cuda")
    if config.draft_products != "auto":
        return Resolved(name, config.draft_products, "config", "asked for")
    reasons = {
        "eight bits are for a GPU's matrix units": not is_gpu,
        f"a draft in {config.dtype} was asked for": config.dtype != "bfloat16",
        "products of the library were asked for": config.linear == "library",
        "eight bits have not run on this GPU": is_gpu and _device_table(config.device) != MEASURED,
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason is not None:
        return Resolved(name, "dense", "automatic", reason)
    reason = "half the bytes of every draft, and what it proposes is verified"
    return Resolved(name, "fp8", "automatic", reason)


def leaves_padding_alone(config: ModelConfig) -> bool:
    """Whether attention takes rows that no request owns: the padding of a bucket."""
    chosen = {choice.name: choice.value for choice in choose_numerics(config)}
    return config.device.startswith("cuda") and chosen["attention"] in ("triton", "exact")


def _tree_attention(page_size: int, perf_mode: bool) -> PrepareAttention:
    # Late, here and below: a machine without a GPU has no triton.
    backend = importlib.import_module("aerie.attention.triton")
    options = backend.TritonOptions(page_size=page_size, perf_mode=perf_mode)
    made: PrepareAttention = backend.TritonAttention(backend.load_tiles(), options)
    return made


def _tuned_products(config: ModelConfig) -> Any:
    plans = importlib.import_module("aerie.kernels.triton_gpu.gemm_plan")
    linear = importlib.import_module("aerie.kernels.triton_gpu.tuned_linear")
    # Asked for where none was tuned: the plans of the measured chip, as this one can run them.
    table = plans.shipped_table(_device_table(config.device) or MEASURED)
    return linear.tuned_linears(table, config.device, config.perf_mode).make


def _device_table(device: str) -> str | None:
    """The shipped table of tuned products for a device, by its record; None if there is none."""
    if not torch.cuda.is_available():
        return None
    folder = resources.files("aerie").joinpath("kernels", "triton_gpu")
    tables = [entry.name for entry in folder.iterdir() if entry.name.startswith("gemm_")]
    named = [n.removeprefix("gemm_").removesuffix(".json") for n in tables if n.endswith(".json")]
    own = record_of(torch.device(device))
    return next((name for name in named if CHIPS.get(name) == own), None)
