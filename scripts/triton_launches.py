"""What an engine launches on a GPU, at the sizes it is recorded with: calls on tensors of no data.

The geometry is Llama-3.1-8B's with an EAGLE-3 head, and attention of gpt-oss beside it. Batches,
rows, chunks and columns are the ends and the middle of what a configuration's graphs may ask for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.attention.contract import LayerAttention, PrepareAttention, Reach
from aerie.attention.rows import Bounds, Rows
from aerie.attention.triton import TritonAttention, load_tiles
from aerie.attention.triton.exact import ExactAttention
from aerie.bench.kernels.attention import PRODUCTION, Heads
from aerie.bench.kernels.workload import Shape, workload
from aerie.chips import MEASURED, DeviceRecord
from aerie.config import GraphConfig
from aerie.kernels import catalogue
from aerie.kernels.cards.experts import BLOCK, padded_pitch
from aerie.kernels.cases.case import Inputs
from aerie.kernels.kernel import Kernel
from aerie.kernels.tensors import adopt
from aerie.kernels.triton_gpu import (
    KERNELS,
    experts,
    fp8_rows,
    fused,
    packed,
    packed_floats,
    routing,
    unpack,
)
from aerie.kernels.triton_gpu.exact_linear import walk_plan
from aerie.kernels.triton_gpu.gemm import GemmScratch, gemm_scratch, product
from aerie.kernels.triton_gpu.gemm_plan import Key, Plan, shipped_table

Launch = Callable[[], object]

HIDDEN, FFN, VOCABULARY = 4096, 14336, 128256
N_EXPERTS, N_ACTIVE, EXPERT_WIDTH = 128, 4, 2880  # gpt-oss-120b
# Requests and rows of each; logits of more rows in all would only take memory.
ROUNDS = ((1, 16), (4, 64), (64, 4))
MOST_COLUMNS = 33792
WINDOWED = Heads(64, 8, 64)  # gpt-oss: every other layer sees 128 positions and a sink
SINKS = torch.empty(WINDOWED.n_heads, device="meta")
LAYER_KINDS = (
    (PRODUCTION, LayerAttention(0.1, Reach()), torch.bfloat16),
    (PRODUCTION, LayerAttention(0.1, Reach(512, 4)), torch.bfloat16),  # a streaming draft
    (PRODUCTION, LayerAttention(0.1, Reach()), torch.float32),
    (WINDOWED, LayerAttention(0.1, Reach(128), SINKS), torch.bfloat16),
    (WINDOWED, LayerAttention(0.1, Reach(), SINKS), torch.bfloat16),
)


def of_engine(device: DeviceRecord) -> Iterator[Launch]:
    """All of them; the compiler keeps those whose code differs."""
    yield from of_rounds()
    yield from of_layers()
    yield from of_products(device)
    yield from of_attention()
    yield from of_exact(device)
    yield from of_packed()
    yield from of_drafts()
    yield from of_experts()


def sample(device: DeviceRecord) -> Iterator[Launch]:
    """One of each kind, for a quick look: a small kernel, a norm, the largest product, a tree."""
    yield calling("toss_coins", workload(Shape(1, 4, 8, 64, 8))["toss_coins"])
    yield next(of_layers())
    plans = shipped_table(MEASURED).fitted(device).plans
    largest = max(plans, key=lambda key: plans[key].shared_bytes)
    yield _product(largest, plans[largest], gemm_scratch("meta"))
    rows = _rows(1, Bounds(64, MOST_COLUMNS, 64))
    yield partial(_attend, TritonAttention(load_tiles()), rows, *LAYER_KINDS[0])


def of_rounds() -> Iterator[Launch]:
    """Every kernel of a round and of the sampler; of these with every option and with none."""
    for batch, verify in ROUNDS:
        shape = Shape(batch, verify, 1024, VOCABULARY, HIDDEN)
        for name, inputs in workload(shape).items():
            if name in KERNELS:
                yield calling(name, _as_stored(inputs))
            if name in KERNELS and (check := KERNELS[name].check):
                yield partial(check, **_placed(inputs))  # first, where failures are exceptions
            if name in ("sample_target_tokens", "find_near_ties"):
                yield calling(
                    name, {**_as_stored(inputs), **_options(batch, len(inputs["logits"]))}
                )
            if name == "forbid_tokens":  # of a draft, which may know a part of them
                ids = np.arange(VOCABULARY, dtype=np.int64)[None]
                logits = _as_bfloat16(inputs["logits"])
                yield calling(name, {**inputs, "logits": logits, "token_ids": ids})
            if name == "best_draft_children":
                yield calling(name, {**inputs, "logits": _as_bfloat16(inputs["logits"])})


def calling(name: str, inputs: Inputs) -> Launch:
    """A call of a kernel as the engine makes it; unlike its result, its arguments need data."""
    kernel = Kernel(catalogue()[name], KERNELS[name], adopt, False)
    return partial(kernel, **inputs)


def _placed(inputs: Inputs) -> Inputs:
    """Arrays as tensors."""
    arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
    return {**inputs, **{name: adopt(array, "cpu", False) for name, array in arrays.items()}}


STORED = ("keys", "values", "queries", "near_keys", "near_values")


def _as_stored(inputs: Inputs) -> Inputs:
    """Hidden states and KV in the dtype of a GPU's."""
    stored = {
        name: _as_bfloat16(value)
        for name, value in inputs.items()
        if getattr(value, "dtype", None) == np.float16 or name in STORED
    }
    return {**inputs, **stored}


