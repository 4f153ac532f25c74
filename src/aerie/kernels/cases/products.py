"""Cases of products with packed weights, R18, R19 and R27: groups, dtypes, odd shapes, limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.cards.products import MOST_IN, MOST_OUT
from aerie.kernels.cases.draws import in_dtype
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, Spoil, blank, cast, put, setting
from aerie.kernels.cases.table import Array, Inputs, Rng, cases, row

INT4, FP8, FP8_ROWS = "multiply_int4", "multiply_fp8", "multiply_fp8_rows"
MOST_ROWS = 16_384


def some_rows(rng: Rng, shape: tuple[int, ...], dtype: str) -> Array:
    """Rows of a dtype, drawn in float64."""
    return in_dtype(rng.standard_normal(shape).astype(np.float32), dtype)


def int4_inputs(
    rng: Rng,
    sizes: tuple[int, int, int] = (3, 5, 64),
    group: int = 32,
    dtype: str = "float32",
    has_bias: bool = False,
) -> Inputs:
    """R18 inputs of `sizes`: rows, outputs, inputs."""
    n_rows, n_out, n_in = sizes
    n_groups = n_in // group
    inputs = {
        "x": some_rows(rng, (n_rows, n_in), dtype),
        "codes": rng.integers(0, 256, (n_out, n_in // 2)).astype(np.uint8),
        "scales": (rng.random((n_groups, n_out)) * 0.02 + 0.001).astype(np.float32),
        "zeros": rng.integers(0, 16, (n_groups, n_out)).astype(np.uint8),
        "group_size": group,
    }
    return inputs | ({"bias": some_rows(rng, (n_out,), dtype)} if has_bias else {})


# What every product is asked.
_PRODUCT_ROWS = (
    row("r3_plain", "plain"),
    row("r1_one_row", "one_row", sizes=(1, 5, 64)),
    row("r3_bias", "bias", has_bias=True),
    row("r2_prime_outputs", "prime", sizes=(2, 17, 32)),
    row("r3_float16", "float16", dtype="float16"),
    row("r3_bf16", "bfloat16", dtype="bfloat16"),
    row("r3_bf16_bias", "bfloat16 bias", dtype="bfloat16", has_bias=True),
    row("r0", "empty empty_batch", sizes=(0, 5, 64)),
    row("bias_of_another_layer", "wrong_shape bias", BOUNDS, blank("bias", 4), has_bias=True),
    row("x_float64", "wrong_dtype", DTYPE, cast("x", "float64")),
)  # fmt: skip

# What products with a scale for every group are asked besides.
_GROUPED_ROWS = (
    *_PRODUCT_ROWS,
    row("r3_group_96", "group_96", sizes=(3, 3, 192), group=96),
    row("r3_group_128", "group_128", sizes=(3, 2, 256), group=128),
    row("r3_whole_input", "one_group", sizes=(3, 3, 160), group=160),
    row("r5_prime_rows", "prime rows", sizes=(5, 7, 32)),
    row("r16_a_tile", "tile", sizes=(16, 4, 32)),
    row("r17_a_tile_and_one", "tile_edge", sizes=(17, 4, 32)),
    row("r2_a_tile_of_parts", "parts tile", sizes=(2, 32, 512)),
    row("r70_parts", "parts chunk", sizes=(70, 16, 320)),
    row("r70_a_chunk", "chunk", sizes=(70, 9, 64)),
    row("r16384", "batch_limit", sizes=(MOST_ROWS, 1, 2), group=2),
    row("r16385", "beyond_rows", BOUNDS, sizes=(MOST_ROWS + 1, 1, 2), group=2),
    row("outputs_262145", "beyond_outputs", BOUNDS, sizes=(1, MOST_OUT + 1, 2), group=2),
    row("group_size_131073", "beyond_group", BOUNDS, setting(group_size=MOST_IN + 1)),
)  # fmt: skip

# What four-bit weights are asked, multiplied and written out.
FOUR_BIT_ROWS = (
    row("bytes_65537", "beyond_bytes", BOUNDS, blank("codes", 5, MOST_IN // 2 + 1)),
    row("groups_65537", "beyond_groups", BOUNDS,
        *(blank(name, MOST_IN // 2 + 1, 5) for name in ("scales", "zeros"))),
    row("group_size_1", "below_group", BOUNDS, setting(group_size=1)),
    row("codes_too_few", "wrong_shape codes_short", BOUNDS, blank("codes", 5, 31)),
    row("codes_too_many", "wrong_shape codes_long", BOUNDS, blank("codes", 5, 33)),
    row("groups_too_small", "groups_short", BOUNDS, setting(group_size=30)),
    row("groups_too_large", "groups_long", BOUNDS, setting(group_size=34)),
    row("zeros_of_another_layer", "wrong_shape zeros", BOUNDS, blank("zeros", 2, 4)),
    row("codes_int32", "wrong_dtype codes", DTYPE, cast("codes", "int32")),
    row("scales_float16", "wrong_dtype scales", DTYPE, cast("scales", "float16")),
)  # fmt: skip

_INT4_ROWS = (
    *_GROUPED_ROWS,
    *FOUR_BIT_ROWS,
    row("r1_smallest", "smallest", sizes=(1, 1, 2), group=2),
    row("r1_one_output", "one_output", sizes=(1, 1, 32)),
    row("r3_group_2", "group_2", sizes=(3, 3, 6), group=2),
    row("r3_group_6", "group_not_of_two", sizes=(3, 3, 18), group=6),
    row("r3_group_16", "group_16", sizes=(3, 7, 48), group=16),
    row("r2_group_64", "group_64", sizes=(2, 3, 128), group=64),
    row("r2_group_256", "group_256", sizes=(2, 2, 512), group=256),
    row("r2_eight_steps", "parts", sizes=(2, 8, 256)),
    row("r2_nine_steps", "parts uneven", sizes=(2, 6, 288)),
    row("r3_float16_bias", "float16 bias", dtype="float16", has_bias=True),
    row("r3_zeros_0", "zeros_0", put("zeros", ..., 0)),
    row("r3_zeros_15", "zeros_15", put("zeros", ..., 15)),
    row("r3_codes_0", "codes_0", put("codes", ..., 0)),
    row("r3_codes_255", "codes_15", put("codes", ..., 255)),
    row("r3_nothing_but_zero", "zero", put("codes", ..., 0x88), put("zeros", ..., 8)),
    row("r3_rows_of_zero", "zero rows", put("x", ..., 0.0)),
    row("r3_small_scales", "scales_small", put("scales", ..., 1e-6)),
    row("r3_large_scales", "scales_large", put("scales", ..., 250.0)),
    row("inputs_131073", "beyond_inputs", BOUNDS, blank("x", 1, MOST_IN + 1)),
    row("group_odd", "group_odd", BOUNDS, setting(group_size=3), sizes=(2, 2, 6), group=2),
    row("bias_of_another_dtype", "wrong_dtype bias", DTYPE, cast("bias", "float16"), has_bias=True),
)  # fmt: skip


def fp8_inputs(
    rng: Rng,
    sizes: tuple[int, int, int] = (3, 5, 64),
    group: int = 32,
    dtype: str = "float32",
    has_bias: bool = False,
) -> Inputs:
    """R19 inputs of `sizes`: rows, outputs, inputs."""
    n_rows, n_out, n_in = sizes
    n_groups = -(-n_in // group)
    codes = rng.integers(0, 126, (n_out, n_in)) + 128 * rng.integers(0, 2, (n_out, n_in))
    inputs = {
        "x": some_rows(rng, (n_rows, n_in), dtype),
        "codes": codes.astype(np.uint8),
        "scales": (rng.random((n_groups, n_out)) * 2e-3 + 1e-4).astype(np.float32),
        "group_size": group,
    }
    return inputs | ({"bias": some_rows(rng, (n_out,), dtype)} if has_bias else {})


# The same of eight-bit ones.
EIGHT_BIT_ROWS = (
    row("groups_65537", "beyond_groups", BOUNDS, blank("scales", MOST_IN // 2 + 1, 5)),
    row("group_size_0", "below_group", BOUNDS, setting(group_size=0)),
    row("groups_too_small", "groups_short", BOUNDS, setting(group_size=31)),
    row("groups_too_large", "groups_long", BOUNDS, setting(group_size=64)),
    row("codes_of_another_layer", "wrong_shape codes", BOUNDS, blank("codes", 5, 63)),
    row("codes_int8", "wrong_dtype codes", DTYPE, cast("codes", "int8")),
)  # fmt: skip

_FP8_ROWS = (
    *_GROUPED_ROWS,
    *EIGHT_BIT_ROWS,
    row("r1_smallest", "smallest", sizes=(1, 1, 1), group=1),
    row("r3_group_1", "group_1", sizes=(3, 3, 6), group=1),
    row("r3_group_7", "group_odd", sizes=(3, 3, 21), group=7),
    row("r3_last_group_short", "short_group", sizes=(3, 3, 80)),
    row("r3_last_group_of_one", "short_group one", sizes=(3, 3, 65)),
    row("r2_group_128_short", "short_group group_128", sizes=(2, 3, 200), group=128),
    row("r3_whole_odd_input", "one_group odd", sizes=(3, 3, 45), group=45),
    row("r3_group_past_the_input", "one_group past", sizes=(3, 3, 64), group=128),
    row("r2_eight_steps", "parts", sizes=(2, 9, 128), group=16),
    row("r1_nine_steps", "parts uneven", sizes=(1, 5, 288)),
    row("r1_parts_short", "parts short_group", sizes=(1, 5, 270)),
    row("r3_least_floats", "subnormal", put("codes", np.s_[:, ::2], 7)),
    row("r3_zeros", "zero", put("codes", ..., 128)),
    row("r3_largest_floats", "largest", put("codes", np.s_[:, 1::3], 126)),
    row("r3_small_scales", "scales_small", put("scales", ..., 1e-7)),
    row("inputs_131073", "beyond_inputs", BOUNDS, sizes=(1, 1, MOST_IN + 1), group=128),
)  # fmt: skip


def fp8_rows_inputs(
    rng: Rng,
    sizes: tuple[int, int, int] = (3, 5, 64),
    dtype: str = "float32",
    has_bias: bool = False,
) -> Inputs:
    """R27 inputs of `sizes`: rows, outputs, inputs."""
    made = fp8_inputs(rng, sizes, sizes[2], dtype, has_bias)
    del made["group_size"]
    return made | {"scales": made["scales"][0]}


def _times(factor: float) -> Spoil:
    """Rows so many times as large."""

    def spoil(inputs: Inputs) -> None:
        inputs["x"] *= np.float32(factor)

    return spoil


def _beside_tiny(largest: Any, scale: float = 1.0) -> Spoil:
    """A value that no output counts, beside the least ones: they vanish where scales are larger."""

    def spoil(inputs: Inputs) -> None:
        inputs["x"][:] = scale * 2.0**-9
        inputs["x"][:, 5], inputs["codes"][:, 5] = scale * largest, 0

    return spoil


_FP8_ROWS_ROWS = (
    *_PRODUCT_ROWS,
    row("r1_smallest", "smallest", sizes=(1, 1, 1)),
    row("r7_prime_rows", "prime rows", sizes=(7, 11, 96)),
    row("r3_odd_inputs", "odd", sizes=(3, 5, 45)),
    row("r3_one_input_more", "step_edge", sizes=(3, 5, 257)),
    row("r1_a_tile_of_outputs", "tile outputs", sizes=(1, 64, 256)),
    row("r1_outputs_and_one", "tile_edge outputs", sizes=(1, 65, 256)),
    row("r3_wide", "wide", sizes=(3, 7, 1024)),
    row("r1_wider_than_a_program", "wide parts", sizes=(1, 2, 16640), dtype="bfloat16"),
    row("r16_a_tile", "tile", sizes=(16, 4, 64)),
    row("r17_a_tile_and_one", "tile_edge", sizes=(17, 4, 64)),
    row("r33_two_tiles", "tile_edge rows_33", sizes=(33, 4, 40)),
    row("r64_a_tile", "tile rows_64", sizes=(64, 4, 24)),
    row("r65_a_tile_and_one", "tile_edge rows_65", sizes=(65, 4, 24)),
    row("r200_a_chunk", "chunk", sizes=(200, 3, 8)),
    row("r3_float16_bias", "float16 bias", dtype="float16", has_bias=True),
    row("r17_bf16_tile_edge", "bfloat16 tile_edge", sizes=(17, 65, 288), dtype="bfloat16"),
    row("r3_zero_rows", "zero rows", put("x", np.s_[1:], 0.0), has_bias=True),
    row("r3_least_floats", "subnormal", put("codes", np.s_[:, ::2], 7)),
    row("r3_largest_floats", "largest", put("codes", np.s_[:, 1::3], 126)),
    row("r3_tiny", "tiny", _times(1e-25)),
    row("r3_beyond_the_least_scale", "tiny least", _times(1e-33)),
    row("r3_huge", "huge", _times(1e25)),
    row("r3_tiny_beside_huge", "huge tiny", put("x", np.s_[:, ::2], 1e20)),
    row("r3_largest_448", "edge_448", _beside_tiny(448.0)),
    row("r3_largest_448_halved", "edge_448 small", _beside_tiny(-448.0, 2.0**-10)),
    row("r3_next_above_448", "edge_448 above",
        _beside_tiny(np.nextafter(np.float32(448), np.float32(449)))),
    row("r3_halves_to_even", "ties", put("x", np.s_[:, :4], (448.0, 17.0, 19.0, -1.5 / 512))),
    row("r3_small_scales", "scales_small", put("scales", ..., 1e-7)),
    row("r16384", "batch_limit", sizes=(MOST_ROWS, 1, 2)),
    row("r16385", "beyond_rows", BOUNDS, sizes=(MOST_ROWS + 1, 1, 2)),
    row("outputs_262145", "beyond_outputs", BOUNDS, sizes=(1, MOST_OUT + 1, 2)),
    row("inputs_131073", "beyond_inputs", BOUNDS, sizes=(1, 1, MOST_IN + 1)),
    row("codes_of_another_layer", "wrong_shape codes", BOUNDS, blank("codes", 5, 63)),
    row("scales_of_another_layer", "wrong_shape scales", BOUNDS, blank("scales", 4)),
    row("codes_int8", "wrong_dtype codes", DTYPE, cast("codes", "int8")),
)  # fmt: skip

PRODUCT_CASES = (
    *cases(INT4, int4_inputs, _INT4_ROWS),
    *cases(FP8, fp8_inputs, _FP8_ROWS),
    *cases(FP8_ROWS, fp8_rows_inputs, _FP8_ROWS_ROWS),
)
