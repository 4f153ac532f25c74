"""Cases of the verify layout: K10c rows, K4 packed masks, K9 offsets; K4 and K9 are here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aerie.kernels.cases.draws import cycle, in_table
from aerie.kernels.cases.layout_rows import ROW_CASES
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import lay_out

K4 = "fused_tree_mask_operator"
K9 = "calculate_verify_kv_qo_ms"

INT32_MAX = 2**31 - 1


def _masks(
    rng: Rng,
    shapes: Sequence[str] = ("chain3", "star4", "random6"),
    seq: Any = (5, 0, 12),
    batch: int | None = None,
    room: tuple[int, int] = (0, 0),
    n_spare: int = 0,
    n_columns: int = 0,
) -> Inputs:
    """K4 inputs; `room` is what kv_capacity and mask_capacity hold beyond (or below) the need."""
    layout = lay_out(rng, shapes, n_spare=n_spare, batch=batch)
    seq_len = cycle(seq, len(layout.rows), "int64")
    columns = seq_len + layout.rows
    width = int(columns.max(initial=0)) + n_columns
    return {
        **in_table(rng, len(seq_len), width),
        "seq_len": seq_len,
        "qo_indptr": layout.indptr,
        "ancestor_bits": layout.bits,
        "kv_capacity": int(columns.sum()) + room[0],
        "mask_capacity": int(((layout.rows * columns + 7) // 8).sum()) + room[1],
    }


_MASK_ROWS = (
    row("b1_root_only_seq0", "smallest seq_0", shapes=["chain1"], seq=0),
    row("b1_root_only_seq1", "seq_1", shapes=["chain1"], seq=1),
    row("b3_trees", "ragged capacity_exact"),
    row("b3_trees_room", "ragged capacity_room", room=(9, 5), n_columns=4),
    row("b128_random8", "batch_limit", shapes=("random8", "chain3", "star5"), seq=(20, 3, 11, 0),
        batch=128),
    row("b1_rows_128", "rows_128", shapes=["random128"], seq=100),
    row("b2_rows_128_chain_star", "rows_128 chain star", shapes=("chain128", "star128"),
        seq=(0, 1)),
    row("b8_rows_31_to_97", "rows_at_words",
        shapes=[f"comb{n}" for n in (31, 32, 33, 63, 64, 65, 96, 97)], seq=(1, 2)),
    row("b2_whole_bytes", "multiple_of_8", shapes=("chain8", "star4"), seq=(8, 12)),
    row("b7_odd_bits", "not_multiple_of_8", shapes=("chain3", "star5", "random7"),
        seq=(1, 2, 3, 4, 5, 6, 7), batch=7),
    row("b5_one_bit_segments", "not_multiple_of_8 decode", shapes=["chain1"], seq=0, batch=5),
    row("b6_decode", "decode", shapes=["chain1"], seq=(7, 8, 9, 15, 16, 17), batch=6),
    row("b2_seq_65537", "long_context", shapes=("binary15", "chain4"), seq=(65_537, 3)),
    row("b1_seq_70000_rows_33", "long_context rows_33", shapes=["random33"], seq=70_000),
    row("b0", "empty_batch", shapes=()),
    row("b0_spare", "empty_batch spare_rows capacity_room", shapes=(), n_spare=4, room=(3, 3)),
    row("b0_no_table", "empty_batch no_table", blank("req_to_token", 0, 0), shapes=()),
    row("b3_nobody_has_rows", "no_rows", shapes=["chain0"], seq=(5, 0, 2), batch=3),
    row("b4_some_without_rows", "no_rows ragged", shapes=("chain0", "star4", "chain0", "chain2"),
        seq=(4, 9)),
    row("b2_spare_rows", "spare_rows", put("ancestor_bits", np.s_[9:], 0xFFFFFFFF),
        shapes=("star4", "chain5"), seq=3, n_spare=6),
    row("b3_seq_mixed_0_1", "seq_0 seq_1", shapes=("star3", "comb5", "ngram9"), seq=(0, 1, 0)),
    row("b3_full_table", "capacity_exact full_table", shapes=["star4"], seq=16, batch=3),
    row("b3_one_table_row_shared", "shared_row", put("req_pool_indices", ..., 2)),
    row("b3_table_rows_descend", "pool_order", put("req_pool_indices", ..., [4, 2, 0])),
    row("b3_negative_slots_copied", "slots_negative", put("req_to_token", ..., -1)),
    row("b6_merged_paths", "ngram", shapes=("ngram12", "ngram31"), seq=(6, 41), batch=6),
    row("b2_all_bits_visible", "bits_all", put("ancestor_bits", ..., 0xFFFFFFFF),
        shapes=("star5", "chain3"), seq=2),
    row("b2_no_bits_visible", "bits_none", put("ancestor_bits", ..., 0),
        shapes=("star5", "chain3"), seq=2),
    row("kv_one_short", "refused kv", BOUNDS, room=(-1, 0)),
    row("mask_one_short", "refused mask", BOUNDS, room=(0, -1)),
    row("nothing_fits", "refused kv none", BOUNDS, setting(kv_capacity=0, mask_capacity=0)),
    row("first_too_large", "refused kv first", BOUNDS, setting(kv_capacity=11, mask_capacity=99),
        seq=(30, 0, 2)),
    row("sequence_past_table", "refused table", BOUNDS, put("seq_len", 1, 15)),
    row("sequence_negative", "refused table negative", BOUNDS, put("seq_len", 1, -1)),
    row("sequence_at_int64", "refused table int64", BOUNDS, put("seq_len", 1, 2**63 - 1)),
    row("pool_row_past_table", "refused pool", BOUNDS, put("req_pool_indices", 2, 5)),
    row("pool_row_negative", "refused pool negative", BOUNDS, put("req_pool_indices", 0, -1)),
    row("layout_falls", "refused layout", DATA, put("qo_indptr", 1, 9), n_columns=20),
    row("layout_past_rows", "refused layout past", DATA, put("qo_indptr", 3, 14)),
    row("rows_129", "refused rows", BOUNDS, shapes=("chain3", "random129"), seq=4),
    row("b129", "beyond_batch", BOUNDS, shapes=["chain1"], seq=0, batch=129),
    row("rows_16385", "beyond_rows", BOUNDS, blank("ancestor_bits", 16_385, 4)),
    row("table_rows_65537", "beyond_table_rows", BOUNDS, blank("req_to_token", 65_537, 0)),
    row("table_columns_2097153", "beyond_table_columns", BOUNDS,
        blank("req_to_token", 0, 2**21 + 1)),
    row("kv_capacity_negative", "below_kv", BOUNDS, setting(kv_capacity=-1)),
    row("kv_capacity_past_int32", "beyond_kv", BOUNDS, setting(kv_capacity=2**31)),
    row("mask_capacity_negative", "below_mask", BOUNDS, setting(mask_capacity=-1)),
    row("mask_capacity_past_int32", "beyond_mask", BOUNDS, setting(mask_capacity=2**31)),
    row("bits_of_two_words", "wrong_shape", BOUNDS, blank("ancestor_bits", 13, 2)),
    row("table_int64", "wrong_dtype", DTYPE, cast("req_to_token", "int64")),
    row("bits_int64", "wrong_dtype bits", DTYPE, cast("ancestor_bits", "int64")),
)  # fmt: skip


def _offsets(rng: Rng, rows: Any, seq: Any, batch: int | None = None) -> Inputs:
    """K9 inputs: `rows` and `seq` repeat over the batch."""
    n_requests = max(np.size(rows), np.size(seq)) if batch is None else batch
    return {
        "verify_count": cycle(rows, n_requests, "int64"),
        "seq_len": cycle(seq, n_requests, "int64"),
    }


_OFFSET_ROWS = (
    row("b1_smallest", "smallest", rows=1, seq=0),
    row("b1_rows_128_seq1", "rows_128 seq_1", rows=128, seq=1),
    row("b2_plain", "ragged", rows=(3, 8), seq=(5, 17)),
    row("b128_rows_64", "batch_limit", rows=64, seq=(100, 7, 0, 2048), batch=128),
    row("b128_rows_128_seq_2000", "batch_limit rows_128", rows=128, seq=2000, batch=128),
    row("b128_ragged", "batch_limit ragged", rows=(1, 9, 64, 0, 128), seq=(0, 1, 513), batch=128),
    row("b0", "empty_batch", rows=(), seq=()),
    row("b3_nobody_has_rows", "no_rows", rows=0, seq=(0, 9, 33)),
    row("b4_some_without_rows", "no_rows ragged", rows=(0, 5, 0, 2), seq=(3, 0, 0, 8)),
    row("b5_seq_0", "seq_0", rows=(1, 2, 3, 4, 5), seq=0),
    row("b5_seq_1", "seq_1", rows=(1, 2, 3, 4, 5), seq=1),
    row("b3_whole_bytes", "multiple_of_8", rows=(8, 4, 16), seq=(8, 12, 3)),
    row("b7_odd_bits", "not_multiple_of_8", rows=(1, 3, 5, 7), seq=(2, 4, 6, 0, 10, 8, 12)),
    row("b2_seq_65537", "long_context", rows=(33, 64), seq=(65_537, 131_072)),
    row("b2_seq_2097152", "long_context table_limit", rows=(128, 1), seq=2**21),
    row("b32_decode", "decode", rows=1, seq=(7, 8, 9), batch=32),
    row("b1_kv_at_int32", "int32_edge", rows=0, seq=INT32_MAX),
    row("b1_kv_and_row_at_int32", "int32_edge decode", rows=1, seq=INT32_MAX - 1),
    row("b2_kv_sum_at_int32", "int32_edge sum", rows=0, seq=(2**30, 2**30 - 1)),
    row("b1_mask_at_int32", "int32_edge mask", rows=128, seq=2**27 - 128 - 1),
    row("b2_mask_sum_at_int32", "int32_edge mask sum", rows=64, seq=(2**27 - 64, 2**27 - 65)),
    row("b128_long_but_fits", "int32_edge batch_limit", rows=0, seq=2**24 - 1, batch=128),
    row("b2_rows_127_and_129_bits", "byte_edge", rows=(1, 1, 127), seq=(127, 128, 0)),
    row("b16_powers_of_two", "powers", rows=[2**i for i in range(8)] * 2,
        seq=[2**i for i in range(16)]),
    row("kv_overflows", "refused overflow kv", BOUNDS, rows=0, seq=(5, 2**31)),
    row("kv_sum_overflows", "refused overflow sum", BOUNDS, rows=(1, 1, 2), seq=(2**30, 2**30, 4)),
    row("mask_overflows", "refused overflow mask", BOUNDS, rows=(3, 128, 2), seq=(7, 2**27, 9)),
    row("mask_one_past_int32", "refused overflow mask edge", BOUNDS, rows=128, seq=2**27 - 128),
    row("batch_of_long_contexts", "refused overflow batch_limit", BOUNDS, rows=128, seq=2**20,
        batch=128),
    row("product_past_int64", "refused overflow int64", BOUNDS, rows=(2, 128), seq=(3, 2**61)),
    row("sequence_at_int64", "refused overflow int64 edge", BOUNDS, rows=(2, 1, 3),
        seq=(3, 2**63 - 1, 4)),
    row("rows_129", "refused rows", BOUNDS, rows=(3, 129, 4), seq=9),
    row("rows_negative", "refused rows negative", BOUNDS, rows=(3, 4, -1), seq=9),
    row("sequence_negative", "refused sequence", BOUNDS, rows=3, seq=(4, -1, 9)),
    row("rows_and_sequence_bad", "refused rows sequence", BOUNDS, rows=(3, 200), seq=(4, -5)),
    row("b129", "beyond_batch", BOUNDS, rows=1, seq=1, batch=129),
    row("sequence_of_another_batch", "wrong_shape", BOUNDS, blank("seq_len", 3), rows=(1, 2),
        seq=4),
    row("rows_as_table", "wrong_shape axes", BOUNDS, blank("verify_count", 2, 1), rows=(1, 2),
        seq=4),
    row("sequence_int32", "wrong_dtype", DTYPE, cast("seq_len", "int32"), rows=(1, 2), seq=4),
    row("rows_float32", "wrong_dtype float", DTYPE, cast("verify_count", "float32"), rows=1,
        seq=(4, 5)),
)  # fmt: skip

LAYOUT_CASES = (
    *ROW_CASES,
    *cases(K4, _masks, _MASK_ROWS),
    *cases(K9, _offsets, _OFFSET_ROWS),
)