def _as_bfloat16(array: Any) -> Tensor:
    return torch.from_numpy(array).bfloat16()


def _options(batch: int, n_rows: int) -> Inputs:
    """Every column of `engine/sampler.py`."""
    numbers = ("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    counted = ("seed", "sample_index", "top_k", "floor_position")
    counts = np.zeros((2, batch, VOCABULARY), np.int32)
    return {
        **{name: np.ones(batch, np.float32) for name in numbers},
        **{name: np.ones(batch, np.int64) for name in counted},
        "prompt_counts": counts[0],
        "output_counts": counts[1],
        "draft_tokens": np.zeros(n_rows, np.int64),
        "ancestor_bits": np.zeros((n_rows, 4), np.uint32),
        "logit_bias": np.zeros((batch, VOCABULARY), np.float32),
        "stop_tokens": np.full((batch, 2), -1),
    }


def of_layers() -> Iterator[Launch]:
    """What runs between the products of a layer, one row and many."""
    for n_rows, dtype in itertools.product((1, 64), (torch.bfloat16, torch.float32)):
        hidden, weight = _empty(n_rows, HIDDEN, dtype=dtype), _empty(HIDDEN, dtype=dtype)
        yield partial(fused.normalise, hidden, weight, 1e-5)
        yield partial(fused.add_normalise, hidden, hidden, weight, 1e-5)
        yield partial(fused.gate, *_empty(n_rows, 2 * FFN, dtype=dtype).chunk(2, 1))
        for heads in (PRODUCTION, WINDOWED):
            yield partial(_rotate, heads, n_rows, dtype)
        positions, frequencies = _empty(n_rows, dtype=torch.int64), _empty(PRODUCTION.head_dim // 2)
        yield partial(fused.turn, positions, frequencies, 1.0)


def _rotate(heads: Heads, n_rows: int, dtype: torch.dtype) -> None:
    counts = (heads.n_heads, heads.n_kv_heads, heads.n_kv_heads)
    whole = _empty(n_rows, sum(counts), heads.head_dim, dtype=dtype)
    angles = _empty(n_rows, 1, heads.head_dim // 2)
    pool = _empty(256, heads.n_kv_heads, heads.head_dim, dtype=dtype)
    slots = _empty(n_rows, dtype=torch.int64)
    fused.rotate_store(whole.split(counts, 1), (angles, angles), slots, (pool, pool))


def of_products(device: DeviceRecord) -> Iterator[Launch]:
    """Every plan of the shipped table, as a device can run it."""
    scratch = gemm_scratch("meta")
    for key, plan in shipped_table(MEASURED).fitted(device).plans.items():
        if plan.kind != "cublas":
            yield _product(key, plan, scratch)


def _product(key: Key, plan: Plan, scratch: GemmScratch) -> Launch:
    x, weight = (_empty(n, key.n_in, dtype=torch.bfloat16) for n in (key.rows, key.n_out))
    return partial(product, x, weight, None, plan, scratch)


def of_attention() -> Iterator[Launch]:
    """Trees, single rows and prompt chunks over every number of columns that chooses a tile."""
    backend, sizes = TritonAttention(load_tiles()), GraphConfig()
    trees = [(n, n) for n in (1, *sizes.tiles)]
    chunks = [(n, 0) for n in sizes.chunks]
    columns = (*sizes.columns, 16384, MOST_COLUMNS)
    for (n_rows, tree), n_columns, batch in itertools.product((*trees, *chunks), columns, (1, 8)):
        if n_rows * batch > sizes.chunks[-1] or n_rows > n_columns:
            continue
        rows = _rows(batch, Bounds(n_rows, n_columns, tree))
        for heads, layer, dtype in LAYER_KINDS:
            if dtype == torch.bfloat16 or n_rows <= sizes.tiles[-1]:
                yield partial(_attend, backend, rows, heads, layer, dtype)


def of_exact(device: DeviceRecord) -> Iterator[Launch]:
    """What takes the place of products and attention where numerics are exact."""
    scratch, sizes = gemm_scratch("meta"), GraphConfig()
    shapes = ((HIDDEN, FFN), (2 * FFN, HIDDEN))
    for n_rows, (n_out, n_in) in itertools.product((*sizes.rows, *sizes.chunks), shapes):
        plan = walk_plan(n_out, n_in, n_rows).fitted(device)
        yield _product(Key(n_out, n_in, n_rows), plan, scratch)
    trees = [(n, n, batch) for n in (1, *sizes.tiles) for batch in (1, 8, 64)]
    chunks = [(n, 0, 1) for n in (sizes.chunks[0], sizes.chunks[-1])]
    for n_rows, tree, batch in (*trees, *chunks):
        for columns, dtype in itertools.product(
            (8192, MOST_COLUMNS), (torch.bfloat16, torch.float32)
        ):
            rows = _rows(batch, Bounds(n_rows, columns, tree))
            yield partial(_attend, ExactAttention(), rows, *LAYER_KINDS[0][:2], dtype)


def of_packed() -> Iterator[Launch]:
    """Products with packed weights: few rows, a tree's and a chunk; weights written out; short
    steps; float32."""
    wide, narrow = (2 * FFN, HIDDEN), (HIDDEN, FFN)
    for n_rows in (1, 64, 2048):
        yield partial(_four_bits, n_rows, *wide, 128, torch.bfloat16)
        yield partial(_eight_bits, n_rows, *wide, 128, torch.bfloat16)
    for group_size, dtype in ((32, torch.bfloat16), (128, torch.float32)):
        yield partial(_four_bits, 1, *narrow, group_size, dtype)
        yield partial(_eight_bits, 1, *narrow, group_size, dtype)
        yield partial(_four_bits_out, *wide, group_size, dtype)
        yield partial(_eight_bits_out, *wide, group_size, dtype)
    yield partial(_four_bits_out, *wide, 128, torch.bfloat16)
    yield partial(_eight_bits_out, *wide, 128, torch.bfloat16)


def _four_bits(n_rows: int, n_out: int, n_in: int, group_size: int, dtype: torch.dtype) -> None:
    by_group = (n_in // group_size, n_out)
    packed.multiply_int4(
        x=_empty(n_rows, n_in, dtype=dtype),
        codes=_empty(n_out, n_in // 2, dtype=torch.uint8),
        scales=_empty(*by_group),
        zeros=_empty(*by_group, dtype=torch.uint8),
        group_size=group_size,
    )


def _eight_bits(n_rows: int, n_out: int, n_in: int, group_size: int, dtype: torch.dtype) -> None:
    packed_floats.multiply_fp8(
        x=_empty(n_rows, n_in, dtype=dtype),
        codes=_empty(n_out, n_in, dtype=torch.uint8),
        scales=_empty(n_in // group_size, n_out),
        group_size=group_size,
    )


def _four_bits_out(n_out: int, n_in: int, group_size: int, dtype: torch.dtype) -> None:
    by_group = (n_in // group_size, n_out)
    unpack.unpack_int4(
        weight=_empty(n_out, n_in, dtype=dtype),
        codes=_empty(n_out, n_in // 2, dtype=torch.uint8),
        scales=_empty(*by_group),
        zeros=_empty(*by_group, dtype=torch.uint8),
        group_size=group_size,
    )


def _eight_bits_out(n_out: int, n_in: int, group_size: int, dtype: torch.dtype) -> None:
    unpack.unpack_fp8(
        weight=_empty(n_out, n_in, dtype=dtype),
        codes=_empty(n_out, n_in, dtype=torch.uint8),
        scales=_empty(n_in // group_size, n_out),
        group_size=group_size,
    )


def of_drafts() -> Iterator[Launch]:
    """Products of a head in eight bits: every tile, sides that no tile divides, and float32."""
    for n_rows in (1, 32, 64, 512):
        yield partial(_eight_bit_rows, n_rows, 2 * FFN, HIDDEN)
    yield partial(_eight_bit_rows, 1, HIDDEN, FFN)
    yield partial(_eight_bit_rows, 1, EXPERT_WIDTH + 8, EXPERT_WIDTH)
    yield partial(_eight_bit_rows, 64, HIDDEN, HIDDEN, torch.float32)


def _eight_bit_rows(
    n_rows: int, n_out: int, n_in: int, dtype: torch.dtype = torch.bfloat16
) -> None:
    fp8_rows.multiply_fp8_rows(
        x=_empty(n_rows, n_in, dtype=dtype),
        codes=_empty(n_out, n_in, dtype=torch.uint8),
        scales=_empty(n_out),
    )


def of_experts() -> Iterator[Launch]:
    """A mixture's products: both of an expert, from one row to a chunk; scales of any size."""
    for n_rows in (1, 64, 512, 2048):
        yield partial(_experts, n_rows, N_ACTIVE, 2 * EXPERT_WIDTH, 2)
        yield partial(_experts, n_rows * N_ACTIVE, 1, EXPERT_WIDTH, 0)
    yield partial(_experts, 1, N_ACTIVE, EXPERT_WIDTH, 0, largest_scale=252)
    yield partial(_experts, 1, N_ACTIVE, EXPERT_WIDTH, 0, dtype=torch.float32)
    for n_rows in (1, 8, 64):
        yield partial(routing.route, _empty(n_rows, N_EXPERTS, dtype=torch.bfloat16), N_ACTIVE)
        outputs = _empty(n_rows * N_ACTIVE, EXPERT_WIDTH, dtype=torch.bfloat16)
        yield partial(routing.mix, outputs, _empty(n_rows, N_ACTIVE))


def _experts(
    n_rows: int,
    n_active: int,
    n_out: int,
    n_gate: int,
    largest_scale: int = 128,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    n_blocks = EXPERT_WIDTH // BLOCK
    pitch = padded_pitch(n_blocks)
    experts.multiply_experts(
        x=_empty(n_rows, EXPERT_WIDTH, dtype=dtype),
        blocks=_empty(N_EXPERTS, n_out, n_blocks, BLOCK // 2, dtype=torch.uint8),
        scales=_empty(N_EXPERTS, n_out, pitch, dtype=torch.uint8)[..., :n_blocks],
        bias=_empty(N_EXPERTS, n_out, dtype=dtype),
        order=_empty(n_rows * n_active, dtype=torch.int32),
        starts=_empty(N_EXPERTS + 1, dtype=torch.int32),
        gate=_empty(n_gate),
        n_active=n_active,
        largest_scale=largest_scale,
    )


def _attend(
    backend: PrepareAttention, rows: Rows, heads: Heads, layer: LayerAttention, dtype: torch.dtype
) -> None:
    queries = _empty(rows.n_rows, heads.n_heads, heads.head_dim, dtype=dtype)
    keys = _empty(4096, heads.n_kv_heads, heads.head_dim, dtype=dtype)
    backend(rows, [layer.reach])(queries, keys, keys, layer)


def _rows(batch: int, bounds: Bounds) -> Rows:
    n_rows, n_columns = batch * bounds.rows, batch * bounds.columns
    return Rows(
        tokens=_empty(n_rows, dtype=torch.int64),
        positions=_empty(n_rows, dtype=torch.int64),
        kv_slots=_empty(n_rows, dtype=torch.int64),
        visible_prefix=_empty(n_rows, dtype=torch.int32),
        ancestor_bits=_empty(n_rows, 4, dtype=torch.int32),
        qo_indptr=_empty(batch + 1, dtype=torch.int32),
        kv_indptr=_empty(batch + 1, dtype=torch.int32),
        kv_indices=_empty(n_columns, dtype=torch.int32),
        column_positions=_empty(n_columns, dtype=torch.int32),
        tree_start=_empty(batch, dtype=torch.int32),
        bounds=bounds,
    )


def _empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(size, dtype=dtype, device="meta")
