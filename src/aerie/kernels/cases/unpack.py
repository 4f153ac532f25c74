"""Cases of packed weights that are written out, R28 and R29: groups, dtypes, odd shapes, limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from aerie.kernels.cards.products import MOST_IN, MOST_OUT
from aerie.kernels.cases.products import (
    EIGHT_BIT_ROWS,
    FOUR_BIT_ROWS,
    fp8_inputs,
    int4_inputs,
    some_rows,
)
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row

INT4, FP8 = "unpack_int4", "unpack_fp8"


def _to_unpack(
    draw: Callable[..., Inputs],
    rng: Rng,
    sizes: tuple[int, int] = (5, 64),
    group: int = 32,
    dtype: str = "float32",
) -> Inputs:
    """Inputs of `sizes`, outputs and inputs: a weight that holds something else, and no rows."""
    made = draw(rng, (0, *sizes), group, dtype)
    del made["x"]
    return {"weight": some_rows(rng, sizes, dtype), **made}


unpack_int4_inputs = partial(_to_unpack, int4_inputs)  # of R28
unpack_fp8_inputs = partial(_to_unpack, fp8_inputs)  # of R29

# What every weight is asked.
_WEIGHT_ROWS = (
    row("n5_plain", "plain"),
    row("n1_one_output", "one_output", sizes=(1, 32)),
    row("n3_group_96", "group_96", sizes=(3, 192), group=96),
    row("n2_group_128", "group_128", sizes=(2, 256), group=128),
    row("n16_a_tile", "tile", sizes=(16, 32)),
    row("n17_a_tile_and_one", "tile_edge prime", sizes=(17, 32)),
    row("n5_float16", "float16", dtype="float16"),
    row("n5_bf16", "bfloat16", dtype="bfloat16"),
    row("n5_tiny_scales", "scales_tiny", put("scales", ..., 1e-30)),
    row("n5_float16_subnormal", "float16 subnormal", put("scales", ..., 3e-7), dtype="float16"),
    row("n5_bf16_tiny_scales", "bfloat16 scales_tiny", put("scales", ..., 1e-30), dtype="bfloat16"),
    row("n5_bf16_large_scales", "bfloat16 scales_large", put("scales", ..., 1e30),
        dtype="bfloat16"),
    row("n0", "empty empty_batch", sizes=(0, 64)),
    row("n1_longest", "batch_limit", sizes=(1, MOST_IN), group=128),
    row("outputs_262145", "beyond_outputs", BOUNDS, sizes=(MOST_OUT + 1, 2), group=2),
    row("group_size_131073", "beyond_group", BOUNDS, setting(group_size=MOST_IN + 1)),
    row("weight_float64", "wrong_dtype", DTYPE, cast("weight", "float64")),
)  # fmt: skip

_INT4_ROWS = (
    *_WEIGHT_ROWS,
    *FOUR_BIT_ROWS,
    row("n1_smallest", "smallest", sizes=(1, 2), group=2),
    row("n3_group_2", "group_2", sizes=(3, 6), group=2),
    row("n3_group_6", "group_not_of_two", sizes=(3, 18), group=6),
    row("n7_group_16", "group_16", sizes=(7, 48), group=16),
    row("n3_group_64", "group_64", sizes=(3, 128), group=64),
    row("n2_group_256", "group_256", sizes=(2, 512), group=256),
    row("n3_whole_input", "one_group", sizes=(3, 160), group=160),
    row("n1_a_stretch_and_a_step", "step_edge", sizes=(1, 544)),
    row("n35_three_tiles", "chunk step_edge", sizes=(35, 640), group=128),
    row("n5_float16_group_96", "float16 group_96", sizes=(5, 96), group=96, dtype="float16"),
    row("n17_bf16_tile_edge", "bfloat16 tile_edge", sizes=(17, 128), dtype="bfloat16"),
    row("n5_zeros_0", "zeros_0", put("zeros", ..., 0)),
    row("n5_zeros_15", "zeros_15", put("zeros", ..., 15)),
    row("n5_codes_255", "codes_15", put("codes", ..., 255)),
    row("n5_nothing_but_zero", "zero", put("codes", ..., 0x88), put("zeros", ..., 8)),
    row("n5_float16_large_scales", "float16 scales_large", put("scales", ..., 4001.0),
        dtype="float16"),
    row("inputs_131073", "beyond_inputs", BOUNDS, blank("weight", 5, MOST_IN + 1)),
    row("group_odd", "group_odd", BOUNDS, setting(group_size=3), sizes=(2, 6), group=2),
)  # fmt: skip

_FP8_ROWS = (
    *_WEIGHT_ROWS,
    *EIGHT_BIT_ROWS,
    row("n1_smallest", "smallest", sizes=(1, 1), group=1),
    row("n3_group_1", "group_1", sizes=(3, 7), group=1),
    row("n3_group_odd", "group_odd", sizes=(3, 45), group=15),
    row("n3_last_group_short", "short_group", sizes=(3, 80)),
    row("n3_last_group_of_one", "short_group one", sizes=(3, 65)),
    row("n3_group_128_short", "short_group group_128", sizes=(3, 200), group=128),
    row("n3_whole_odd_input", "one_group odd", sizes=(3, 45), group=45),
    row("n3_group_past_the_input", "one_group past", sizes=(3, 64), group=128),
    row("n1_a_stretch_and_one", "step_edge", sizes=(1, 257)),
    row("n35_three_tiles", "chunk step_edge", sizes=(35, 300), group=128),
    row("n3_float16_short", "float16 short_group", sizes=(3, 80), dtype="float16"),
    row("n17_bf16_tile_edge", "bfloat16 tile_edge", sizes=(17, 70), dtype="bfloat16"),
    row("n5_least_floats", "subnormal", put("codes", np.s_[:, ::2], 7)),
    row("n5_zeros", "zero", put("codes", ..., 128)),
    row("n5_largest_floats", "largest", put("codes", np.s_[:, 1::3], 126)),
    row("n5_float16_large_scales", "float16 scales_large", put("scales", ..., 146.0),
        dtype="float16"),
    row("inputs_131073", "beyond_inputs", BOUNDS, sizes=(1, MOST_IN + 1), group=128),
)  # fmt: skip

UNPACK_CASES = (
    *cases(INT4, unpack_int4_inputs, _INT4_ROWS),
    *cases(FP8, unpack_fp8_inputs, _FP8_ROWS),
)
