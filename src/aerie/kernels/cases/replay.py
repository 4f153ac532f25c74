"""Cases of graph replay: K11, K12 and K13; the static buffers of K11 and K12 are here."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.cases.draws import cycle, rows_of_hidden
from aerie.kernels.cases.replay_slots import SLOT_CASES
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row

K11 = "draft_replay_input_operator"
K12 = "extend_replay_input_operator"

_PLAIN_HIDDEN = (8, "float32")


def _rows(rng: Rng, n_rows: int, hidden: tuple[int, str]) -> Inputs:
    return {
        "input_ids": rng.integers(0, 32_000, n_rows),
        "positions": rng.integers(0, 100_000, n_rows),
        "out_cache_loc": rng.integers(1, 2**31 - 1, n_rows, dtype=np.int32),
        "hidden": rows_of_hidden(rng, (n_rows, hidden[0]), hidden[1]),
    }


def _requests(rng: Rng, batch: int) -> Inputs:
    return {
        "seq_len": rng.integers(0, 70_000, batch),
        "req_pool_indices": rng.integers(0, 4096, batch),
    }


def _static(made: Inputs) -> Inputs:
    """Static buffers as an earlier replay left them: full of other numbers."""
    return {f"static_{name}": array for name, array in made.items()}


def _draft(
    rng: Rng,
    batch: int,
    width: int = 3,
    buckets: tuple[int, ...] = (1, 2, 4, 8),
    hidden: tuple[int, str] = _PLAIN_HIDDEN,
    captured: int | None = None,
    fill: int = 1,
) -> Inputs:
    """K11 inputs; `captured` requests fit into the static buffers, by default the last bucket."""
    n_static = buckets[-1] if captured is None else captured
    return {
        **_rows(rng, batch * width, hidden),
        **_requests(rng, batch),
        **_static(_rows(rng, n_static * width, hidden)),
        **_static(_requests(rng, n_static)),
        "tree_width": width,
        "buckets": buckets,
        "seq_len_fill": fill,
    }


_TO_128 = (1, 2, 4, 8, 16, 32, 64, 128)

_DRAFT_ROWS = (
    row("b1_w1_exact", "bucket_exact smallest", batch=1, width=1, buckets=(1,)),
    row("b1_of_many", "bucket_exact", batch=1),
    row("b4_exact", "bucket_exact", batch=4, width=8),
    row("b3_one_below", "one_below padding", batch=3),
    row("b5_padding_3", "padding", batch=5),
    row("b8_last_bucket", "bucket_exact last", batch=8),
    row("b7_last_bucket", "one_below padding last", batch=7, width=5),
    row("b0", "empty_batch padding", batch=0),
    row("b0_one_bucket", "empty_batch padding one_bucket", batch=0, buckets=(6,)),
    row("b128_exact", "batch_limit bucket_exact", batch=128, width=4, buckets=_TO_128),
    row("b127_one_below", "batch_limit one_below padding", batch=127, width=2, buckets=_TO_128),
    row("b65_padding_63", "padding large", batch=65, width=1, buckets=_TO_128),
    row("b2_in_128", "padding large one_bucket", batch=2, width=3, buckets=(128,)),
    row("b2_w10", "width_limit", batch=2, width=10),
    row("b3_w7", "odd_width padding", batch=3, width=7),
    row("b5_odd_buckets", "odd_buckets padding", batch=5, buckets=(3, 6, 7)),
    row("b2_buffers_larger", "beyond_bucket_untouched", batch=2, buckets=(2, 4), captured=9),
    row("b3_buffers_larger_padding", "beyond_bucket_untouched padding", batch=3, buckets=(2, 4),
        captured=9),
    row("b3_fill_0", "fill_0 padding", batch=3, fill=0),
    row("b3_fill_limit", "fill_limit padding", batch=3, fill=2**21),
    row("b3_no_hidden", "hidden_0 padding", batch=3, hidden=(0, "float32")),
    row("b3_h1", "hidden_1 padding", batch=3, hidden=(1, "float32")),
    row("b3_h64_fp16", "fp16 hidden_64 padding", batch=3, hidden=(64, "float16")),
    row("b3_h65_bf16", "bf16 hidden_65 padding", batch=3, hidden=(65, "bfloat16")),
    row("b1_h4096_bf16", "bf16 hidden_4096 padding", batch=1, width=1, buckets=(2,),
        hidden=(4096, "bfloat16")),
    row("b1_h8192_fp16", "fp16 hidden_8192", batch=1, width=2, buckets=(1,),
        hidden=(8192, "float16")),
    row("b1_h24576", "hidden_three_taps", batch=1, width=1, buckets=(1,),
        hidden=(24_576, "float32")),
    row("b3_hidden_inf", "hidden_inf padding", put("hidden", (2, 3), np.inf), batch=3),
    row("b3_stale_hidden_nan", "stale_nan padding", put("static_hidden", ..., np.nan), batch=3),
    row("b2_large_tokens", "tokens_edge", put("input_ids", ..., 2**40), batch=2),
    row("b9_past_buckets", "beyond_bucket", BOUNDS, batch=9),
    row("bucket_past_buffers", "beyond_buffers", BOUNDS, batch=2, captured=7),
    row("b129", "beyond_batch", BOUNDS, batch=129, width=1, buckets=_TO_128),
    row("buffers_129", "beyond_captured", BOUNDS, batch=2, width=1, captured=129),
    row("bucket_129", "beyond_bucket_limit", BOUNDS, batch=2, width=1, buckets=(4, 129)),
    row("bucket_0", "below_bucket_limit", BOUNDS, batch=1, width=1, buckets=(0, 4)),
    row("w0", "below_width", BOUNDS, setting(tree_width=0), batch=2),
    row("w11", "beyond_width", BOUNDS, batch=2, width=11),
    row("fill_negative", "below_fill", BOUNDS, fill=-1, batch=2),
    row("fill_past_limit", "beyond_fill", BOUNDS, fill=2**21 + 1, batch=2),
    row("hidden_65537", "beyond_hidden", BOUNDS, batch=1, width=1, buckets=(1,),
        hidden=(65_537, "float16")),
    row("rows_of_another_width", "wrong_shape", BOUNDS, blank("positions", 7), batch=2),
    row("hidden_of_another_size", "wrong_shape hidden", BOUNDS, blank("static_hidden", 24, 9),
        batch=2),
    row("slots_int64", "wrong_dtype", DTYPE, cast("out_cache_loc", "int64"), batch=2),
    row("hidden_float64", "wrong_dtype hidden", DTYPE, cast("hidden", "float64"), batch=2),
)  # fmt: skip


def _extend(
    rng: Rng,
    lengths: Any,
    batch: int | None = None,
    buckets: tuple[tuple[int, ...], tuple[int, ...]] = ((1, 2, 4, 8), (8, 16, 64)),
    hidden: tuple[int, str] = _PLAIN_HIDDEN,
    captured: tuple[int, int] | None = None,
    fill: int = 1,
) -> Inputs:
    """K12 inputs; `captured` requests and rows fit into the static buffers."""
    extend_len = cycle(lengths, np.size(lengths) if batch is None else batch, "int64")
    n_requests, n_rows = (buckets[0][-1], buckets[1][-1]) if captured is None else captured
    requests = {**_requests(rng, n_requests), "extend_len": rng.integers(1, 9, n_requests)}
    return {
        **_rows(rng, int(extend_len.sum()), hidden),
        "extend_len": extend_len,
        **_requests(rng, len(extend_len)),
        **_static(_rows(rng, n_rows, hidden)),
        **_static(requests),
        "static_qo_indptr": rng.integers(0, 99, n_requests + 1, dtype=np.int32),
        "batch_buckets": buckets[0],
        "row_buckets": buckets[1],
        "seq_len_fill": fill,
    }


def _orphan_rows(inputs: Inputs) -> None:
    """Two rows where the batch has no request to own them."""
    for name in ("input_ids", "positions", "out_cache_loc", "hidden"):
        inputs[name] = np.zeros((2, *inputs[name].shape[1:]), inputs[name].dtype)


_WIDE = (_TO_128, (128, 1024, 2048))

_EXTEND_ROWS = (
    row("b1_r1_exact", "bucket_exact smallest", lengths=1, buckets=((1,), (1,))),
    row("b2_r8_exact", "bucket_exact", lengths=(5, 3)),
    row("b2_r7_one_row_below", "one_below spare_rows", lengths=(5, 2)),
    row("b2_r9_next_row_bucket", "spare_rows", lengths=(5, 4)),
    row("b3_r7_padding_fills_rows", "padding bucket_exact", lengths=(2, 1, 4)),
    row("b3_r8_padding_needs_next_bucket", "padding spare_rows", lengths=(2, 2, 4)),
    row("b4_r16_exact", "bucket_exact", lengths=4, batch=4),
    row("b5_r64_beyond_first_buckets", "padding spare_rows ragged", lengths=(9, 1, 17, 3, 2)),
    row("b5_r61_padding_fills_last", "padding bucket_exact last", lengths=(20, 1, 20, 3, 17)),
    row("b8_r64_all_full", "bucket_exact last", lengths=8, batch=8),
    row("b7_r8_decode", "padding one_below decode", lengths=1, batch=7),
    row("b0", "empty_batch padding", lengths=()),
    row("b0_one_bucket", "empty_batch padding one_bucket", lengths=(), buckets=((6,), (20,))),
    row("b0_rows_just_hold_padding", "empty_batch padding bucket_exact", lengths=(),
        buckets=((6,), (6,))),
    row("b128_decode", "batch_limit decode bucket_exact", lengths=1, batch=128, buckets=_WIDE),
    row("b128_ragged", "batch_limit ragged spare_rows", lengths=(3, 8, 1), batch=128,
        buckets=_WIDE),
    row("b127_padding", "batch_limit padding one_below", lengths=(3, 8, 1), batch=127,
        buckets=_WIDE),
    row("b65_padding_63", "padding large", lengths=(2, 1), batch=65, buckets=_WIDE),
    row("b1_r128", "long_extend", lengths=128, buckets=((1,), (64, 128))),
    row("b2_r1_r127", "long_extend ragged", lengths=(1, 127), buckets=((2,), (64, 128))),
    row("b3_odd_buckets", "odd_buckets padding", lengths=(2, 5, 1), buckets=((3, 5), (7, 11, 13))),
    row("b2_buffers_larger", "beyond_bucket_untouched", lengths=(5, 2), captured=(11, 70)),
    row("b3_buffers_larger_padding", "beyond_bucket_untouched padding", lengths=(5, 2, 1),
        captured=(11, 70)),
    row("b3_fill_0", "fill_0 padding", lengths=(2, 1, 1), fill=0),
    row("b3_fill_limit", "fill_limit padding", lengths=(2, 1, 1), fill=2**21),
    row("b3_no_hidden", "hidden_0 padding", lengths=(2, 1, 1), hidden=(0, "float32")),
    row("b3_h64_fp16", "fp16 hidden_64 padding", lengths=(2, 1, 1), hidden=(64, "float16")),
    row("b3_h65_bf16", "bf16 hidden_65 padding", lengths=(2, 1, 1), hidden=(65, "bfloat16")),
    row("b1_h8192_bf16", "bf16 hidden_8192", lengths=2, buckets=((1,), (3,)),
        hidden=(8192, "bfloat16")),
    row("b1_h24576", "hidden_three_taps", lengths=2, buckets=((1,), (2,)),
        hidden=(24_576, "float32")),
    row("b3_stale_hidden_nan", "stale_nan padding", put("static_hidden", ..., np.nan),
        lengths=(2, 1, 1)),
    row("length_0", "refused length", BOUNDS, put("extend_len", ..., [3, 0, 4]), lengths=(2, 1, 4)),
    row("length_negative", "refused length negative", BOUNDS, put("extend_len", ..., [4, 5, -2]),
        lengths=(2, 1, 4)),
    row("length_past_rows", "refused length past sum", BOUNDS, put("extend_len", 0, 8),
        lengths=(2, 1, 4)),
    # A sum that does not fit refuses every request, so the first is refused for that.
    row("later_length_past_rows", "refused sum length", DATA, put("extend_len", 2, 8),
        lengths=(2, 1, 4)),
    row("lengths_below_rows", "refused sum", DATA, put("extend_len", 2, 3), lengths=(2, 1, 4)),
    row("lengths_above_rows", "refused sum above", DATA, put("extend_len", 1, 2),
        lengths=(2, 1, 4)),
    row("rows_without_requests", "beyond_requests", BOUNDS, _orphan_rows, lengths=()),
    row("b9_past_buckets", "beyond_bucket", BOUNDS, lengths=1, batch=9),
    row("rows_past_buckets", "beyond_row_bucket", BOUNDS, lengths=(60, 5)),
    row("padding_past_row_buckets", "beyond_row_bucket padding", BOUNDS, lengths=(60, 2, 2)),
    row("bucket_past_buffers", "beyond_buffers", BOUNDS, lengths=(2, 1), captured=(7, 64)),
    row("row_bucket_past_buffers", "beyond_row_buffers", BOUNDS, lengths=(2, 1), captured=(8, 63)),
    row("b129", "beyond_batch", BOUNDS, lengths=1, batch=129, buckets=_WIDE),
    row("rows_16385", "beyond_rows", BOUNDS, lengths=16_385, buckets=((1,), (16_512,)),
        hidden=(0, "float32")),
    row("buffers_129", "beyond_captured", BOUNDS, lengths=1, captured=(129, 64)),
    row("row_buffers_16513", "beyond_captured_rows", BOUNDS, lengths=1, captured=(8, 16_513),
        hidden=(0, "float32")),
    row("bucket_129", "beyond_bucket_limit", BOUNDS, lengths=1, buckets=((129,), (200,))),
    row("row_bucket_16513", "beyond_row_bucket_limit", BOUNDS, lengths=1,
        buckets=((4,), (8, 16_513)), captured=(4, 8)),
    row("fill_negative", "below_fill", BOUNDS, lengths=1, fill=-1),
    row("fill_past_limit", "beyond_fill", BOUNDS, lengths=1, fill=2**21 + 1),
    row("hidden_65537", "beyond_hidden", BOUNDS, lengths=1, buckets=((1,), (1,)),
        hidden=(65_537, "float16")),
    row("offsets_too_short", "wrong_shape", BOUNDS, blank("static_qo_indptr", 8), lengths=(2, 1)),
    row("lengths_int32", "wrong_dtype", DTYPE, cast("extend_len", "int32"), lengths=(2, 1)),
    row("hidden_int32", "wrong_dtype hidden", DTYPE, cast("static_hidden", "int32"),
        lengths=(2, 1)),
)  # fmt: skip

REPLAY_CASES = (
    *cases(K11, _draft, _DRAFT_ROWS),
    *cases(K12, _extend, _EXTEND_ROWS),
    *SLOT_CASES,
)
