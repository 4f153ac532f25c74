"""Cases of previews, R20 to R23: blocks of texts of every length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aerie.kernels.cases.draws import rows_of_hidden
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, Spoil, blank, blanks, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row

WEIGHED, BOUNDED = "weigh_kv_blocks", "bound_kv_blocks"
CHOSEN, GATHERED = "choose_kv_blocks", "gather_kv_blocks"
Heads = tuple[int, int, int, int]  # layers, KV heads, query heads of each, size


def _texts(rng: Rng, lengths: Sequence[int], size: int) -> Inputs:
    """A table whose rows list slots of a pool in no order, and one row too many."""
    batch, width = len(lengths), max([*lengths, 1]) + size
    slots = 1 + rng.permutation((batch + 1) * width)
    return {
        "req_to_token": slots.reshape(batch + 1, width).astype(np.int32),
        "req_pool_indices": rng.permutation(batch + 1)[:batch].astype(np.int64),
        "seq_len": np.array(lengths, np.int64),
    }


def _scored(
    rng: Rng,
    lengths: Sequence[int] = (20, 7, 33),
    heads: Heads = (2, 1, 2, 4),
    block_size: int = 4,
    dtype: str = "float32",
    spare: int = 1,
) -> Inputs:
    """R20 and R21 inputs; `spare` blocks more than the longest text has."""
    n_layers, n_kv, group, size = heads
    texts = _texts(rng, lengths, block_size)
    n_slots = texts["req_to_token"].size + 1
    return {
        "queries": rows_of_hidden(rng, (n_layers, len(lengths), n_kv * group, size), dtype),
        "keys": rows_of_hidden(rng, (n_layers, n_slots, n_kv, size), dtype),
        **texts,
        "block_size": block_size,
        "n_blocks": max(-(-max([*lengths, 1]) // block_size) + spare, 1),
    }


def _pools(**shapes: tuple[int, ...]) -> Spoil:
    """Zeros of these shapes for the four pools of R23."""
    names = {"near": ("near_keys", "near_values"), "own": ("keys", "values")}
    return blanks(**{name: shape for kind, shape in shapes.items() for name in names[kind]})


# What kernels that read a pool are asked.
_TEXT_ROWS = (
    row("b3", "mixed"),
    row("b3_block_edges", "edges", lengths=(15, 16, 17), block_size=8),
    row("b3_no_text", "empty_text", lengths=(0, 5, 0)),
    row("b2_half", "float16", lengths=(40, 19), dtype="float16"),
    row("b2_bfloat16", "bfloat16", lengths=(40, 19), dtype="bfloat16"),
    row("width_2097153", "beyond_width", BOUNDS, blank("req_to_token", 1, 2_097_153)),
)  # fmt: skip

# What all of them are asked of the size of blocks.
_BLOCK_ROWS = (
    row("block_0", "below_block", BOUNDS, setting(block_size=0)),
    row("block_1025", "beyond_block", BOUNDS, setting(block_size=1025)),
)  # fmt: skip

_SCORED_ROWS = (
    *_TEXT_ROWS,
    row("b1_smallest", "smallest", lengths=(1,), heads=(1, 1, 1, 1), block_size=1, spare=0),
    row("b1_one_block", "one", lengths=(4,), spare=0),
    row("b0", "empty_batch", lengths=()),
    row("y0", "no_layer", heads=(0, 1, 2, 4)),
    row("b128", "batch_limit", lengths=(3, 9) * 64),
    row("b2_grouped", "heads", lengths=(40, 61), heads=(2, 4, 3, 8), block_size=16),
    row("b2_prime", "prime", lengths=(31, 23), heads=(3, 3, 5, 7), block_size=7),
    row("b2_long", "long", lengths=(1025, 300), heads=(1, 2, 2, 16), block_size=16),
    row("b3_all_alike", "ties", put("keys", ..., 1)),
    row("b3_many_spare", "spare", spare=9),
    row("b2_queries_alike", "ties", put("queries", ..., 1), lengths=(9, 12)),
    row("b2_two_heads", "small heads", lengths=(9, 6), heads=(1, 2, 3, 4)),
    row("b1_block_of_the_text", "one edge", lengths=(9,), block_size=9, spare=0),
    row("b2_small_half", "float16 small", lengths=(9, 3), dtype="float16"),
    row("b2_single_positions", "block_1", lengths=(7, 2), block_size=1),
    row("b2_five_queries", "heads prime", lengths=(9, 6), heads=(1, 1, 5, 3)),
    row("b129", "beyond_batch", BOUNDS, lengths=(1,) * 129),
    *_BLOCK_ROWS,
    row("blocks_0", "below_blocks", BOUNDS, setting(n_blocks=0)),
    row("blocks_past_the_limit", "beyond_blocks", BOUNDS, setting(n_blocks=(1 << 20) + 1)),
    row("layers_1025", "beyond_layers", BOUNDS,
        blanks(queries=(1025, 3, 1, 1), keys=(1025, 1, 1, 1))),
    row("kv_heads_1025", "beyond_heads", BOUNDS,
        blanks(queries=(0, 3, 1025, 1), keys=(0, 1, 1025, 1))),
    row("queries_1025", "beyond_group", BOUNDS, blanks(queries=(0, 3, 1025, 4), keys=(0, 1, 1, 4))),
    row("size_1025", "beyond_size", BOUNDS, blanks(queries=(0, 3, 2, 1025), keys=(0, 1, 1, 1025))),
    row("slots_past_the_limit", "beyond_slots", BOUNDS,
        blanks(queries=(0, 3, 2, 4), keys=(0, (1 << 28) + 1, 1, 4))),
    row("texts_65537", "beyond_table", BOUNDS, blank("req_to_token", 65_537, 1)),
    row("keys_of_other_heads", "wrong_shape", BOUNDS, blank("keys", 2, 9, 3, 4)),
    row("queries_float64", "wrong_dtype", DTYPE, cast("queries", "float64")),
    row("lengths_int32", "wrong_dtype int32", DTYPE, cast("seq_len", "int32")),
)  # fmt: skip


def _choosing(
    rng: Rng,
    lengths: Sequence[int] = (70, 13, 41),
    heads: tuple[int, int] = (2, 2),
    block_size: int = 4,
    kept: tuple[int, int, int] = (1, 3, 2),
    levels: int = 0,
) -> Inputs:
    """R22 inputs; `levels` different scores, any where 0."""
    n_blocks = -(-max([*lengths, 1]) // block_size) + 1
    shape = (heads[0], len(lengths), heads[1], n_blocks)
    scores = rng.random(shape) if not levels else rng.integers(0, levels, shape) / levels
    n_sink, n_retrieval, n_window = kept
    return {
        "block_scores": scores.astype(np.float32),
        "seq_len": np.array(lengths, np.int64),
        "block_size": block_size,
        "n_sink": n_sink,
        "n_retrieval": n_retrieval,
        "n_window": n_window,
    }


_CHOSEN_ROWS = (
    row("b3", "mixed"),
    row("b1_smallest", "smallest", lengths=(1,), heads=(1, 1), block_size=1, kept=(0, 0, 1)),
    row("b3_all_fit", "all", kept=(2, 30, 2)),
    row("b3_exactly_all", "all edge", lengths=(24, 25, 23), kept=(1, 3, 2)),
    row("b3_window_only", "window", kept=(0, 0, 3)),
    row("b3_sinks_meet_the_window", "overlap", lengths=(9, 17, 4), kept=(3, 2, 3)),
    row("b3_no_retrieval", "none_between", kept=(2, 0, 2)),
    row("b3_ties", "ties", levels=2, lengths=(90, 61, 77), kept=(1, 6, 2)),
    row("b3_all_equal", "ties all_equal", levels=1, lengths=(90, 61, 77), kept=(1, 6, 2)),
    row("b3_no_text", "empty_text", lengths=(0, 11, 0)),
    row("b3_negative_scores", "negative", put("block_scores", np.s_[..., ::2], -2.5)),
    row("b3_bounds_behind", "behind", put("block_scores", np.s_[..., 5:], -3e38)),
    row("b0", "empty_batch", lengths=()),
    row("y0", "no_layer", heads=(0, 2)),
    row("b128", "batch_limit", lengths=(70, 13) * 64, heads=(1, 1)),
    row("b2_long", "long", lengths=(4096, 4081), block_size=16, kept=(2, 64, 8)),
    row("b2_prime", "prime", lengths=(101, 97), block_size=7, kept=(1, 5, 3)),
    *(
        row(f"b2_kept_{a}_{b}_{c}", "mixed small", lengths=(29, 14), kept=(a, b, c))
        for a, b, c in ((0, 1, 1), (1, 1, 1), (2, 2, 1), (0, 4, 3))
    ),
    row("b129", "beyond_batch", BOUNDS, lengths=(1,) * 129),
    *_BLOCK_ROWS,
    row("window_0", "below_window", BOUNDS, setting(n_window=0)),
    row("window_65537", "beyond_window", BOUNDS, setting(n_window=65_537)),
    row("sinks_65537", "beyond_sinks", BOUNDS, setting(n_sink=65_537)),
    row("retrieval_65537", "beyond_retrieval", BOUNDS, setting(n_retrieval=65_537)),
    row("layers_1025", "beyond_layers", BOUNDS, blank("block_scores", 1025, 3, 1, 1)),
    row("heads_1025", "beyond_heads", BOUNDS, blank("block_scores", 0, 3, 1025, 1)),
    row("blocks_past_the_limit", "beyond_blocks", BOUNDS,
        blank("block_scores", 0, 3, 1, (1 << 20) + 1)),
    row("lengths_of_another_batch", "wrong_shape", BOUNDS, blank("seq_len", 2)),
    row("scores_float64", "wrong_dtype", DTYPE, cast("block_scores", "float64")),
)  # fmt: skip


def _gathering(
    rng: Rng,
    lengths: Sequence[int] = (20, 7, 33),
    heads: tuple[int, int, int] = (2, 2, 4),
    block_size: int = 4,
    n_chosen: int = 3,
    dtype: str = "float32",
) -> Inputs:
    """R23 inputs: random blocks, ascending, the last one of each text among them."""
    n_layers, n_kv, size = heads
    texts = _texts(rng, lengths, block_size)
    n_slots, batch = texts["req_to_token"].size + 1, len(lengths)
    blocks = np.full((n_layers, batch, n_kv, n_chosen), -1, np.int32)
    for y, b, g in np.ndindex(n_layers, batch, n_kv):
        n_own = -(-lengths[b] // block_size)
        if n_own:
            others = rng.permutation(n_own - 1)[: n_chosen - 1]
            blocks[y, b, g, : len(others) + 1] = [*sorted(others), n_own - 1]
    width = n_chosen * block_size + 5
    n_near = batch * width + 1
    near = 1 + rng.permutation(n_near - 1).reshape(batch, width)
    return {
        "near_keys": rows_of_hidden(rng, (n_layers, n_near, n_kv, size), dtype),
        "near_values": rows_of_hidden(rng, (n_layers, n_near, n_kv, size), dtype),
        "keys": rows_of_hidden(rng, (n_layers, n_slots, n_kv, size), dtype),
        "values": rows_of_hidden(rng, (n_layers, n_slots, n_kv, size), dtype),
        "blocks": blocks,
        **texts,
        "near_table": near.astype(np.int32),
        "block_size": block_size,
    }


_GATHERED_ROWS = (
    *_TEXT_ROWS,
    row("b1_smallest", "smallest", lengths=(1,), heads=(1, 1, 1), block_size=1, n_chosen=1),
    *(
        row(f"b2_small_{n}", f"small n{n}", lengths=(n, 8 - n), heads=(1, 2, 2), block_size=2)
        for n in range(9)
    ),
    row("b1_two_blocks", "small", lengths=(7,), heads=(1, 1, 2), block_size=2, n_chosen=3),
    row("b1_small_half", "small float16", lengths=(7,), heads=(1, 1, 2), dtype="float16"),
    row("b1_small_bfloat16", "small bfloat16", lengths=(7,), heads=(1, 1, 2), dtype="bfloat16"),
    row("b1_small_prime", "small prime", lengths=(11,), heads=(1, 1, 3), block_size=3),
    row("b3_more_places_than_blocks", "few", n_chosen=12),
    row("b0", "empty_batch", blank("near_table", 0, 17), lengths=()),
    row("b128", "batch_limit", lengths=(1, 2) * 64, heads=(1, 1, 2), n_chosen=1),
    row("y0", "no_layer", heads=(0, 2, 4)),
    row("b64", "batch", lengths=(3, 9) * 32, heads=(1, 1, 4)),
    row("b2_prime", "prime", lengths=(31, 23), heads=(3, 3, 7), block_size=7),
    row("b1_long", "long", lengths=(1025,), heads=(1, 2, 16), block_size=16, n_chosen=20),
    row("b1_wide_head", "head_256", lengths=(33,), heads=(1, 1, 256)),
    row("b129", "beyond_batch", BOUNDS, lengths=(1,) * 129, heads=(1, 1, 1), n_chosen=1),
    *_BLOCK_ROWS,
    row("block_1024", "beyond_table", BOUNDS, setting(block_size=1024)),
    row("layers_1025", "beyond_layers", BOUNDS, _pools(near=(1025, 1, 2, 4), own=(1025, 1, 2, 4)),
        blank("blocks", 1025, 3, 2, 1)),
    row("heads_1025", "beyond_heads", BOUNDS, _pools(near=(0, 1, 1025, 4), own=(0, 1, 1025, 4)),
        blank("blocks", 0, 3, 1025, 1)),
    row("size_1025", "beyond_size", BOUNDS, _pools(near=(0, 1, 2, 1025), own=(0, 1, 2, 1025)),
        blank("blocks", 0, 3, 2, 1)),
    row("slots_past_the_limit", "beyond_slots", BOUNDS,
        _pools(near=(0, 1, 2, 4), own=(0, (1 << 28) + 1, 2, 4)), blank("blocks", 0, 3, 2, 1)),
    row("near_slots_past_the_limit", "beyond_near_slots", BOUNDS,
        _pools(near=(0, (1 << 28) + 1, 2, 4), own=(0, 1, 2, 4)), blank("blocks", 0, 3, 2, 1)),
    row("blocks_past_the_limit", "beyond_blocks", BOUNDS,
        _pools(near=(0, 1, 2, 4), own=(0, 1, 2, 4)), blank("blocks", 0, 3, 2, (1 << 18) + 1)),
    row("texts_65537", "beyond_texts", BOUNDS, blank("req_to_token", 65_537, 1)),
    row("near_width_2097153", "beyond_near_width", BOUNDS, blank("near_table", 1, 2_097_153),
        lengths=(7,)),
    row("values_of_other_heads", "wrong_shape", BOUNDS, blank("values", 2, 9, 3, 4)),
    row("blocks_int64", "wrong_dtype", DTYPE, cast("blocks", "int64")),
)  # fmt: skip


PARTIAL_CASES = (
    *cases(WEIGHED, _scored, _SCORED_ROWS),
    *cases(BOUNDED, _scored, _SCORED_ROWS),
    *cases(CHOSEN, _choosing, _CHOSEN_ROWS),
    *cases(GATHERED, _gathering, _GATHERED_ROWS),
)
