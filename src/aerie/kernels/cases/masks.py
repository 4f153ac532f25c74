"""Cases of R26: masks of some seats, ids by map, rows of nobody, and masks that do not exist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aerie.kernels.cases.draws import draw_logits
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, blank, cast, put
from aerie.kernels.cases.table import Inputs, Rng, cases, row

KERNEL = "forbid_tokens"


def _masks(
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
        "ends": np.cumsum([0, *counts]).astype(np.int32),
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
    inputs["logits"] = (inputs["logits"].view(np.uint32) >> 16).astype(np.uint16)


_ROWS = (
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

MASK_CASES = cases(KERNEL, _masks, _ROWS)
