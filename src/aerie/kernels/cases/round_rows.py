"""Cases of the round's rows, R1 to R4: trees, prompt chunks, accepted runs and fed levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aerie.kernels.cases.draws import bounds_of, cycle, in_table
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, blank, cast, setting
from aerie.kernels.cases.table import Array, Inputs, Rng, Row, cases, row

TREES, PROMPTS = "place_verify_rows", "place_prompt_rows"
RUNS, LEVELS = "place_draft_rows", "place_draft_levels"
PAGE = 16
Many = int | Sequence[int]


def _lists(rng: Rng, lengths: Array, spare: int = 1, unlisted: int = 0) -> Inputs:
    """Slot lists as K8 writes them, `spare` entries of -1 behind the last.

    Request 0 lacks `unlisted` slots.
    """
    listed = lengths.copy()
    listed[:1] -= unlisted
    n_listed = int(listed.sum())
    slots = np.full(n_listed + spare, -1, np.int32)
    slots[:n_listed] = rng.permutation(max(n_listed, 1) * 2)[:n_listed] + 1
    return {"kv_indptr": bounds_of(listed), "kv_indices": slots}


def _trees(
    rng: Rng,
    batch: int,
    before: Many = (7, 20, 0),
    rows: Many = (3, 5, 1),
    room: int = 0,
    **lists: int,
) -> Inputs:
    """R1 inputs; `room` rows are padding."""
    lengths, counts = cycle(before, batch, "int64"), cycle(rows, batch, "int64")
    n_rows, capacity = int(counts.sum()), int(counts.sum()) + room
    tokens, positions = np.full(capacity, -1, np.int64), np.zeros(capacity, np.int64)
    tokens[:n_rows] = rng.integers(0, 32_000, n_rows)
    positions[:n_rows] = np.repeat(lengths, counts) + rng.integers(0, 9, n_rows)
    return {
        "draft_tokens": tokens,
        "positions": positions,
        "qo_indptr": bounds_of(counts),
        **_lists(rng, lengths + counts, **lists),
        "seq_len": lengths,
    }


def _prompts(
    rng: Rng,
    batch: int,
    before: Many = (0, 30, 5),
    rows: Many = (9, 1, 4),
    room: int = 0,
    **lists: int,
) -> Inputs:
    """R2 inputs, as above."""
    first, counts = cycle(before, batch, "int64"), cycle(rows, batch, "int64")
    return {
        "qo_indptr": bounds_of(counts),
        "start": first,
        **_lists(rng, first + counts, **lists),
        "row_capacity": int(counts.sum()) + room,
    }


# What R1 and R2 are asked: the two differ in what a row sees.
_PLACED_ROWS = (
    row("b1", "one", batch=1),
    row("b3_ragged", "ragged", batch=3),
    row("b3_padding", "padding", batch=3, room=7, spare=40),
    row("b5_prime_padding", "padding ragged", batch=5, room=13, spare=17),
    row("b1_padding_of_one", "padding", batch=1, room=1, spare=2),
    row("b1_no_spare_column", "capacity_exact", batch=1, spare=0),
    row("b4_no_spare_column", "capacity_exact ragged", batch=4, spare=0),
    row("b0", "empty_batch", batch=0),
    row("b0_padding", "empty_batch padding", batch=0, room=5, spare=9),
    row("b3_one_without_rows", "no_rows", batch=3, rows=(2, 0, 4)),
    row("b3_all_without_rows", "no_rows all_empty", batch=3, rows=0, spare=3),
    row("b3_no_rows_padding", "no_rows padding", batch=3, rows=0, room=4, spare=3),
    row("b128", "batch_limit", batch=128, room=3, spare=6),
    row("b128_exact", "batch_limit capacity_exact", batch=128, spare=0),
    row("b2_page_less_one", "page", batch=2, rows=PAGE - 1),
    row("b2_page", "page", batch=2, rows=PAGE),
    row("b2_page_and_one", "page", batch=2, rows=PAGE + 1),
    row("b1_list_too_short", "unlisted", batch=1, unlisted=2),
    row("b4_list_without_slots", "unlisted ragged", batch=4, unlisted=8, room=2),
    row("b2_rows_block", "block", batch=2, rows=(127, 129), spare=2),
    row("b3_nothing_before", "seq_0", batch=3, before=0),
    row("b3_one_before", "seq_1", batch=3, before=1),
    row("b3_page_before", "page", batch=3, before=(PAGE - 1, PAGE, PAGE + 1)),
    row("b3_long", "long_context", batch=3, before=(4095, 9000, 257), spare=300),
    row("b129", "beyond_batch", BOUNDS, batch=129, rows=1, before=0),
    row("no_columns", "below_columns", BOUNDS, batch=0, spare=0),
)


def _placed(at: str, name: str) -> tuple[Row, ...]:
    """All that, and rows of the input that says how much stands before a request's rows."""
    return (
        *_PLACED_ROWS,
        row(f"{at}_of_another_batch", "wrong_shape", BOUNDS, blank(at, 2), batch=3),
        row("lists_of_another_batch", "wrong_shape lists", BOUNDS, blank("kv_indptr", 3), batch=3),
        row("slots_int64", "wrong_dtype", DTYPE, cast("kv_indices", "int64"), batch=3),
        row("bounds_int64", "wrong_dtype int64", DTYPE, cast("qo_indptr", "int64"), batch=3),
        row(f"{at}_int32", f"wrong_dtype int32 {name}", DTYPE, cast(at, "int32"), batch=3),
    )


