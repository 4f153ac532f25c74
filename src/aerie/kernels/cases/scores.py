"""Cases of what goes with a round's tokens: R15 keys, R16 what is wanted, R26 masks of seats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aerie.kernels.cases.draws import bounds_of, cycle, draw_logits, in_dtype
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, Spoil, blank, both, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row

COINS, SCORED, FORBIDDEN = "toss_coins", "score_target_tokens", "forbid_tokens"
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def _keys(
    rng: Rng,
    batch: int = 3,
    depth: int = 6,
    seed: int | Sequence[int] = (1, 2, 3),
    sample: int | Sequence[int] = 0,
    position: int | Sequence[int] | None = None,
) -> Inputs:
    """R15 inputs: values in turn; positions are drawn where none are named."""
    drawn = rng.integers(0, 5000, batch)
    return {
        "seed": cycle(seed, batch, "int64"),
        "sample_index": cycle(sample, batch, "int64"),
        "position": drawn if position is None else cycle(position, batch, "int64"),
        "tree_depth": depth,
    }


_COIN_ROWS = (
    row("b3", "usual"),
    row("b1_smallest", "smallest", batch=1, depth=0, seed=0, position=0),
    row("b0", "empty_batch", batch=0),
    row("b128", "batch_limit", batch=128, seed=range(128)),
    row("b128_depth_127", "batch_limit depth_limit", batch=128, depth=127),
    *(row(f"b3_depth_{depth}", f"word depth_{depth}", depth=depth) for depth in range(1, 6)),
    row("b2_depth_13", "word block", batch=2, depth=13),
    row("b2_depth_14", "word block exact", batch=2, depth=14),
    row("b2_depth_15", "word block prime", batch=2, depth=15),
    row("b2_depth_127", "depth_limit", batch=2, depth=127),
    row("b4_one_seed", "same_seed", batch=4, seed=7),
    row("b4_one_position", "same_position", batch=4, position=11),
    row("b4_samples", "samples", batch=4, seed=7, sample=(0, 1, 2, 3), position=11),
    row("b4_all_the_same", "same_seed same_position", batch=4, seed=7, position=11),
    row("b4_seed_edges", "seed_edge", batch=4, seed=(_LOWEST, _HIGHEST, -1, 0)),
    row("b4_seed_words", "seed_edge words", batch=4, seed=(2**32, 2**32 - 1, 2**31, 2**63 - 2**32)),
    row("b4_sample_edges", "sample_edge", batch=4, sample=(_LOWEST, _HIGHEST, -1, 2**32)),
    row("b4_position_edges", "position_edge", batch=4, position=(0, -1, 2**31 - 1, 2**32 - 1)),
    row("b2_position_limits", "position_edge int64", batch=2, position=(_LOWEST, _HIGHEST)),
    row("b2_long", "long_context", batch=2, position=(70_000, 2**21 - 2)),
    row("b9_prime", "prime", batch=9, depth=11, seed=range(90, 99)),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("depth_128", "beyond_depth", BOUNDS, setting(tree_depth=128)),
    row("depth_below_0", "below_depth", BOUNDS, setting(tree_depth=-1)),
    row("seeds_of_another_batch", "wrong_shape", BOUNDS, blank("seed", 2)),
    row("positions_of_another_batch", "wrong_shape position", BOUNDS, blank("position", 4)),
    row("seed_int32", "wrong_dtype", DTYPE, cast("seed", "int32")),
    row("position_int32", "wrong_dtype int32", DTYPE, cast("position", "int32")),
    row("sample_uint64", "wrong_dtype uint64", DTYPE, cast("sample_index", "uint64")),
)  # fmt: skip


def _run(
    rng: Rng,
    batch: int = 3,
    shape: tuple[int, int] = (9, 40),
    run: int = 3,
    top_n: int = 5,
    wanted: int | Sequence[int] = (5, 0, 2),
    kind: str = "usual",
) -> Inputs:
    """R16 inputs: any rows decide any tokens; the last entry of a longer run is unused."""
    n_rows, vocab = shape
    rows = rng.integers(0, max(n_rows, 1), (batch, run))
    rows[:, 2:][:, -1:] = -1
    return {
        "logits": draw_logits(rng, shape, kind),
        "rows": rows,
        "tokens": rng.integers(0, vocab, (batch, run)),
        "wanted": cycle(wanted, batch, "int32"),
        "top_n": top_n,
    }


def _chosen_is_best(inputs: Inputs) -> None:
    """Every token is the first maximum of its row."""
    best = inputs["logits"].argmax(axis=1)
    inputs["tokens"] = best[np.maximum(inputs["rows"], 0)]


def _certain(gap: float) -> Spoil:
    """One id stands so far above all others in every row."""
    peak = both(put("logits", ..., 0.0), put("logits", (..., 3), gap))
    return both(peak, _chosen_is_best)


_ZEROS = np.resize(np.array([0.0, -0.0, -1.0], np.float32), 40)

_SCORED_ROWS = (
    row("b3", "usual"),
    row("b1_smallest", "smallest", batch=1, shape=(1, 1), run=1, top_n=0, wanted=0),
    row("b1_one_token", "vocab_1", batch=1, shape=(2, 1), run=2),
    row("b0", "empty_batch", batch=0),
    row("b2_no_rows", "no_rows", batch=2, shape=(0, 7)),
    row("b128", "batch_limit", batch=128, shape=(60, 19), run=2, wanted=(-1, 0, 1, 5)),
    row("b1_run_128", "run_limit", batch=1, shape=(128, 13), run=128),
    row("b2_rows_16384", "rows_limit", put("rows", (1, 1), 16_383), batch=2, shape=(16_384, 3)),
    row("b3_nobody_wants", "none", wanted=-1),
    row("b3_chosen_alone", "chosen", wanted=0),
    row("b4_mixed", "mixed", batch=4, run=4, wanted=(-1, 0, 1, 5)),
    row("b2_wants_more_than_n", "wanted_beyond", batch=2, wanted=(6, 2**31 - 1)),
    row("b2_wants_below_minus_1", "wanted_below", batch=2, wanted=(-2, -(2**31))),
    row("b3_top_0", "top_0", top_n=0),
    row("b3_top_1", "top_1", top_n=1),
    row("b3_top_20", "top_limit", top_n=20, wanted=20),
    row("b3_fewer_ids_than_n", "top_limit vocab_7", shape=(9, 7), top_n=20, wanted=20),
    row("b3_ids_as_many_as_n", "top_limit vocab_20", shape=(9, 20), top_n=20, wanted=20),
    row("b3_no_row", "unused", put("rows", ..., -1)),
    row("b3_rows_outside", "unused outside",
        put("rows", np.s_[:, :2], [[9, 8], [-2, 0], [_HIGHEST, _LOWEST]])),
    row("b3_tokens_outside", "unused tokens",
        put("tokens", np.s_[:, :2], [[40, 39], [-1, 0], [_HIGHEST, _LOWEST]])),
    row("b3_one_row_for_all", "same_row", put("rows", ..., 4)),
    row("b3_chosen_is_best", "best", _chosen_is_best, wanted=1),
    row("b3_nearly_certain", "p_one", _certain(25.0)),
    row("b3_certain", "p_one exact", _certain(800.0)),
    row("b3_ties", "ties", kind="ties", top_n=20, wanted=20),
    row("b3_all_equal", "ties all_equal", kind="equal", top_n=20, wanted=20),
    row("b3_both_zeros", "ties zeros", put("logits", ..., _ZEROS), top_n=20, wanted=20),
    row("b3_masked", "masked", kind="masked", top_n=20, wanted=20),
    row("b3_one_left", "masked one", kind="one_left"),
    row("b3_nothing_left", "masked all", put("logits", ..., -np.inf)),
    row("b3_some_rows_empty", "masked rows", put("logits", np.s_[::2], -np.inf)),
    row("b3_nan", "nan", put("logits", (..., 3), np.nan)),
    row("b3_infinite", "inf", put("logits", (..., slice(2, 9, 3)), np.inf)),
    row("b3_nan_and_nothing", "nan masked", put("logits", ..., -np.inf),
        put("logits", (..., 0), np.nan)),
    row("b3_far_apart", "far_apart", kind="far_apart"),
    row("b3_huge", "huge", kind="huge"),
    row("b3_subnormal", "subnormal", kind="subnormal"),
    *(row(f"b1_vocab_{vocab}", f"block vocab_{vocab}", batch=1, shape=(2, vocab), run=2, wanted=5)
      for vocab in (2047, 2048, 2049)),
    row("b2_vocab_10007", "prime", batch=2, shape=(3, 10_007), top_n=20, wanted=20),
    row("b2_vocab_10007_equal", "prime all_equal", batch=2, shape=(3, 10_007), kind="equal"),
    row("b2_vocab_10007_masked", "prime masked", batch=2, shape=(3, 10_007), kind="one_left"),
    row("b1_vocab_262144", "vocab_limit", batch=1, shape=(1, 262_144), run=1, wanted=5),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("run_129", "beyond_run", BOUNDS, run=129),
    row("rows_16385", "beyond_rows", BOUNDS, shape=(16_385, 2)),
    row("vocab_262145", "beyond_vocab", BOUNDS, shape=(1, 262_145)),
    row("top_21", "beyond_top", BOUNDS, setting(top_n=21)),
    row("top_below_0", "below_top", BOUNDS, setting(top_n=-1)),
    row("tokens_of_another_run", "wrong_shape", BOUNDS, blank("tokens", 3, 4)),
    row("wanted_of_another_batch", "wrong_shape batch", BOUNDS, blank("wanted", 4)),
    row("logits_float16", "wrong_dtype", DTYPE, cast("logits", "float16")),
    row("rows_int32", "wrong_dtype int32", DTYPE, cast("rows", "int32")),
    row("wanted_int64", "wrong_dtype int64", DTYPE, cast("wanted", "int64")),
)  # fmt: skip


def _masked(
    rng: Rng,
    counts: Sequence[int] = (3, 2, 4),
    vocab: int = 70,
    spare: int = 0,
    bound: Sequence[bool] = (True,),
    maps: int = 0,
    words: int | None = None,
) -> Inputs:
    """So many rows of each seat, `spare` ones of nobody; `bound` says in turns who has masks."""
    n_words = -(-vocab // 32) if words is None else words
    first, n_masks = np.zeros(len(counts), np.int32), 1
    for seat, count in enumerate(counts):
        if bound[seat % len(bound)]:
            first[seat] = n_masks
            n_masks += count
    inputs: Inputs = {
        "logits": draw_logits(rng, (sum(counts) + spare, vocab), "usual"),
        "ends": bounds_of(np.array(counts, np.int64)),
        "first": first,
        "bits": rng.integers(-(2**31), 2**31, (n_masks, n_words)).astype(np.int32),
    }
    if maps:
        n_ids = 32 * n_words
        inputs["token_ids"] = np.array(
            [np.sort(rng.choice(n_ids, vocab, replace=False)) for _ in range(maps)], np.int64
        ).reshape(maps, vocab)
    return inputs


def _bfloat16(inputs: Inputs) -> None:
    """Logits as the patterns of the numbers they round down to."""
    inputs["logits"] = in_dtype(inputs["logits"], "bfloat16")


_MASKED_ROWS = (
    row("b3", "mixed"),
    row("b1_smallest", "smallest vocab_1", counts=(1,), vocab=1),
    row("b0", "empty_batch", counts=()),
    row("b0_spare", "empty_batch padding", counts=(), spare=3),
    row("b3_padding", "padding", spare=5),
    row("b4_some", "mixed some", counts=(2, 3, 1, 2), bound=(True, False)),
    row("b3_nobody", "none", bound=(False,)),
    row("b5_empty_seats", "empty_seats", counts=(0, 2, 0, 0, 3), bound=(True,)),
    row("b128", "batch_limit", counts=(1,) * 128, bound=(True, True, False)),
    row("b128_rows", "batch_limit rows", counts=(16,) * 128, vocab=33, bound=(False, True)),
    *(row(f"vocab_{n}", "word", counts=(2, 1), vocab=n) for n in (31, 32, 33, 63, 64, 65)),
    row("vocab_2048", "block", counts=(1, 1), vocab=2048),
    row("vocab_2049", "block", counts=(1, 1), vocab=2049),
    row("vocab_128256", "large", counts=(1, 1), vocab=128_256, bound=(True, False)),
    row("b5_prime", "prime", counts=(1, 2, 3, 5, 7), vocab=1009),
    row("b3_all_allowed", "all", put("bits", ..., -1)),
    row("b3_nothing_allowed", "all_masked", put("bits", ..., 0)),
    row("b3_only_the_sign", "sign", put("bits", ..., -(2**31))),
    row("b3_first_word", "one_left", put("bits", np.s_[:, 1:], 0)),
    row("b3_masked_before", "masked", put("logits", np.s_[:, 1::3], -np.inf)),
    row("b2_nan", "nan", put("logits", np.s_[:, ::7], np.nan), counts=(2, 2)),
    row("b2_infinite", "inf", put("logits", np.s_[:, ::5], np.inf), counts=(2, 2)),
    row("b3_fewer_words", "words", vocab=70, words=2),
    row("b3_more_words", "words", vocab=70, words=9),
    row("b3_map", "map", vocab=40, words=9, maps=1),
    row("b3_map_each", "map each", vocab=40, words=9, maps=3),
    row("b3_two_maps", "map fewer", vocab=40, words=9, maps=2),
    row("b3_map_of_some", "map some", vocab=40, words=9, maps=3, bound=(False, True), spare=2),
    row("b3_map_outside", "map outside", put("token_ids", np.s_[:, ::3], 9 * 32),
        vocab=40, words=9, maps=1),
    row("b3_map_extremes", "map extremes",
        put("token_ids", np.s_[:, :4], [-1, -(2**63), 2**63 - 1, 2**32]), vocab=40, words=9,
        maps=1),
    row("b3_fp16", "fp16", cast("logits", "float16")),
    row("b3_bf16", "bf16", _bfloat16),
    row("b3_bf16_map", "bf16 map", _bfloat16, vocab=40, words=9, maps=3),
    row("b3_masks_missing", "edge", put("first", 2, 9)),
    row("b3_first_beyond", "beyond_masks", put("first", 1, 1000)),
    row("b3_first_negative", "negative", put("first", 0, -1)),
    row("b3_ends_behind", "ends", put("ends", ..., [2, 4, 4, 5]), spare=1),
    row("b3_ends_negative", "ends negative", put("ends", 0, -2)),
    row("b3_ends_backwards", "ends backwards", put("ends", ..., [4, 0, 6, 2])),
    row("b129", "beyond_batch", BOUNDS, counts=(1,) * 129),
    row("rows_16385", "beyond_rows", BOUNDS, blank("logits", 16_385, 70)),
    row("vocab_262145", "beyond_vocab", BOUNDS, blank("logits", 1, 262_145)),
    row("masks_16386", "beyond_masks", BOUNDS, blank("bits", 16_386, 3)),
    row("words_8193", "beyond_words", BOUNDS, blank("bits", 2, 8_193)),
    row("no_masks", "below_masks", BOUNDS, blank("bits", 0, 3)),
    row("maps_129", "beyond_maps", BOUNDS, blank("token_ids", 129, 40), vocab=40, maps=1),
    row("map_of_other_columns", "wrong_shape", BOUNDS, blank("token_ids", 1, 39), vocab=40, maps=1),
    row("ends_of_another_batch", "wrong_shape batch", BOUNDS, blank("ends", 3)),
    row("bits_uint32", "wrong_dtype", DTYPE, cast("bits", "uint32")),
    row("first_int64", "wrong_dtype int64", DTYPE, cast("first", "int64")),
    row("map_int32", "wrong_dtype int32", DTYPE, cast("token_ids", "int32"), vocab=40, maps=1),
    row("logits_float64", "wrong_dtype", DTYPE, cast("logits", "float64")),
)  # fmt: skip

SCORE_CASES = (
    *cases(COINS, _keys, _COIN_ROWS),
    *cases(SCORED, _run, _SCORED_ROWS),
)
MASK_CASES = cases(FORBIDDEN, _masked, _MASKED_ROWS)
