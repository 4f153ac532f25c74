"""Cases of a mixture's products, R25: routings, gates, dtypes, odd shapes, limits."""

from __future__ import annotations

import numpy as np

from aerie.kernels.cards.experts import BLOCK, MOST_BLOCKS, MOST_EXPERTS, MOST_PAIRS
from aerie.kernels.cards.products import MOST_OUT
from aerie.kernels.cases.draws import bounds_of
from aerie.kernels.cases.products import some_rows
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row

EXPERTS = "multiply_experts"
GATE = (1.702, 7.0)


def draw_experts(
    rng: Rng,
    sizes: tuple[int, int, int] = (3, 6, 64),
    routed: tuple[int, int] = (5, 2),
    dtype: str = "float32",
    gate: tuple[float, ...] = (),
    has_bias: bool = False,
    chosen: int | None = None,
) -> Inputs:
    """R25 inputs of `sizes`: rows, outputs, inputs; `routed`: experts, and how many a row takes.

    `chosen` is the one expert of every pair.
    """
    (n_rows, n_out, n_in), (experts, n_active) = sizes, routed
    shape = (experts, n_out, n_in // BLOCK)
    if chosen is None:  # a row's experts are distinct
        drawn = np.argsort(rng.random((n_rows, experts)), axis=1)[:, :n_active]
    else:
        drawn = np.full((n_rows, n_active), chosen)
    counts = np.bincount(drawn.ravel(), minlength=experts)
    inputs = {
        "x": some_rows(rng, (n_rows, n_in), dtype),
        "blocks": rng.integers(0, 256, (*shape, BLOCK // 2)).astype(np.uint8),
        "scales": rng.integers(118, 125, shape).astype(np.uint8),
        "order": np.argsort(drawn.ravel(), kind="stable").astype(np.int32),
        "starts": bounds_of(counts),
        "gate": np.array(gate, np.float32),
        "n_active": n_active,
        "largest_scale": 128,
    }
    return inputs | ({"bias": some_rows(rng, (experts, n_out), dtype)} if has_bias else {})


def _as_rows(inputs: Inputs) -> None:
    """Every pair a row of its own, as the second product of an expert has them."""
    n_pairs, x = len(inputs["order"]), inputs["x"]
    inputs |= {"x": np.repeat(x, n_pairs // max(1, len(x)), axis=0), "n_active": 1}


_ROWS = (
    row("r3_plain", "plain"),
    row("r3_bias", "bias", has_bias=True),
    row("r3_gated", "gate", gate=GATE),
    row("r3_gated_bias", "gate bias", gate=GATE, has_bias=True),
    row("r1_one_row", "one_row", sizes=(1, 6, 64)),
    row("r1_smallest", "smallest", sizes=(1, 1, 32), routed=(1, 1)),
    row("r1_one_gated_output", "smallest gate", sizes=(1, 2, 32), gate=GATE),
    row("r4_of_many_experts", "many_experts", sizes=(4, 6, 64), routed=(37, 4)),
    row("r5_one_active", "one_active", sizes=(5, 6, 64), routed=(5, 1)),
    row("r3_every_expert", "all_active", routed=(5, 5)),
    row("r9_one_expert", "one_expert", sizes=(9, 6, 64), chosen=2),
    row("r9_first_expert", "first_expert", sizes=(9, 6, 64), chosen=0),
    row("r9_last_expert", "last_expert", sizes=(9, 6, 64), chosen=4),
    row("r17_a_tile_and_one", "tile_edge", sizes=(17, 4, 32), chosen=1, routed=(5, 1)),
    row("r16_a_tile", "tile", sizes=(16, 4, 32), chosen=1, routed=(5, 1)),
    row("r70_a_chunk", "chunk", sizes=(70, 6, 64), routed=(3, 2)),
    row("r70_a_gated_chunk", "chunk gate", sizes=(70, 6, 64), routed=(3, 2), gate=GATE),
    row("r2_prime_outputs", "prime", sizes=(2, 17, 32)),
    row("r2_tile_of_outputs", "wide", sizes=(2, 130, 32)),
    row("r3_three_blocks", "blocks_3", sizes=(3, 4, 96)),
    row("r3_five_blocks", "blocks_5", sizes=(3, 4, 160), has_bias=True),
    row("r2_nine_blocks", "blocks_9", sizes=(2, 4, 288), gate=GATE),
    row("r3_pairs_are_rows", "pairs", _as_rows),
    row("r3_float16", "float16", dtype="float16"),
    row("r3_float16_gated", "float16 gate bias", dtype="float16", gate=GATE, has_bias=True),
    row("r3_bf16", "bfloat16", dtype="bfloat16"),
    row("r3_bf16_gated", "bfloat16 gate bias", dtype="bfloat16", gate=GATE, has_bias=True),
    row("r20_bf16_chunk", "bfloat16 chunk", sizes=(20, 6, 160), dtype="bfloat16", gate=GATE),
    row("r3_every_code", "codes",
        put("blocks", ..., np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)),
        sizes=(3, 1, 512), routed=(1, 1)),
    row("r3_zeros", "zero", put("blocks", ..., 0x80)),
    row("r3_rows_of_zero", "zero rows", put("x", ..., 0.0)),
    row("r3_small_scales", "scales_small", put("scales", ..., 60)),
    row("r3_least_scale", "scales_least", put("scales", np.s_[:, ::2], 0)),
    row("r3_large_scales", "scales_large", put("scales", ..., 240), setting(largest_scale=240)),
    row("r3_bf16_large_scales", "bfloat16 scales_large", put("scales", np.s_[:, ::2], 150),
        setting(largest_scale=150), dtype="bfloat16"),
    row("r3_clamped", "gate clamped", put("scales", ..., 130), setting(largest_scale=130),
        gate=GATE),
    row("r3_no_limit", "gate unlimited", gate=(1.0, 3e38)),
    row("r0", "empty empty_batch", sizes=(0, 6, 64)),
    row("r0_gated", "empty gate", sizes=(0, 6, 64), gate=GATE),
    row("x1024", "experts_limit", sizes=(3, 2, 32), routed=(MOST_EXPERTS, 2)),
    row("x1025", "beyond_experts", BOUNDS, sizes=(3, 2, 32), routed=(MOST_EXPERTS + 1, 2)),
    row("r65536", "batch_limit", sizes=(MOST_PAIRS, 1, 32), routed=(5, 1)),
    row("r65537", "beyond_rows", BOUNDS, sizes=(MOST_PAIRS + 1, 1, 32), routed=(5, 1)),
    row("pairs_65538", "beyond_pairs", BOUNDS, sizes=(MOST_PAIRS // 2 + 1, 1, 32)),
    row("outputs_262145", "beyond_outputs", BOUNDS, sizes=(1, MOST_OUT + 1, 32), routed=(1, 1)),
    row("inputs_131104", "beyond_inputs", BOUNDS, sizes=(1, 1, BLOCK * (MOST_BLOCKS + 1)),
        routed=(1, 1)),
    row("gate_of_three", "beyond_gate", BOUNDS, gate=(1.0, 7.0, 7.0)),
    row("gate_without_limit", "gate_short", BOUNDS, gate=(1.0,)),
    row("gated_odd", "gate_odd", BOUNDS, sizes=(3, 5, 64), gate=GATE),
    row("active_0", "below_active", BOUNDS, setting(n_active=0)),
    row("active_1025", "beyond_active", BOUNDS, setting(n_active=MOST_EXPERTS + 1)),
    row("scale_253", "beyond_scale", BOUNDS, setting(largest_scale=253)),
    row("scale_below_0", "below_scale", BOUNDS, setting(largest_scale=-1)),
    row("pairs_too_few", "pairs_short", BOUNDS, setting(n_active=3)),
    row("pairs_too_many", "pairs_long", BOUNDS, setting(n_active=1)),
    row("inputs_of_another_layer", "wrong_shape x", BOUNDS, blank("x", 3, 96)),
    row("blocks_too_many", "blocks_long", BOUNDS, blank("blocks", 5, 6, 3, 16),
        blank("scales", 5, 6, 3)),
    row("blocks_4097", "beyond_blocks", BOUNDS, blank("blocks", 1, 1, MOST_BLOCKS + 1, 16),
        blank("scales", 1, 1, MOST_BLOCKS + 1), sizes=(1, 1, 64), routed=(1, 1)),
    row("blocks_of_eight", "wrong_shape blocks", BOUNDS, blank("blocks", 5, 6, 2, 8)),
    row("scales_of_another_layer", "wrong_shape scales", BOUNDS, blank("scales", 5, 6, 3)),
    row("starts_too_few", "wrong_shape starts", BOUNDS, blank("starts", 5)),
    row("bias_of_another_layer", "wrong_shape bias", BOUNDS, blank("bias", 5, 4), has_bias=True),
    row("x_float64", "wrong_dtype", DTYPE, cast("x", "float64")),
    row("blocks_int8", "wrong_dtype blocks", DTYPE, cast("blocks", "int8")),
    row("order_int64", "wrong_dtype order", DTYPE, cast("order", "int64")),
    row("bias_of_another_dtype", "wrong_dtype bias", DTYPE, cast("bias", "float16"), has_bias=True),
)  # fmt: skip

EXPERT_CASES = cases(EXPERTS, draw_experts, _ROWS)