_TREE_ROWS = (
    *_placed("seq_len", "tree"),
    row("rows_16385", "beyond_rows", BOUNDS, batch=1, before=0, rows=128, room=16_257),
    row("positions_of_other_rows", "wrong_shape rows", BOUNDS, blank("positions", 8), batch=3),
)
_PROMPT_ROWS = (
    *_placed("start", "prompt"),
    row(
        "capacity_1048577", "beyond_capacity", BOUNDS, setting(row_capacity=(1 << 20) + 1), batch=1
    ),
    row("capacity_negative", "below_capacity", BOUNDS, setting(row_capacity=-1), batch=1),
)


def _runs(
    rng: Rng,
    batch: int,
    seq_len: Many = (9, 21, 0, 8),
    count: Many = (3, 1, 0, 0),
    run: int = 5,
    width: int = 40,
    table_rows: int | None = None,
) -> Inputs:
    """R3 inputs: `count` of `run` rows of each request hold a token."""
    return {
        "seq_len": cycle(seq_len, batch, "int64"),
        "count": cycle(count, batch, "int64"),
        **in_table(rng, batch, width, table_rows),
        "run": run,
    }


_RUN_ROWS = (
    row("b4_mixed", "mixed", batch=4),
    row("b1_one_row", "smallest", batch=1, seq_len=1, count=1, run=1),
    row("b1_full_run", "full", batch=1, seq_len=12, count=5),
    row("b1_part_of_a_run", "one", batch=1, seq_len=12, count=2),
    row("b1_run_of_everything", "seq_0 full", batch=1, seq_len=5, count=5),
    row("b1_inert", "inert", batch=1, seq_len=0, count=0),
    row("b3_all_inert", "inert all_empty", batch=3, seq_len=0, count=0),
    row("b3_ended", "inert ended", batch=3, seq_len=(9, 30, 1), count=0),
    row("b0", "empty_batch", batch=0),
    row("b0_run_128", "empty_batch run_limit", batch=0, run=128),
    row("b128_mixed", "batch_limit", batch=128),
    row("b128_run_1", "batch_limit run_1", batch=128, count=1, run=1, seq_len=(1, 7)),
    row("b2_run_128", "run_limit full", batch=2, seq_len=130, count=128, run=128, width=140),
    row("b3_run_127", "run_prime", batch=3, seq_len=130, count=(127, 1, 64), run=127, width=140),
    row("b3_run_7", "run_prime", batch=3, seq_len=(30, 7, 8), count=(7, 7, 3), run=7),
    row("b2_page_less_one", "page below", batch=2, seq_len=PAGE - 1, count=2),
    row("b2_page", "page", batch=2, seq_len=PAGE, count=2),
    row("b2_page_and_one", "page above", batch=2, seq_len=PAGE + 1, count=2),
    row("b2_end_of_the_table", "edge", batch=2, seq_len=40, count=(5, 1)),
    row("b2_table_of_one_row", "edge table_1", batch=1, table_rows=1, seq_len=6, count=4),
    row("b1_table_of_one_column", "edge width_1", batch=1, width=1, seq_len=1, count=1),
    row("b2_wide_table", "long_context", batch=2, width=9001, seq_len=(9000, 4097), count=(5, 2)),
    row("b13_prime", "prime", batch=13, seq_len=tuple(range(5, 31, 2)), count=(1, 2, 3, 4, 5, 0)),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("run_0", "below_run", BOUNDS, setting(run=0), batch=2),
    row("run_129", "beyond_run", BOUNDS, batch=2, run=129),
    row("table_65537", "beyond_table", BOUNDS, blank("req_to_token", 65_537, 1), batch=2),
    row("table_0", "below_table", BOUNDS, blank("req_to_token", 0, 4), batch=0),
    row("width_2097153", "beyond_width", BOUNDS, blank("req_to_token", 1, 2_097_153), batch=1),
    row("count_of_another_batch", "wrong_shape", BOUNDS, blank("count", 3), batch=4),
    row("table_int64", "wrong_dtype", DTYPE, cast("req_to_token", "int64"), batch=4),
    row("count_int32", "wrong_dtype int32", DTYPE, cast("count", "int32"), batch=4),
)


def _levels(
    rng: Rng,
    batch: int,
    widths: Sequence[int] = (4, 2, 3),
    seq_len: Many = (9, 21, 0, 8),
    spare: int = 1,
    beyond: int = 0,
    width: int = 40,
) -> Inputs:
    """R4 inputs: level d feeds `widths[d]` nodes; lists hold `beyond` slots more than that."""
    lengths, n_fed = cycle(seq_len, batch, "int64"), sum(widths)
    level = [depth for depth, wide in enumerate(widths) for _ in range(wide)]
    return {
        "seq_len": lengths,
        **in_table(rng, batch, width),
        "node_level": np.array(level, np.int64),
        **_lists(rng, lengths + n_fed + beyond, spare),
    }


_LEVEL_ROWS = (
    row("b4_three_levels", "mixed", batch=4),
    row("b1_three_levels", "one", batch=1),
    row("b1_one_node", "smallest", batch=1, widths=(1,)),
    row("b1_nothing_fed", "no_rows", batch=1, widths=(), beyond=1),
    row("b4_nothing_fed", "no_rows inert", batch=4, widths=(), beyond=1, spare=30),
    row("b0", "empty_batch", batch=0),
    row("b0_nothing_fed", "empty_batch no_rows", batch=0, widths=(), spare=4),
    row("b3_chain", "chain", batch=3, widths=(1, 1, 1, 1, 1)),
    row("b3_one_level", "one_level", batch=3, widths=(8,)),
    row("b3_level_of_no_nodes", "gap", batch=3, widths=(3, 0, 2)),
    row("b3_grows", "width_grows", batch=3, widths=(1, 2, 5)),
    row("b3_shrinks", "width_shrinks", batch=3, widths=(7, 3, 1)),
    row("b128_three_levels", "batch_limit", batch=128),
    row("b128_chain", "batch_limit chain", batch=128, widths=(1, 1, 1), spare=0),
    row("b3_prefix_0", "seq_0", batch=3, seq_len=0),
    row("b2_page_edges", "page", batch=3, seq_len=(PAGE - 1, PAGE, PAGE + 1)),
    row("b2_fed_block", "block", batch=2, widths=(10,) * 13, width=160),
    row("b1_fed_1024", "fed_limit", batch=1, widths=(8,) * 128, width=1100),
    row("b2_lists_exact", "capacity_exact", batch=2, spare=0),
    row("b3_longer_lists", "beyond", batch=3, beyond=5, spare=3),
    row("b3_shorter_lists", "unlisted", batch=3, beyond=-4, seq_len=(9, 21, 8)),
    row("b3_lists_of_the_prefix", "unlisted", batch=3, beyond=-9, seq_len=(9, 21, 8)),
    row("b2_past_the_table", "edge", batch=2, seq_len=(36, 40)),
    row("b2_long", "long_context", batch=2, seq_len=(4096, 9001), width=9020, spare=500),
    row("b13_prime", "prime", batch=13, widths=(5, 7), seq_len=tuple(range(0, 26, 2)), spare=11),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("fed_1025", "beyond_fed", BOUNDS, blank("node_level", 1025), batch=1),
    row("table_65537", "beyond_table", BOUNDS, blank("req_to_token", 65_537, 1), batch=2),
    row("width_2097153", "beyond_width", BOUNDS, blank("req_to_token", 1, 2_097_153), batch=1),
    row("no_columns", "below_columns", BOUNDS, blank("kv_indices", 0), batch=1),
    row("lists_of_another_batch", "wrong_shape", BOUNDS, blank("kv_indptr", 3), batch=4),
    row("levels_int32", "wrong_dtype", DTYPE, cast("node_level", "int32"), batch=4),
    row("slots_int64", "wrong_dtype int64", DTYPE, cast("kv_indices", "int64"), batch=4),
)

ROW_CASES = (
    *cases(TREES, _trees, _TREE_ROWS),
    *cases(PROMPTS, _prompts, _PROMPT_ROWS),
    *cases(RUNS, _runs, _RUN_ROWS),
    *cases(LEVELS, _levels, _LEVEL_ROWS),
)
