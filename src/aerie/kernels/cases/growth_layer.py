"""Cases of K1: the scores, order and hidden rows of one layer."""

from __future__ import annotations

import numpy as np

from aerie.kernels.cases.draws import rows_of_hidden
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import VOCAB, draw_candidates

KERNEL = "draft_tree_layer_score_index_gen_op"


def _layer(
    rng: Rng,
    shape: tuple[int, int, int],
    kind: str = "usual",
    hidden: tuple[int, str] = (16, "float32"),
    count: int = 1,
    draft_vocab: int | None = None,
) -> Inputs:
    """K1 inputs of `shape` (batch, width, top_k); `hidden` is its size and dtype."""
    batch, width, top_k = shape
    last = np.sort(rng.random((batch, width), dtype=np.float32), 1)[:, ::-1].copy()
    if kind in ("ties", "equal", "ones"):
        last[:] = 1.0 if width == 1 else 0.5
    if kind == "tiny":
        last *= np.float32(1e-18)
    layer = draw_candidates(rng, last, top_k, kind)
    inputs = {
        "topk_probas": layer.probas,
        "topk_tokens": layer.tokens,
        "last_layer_scores": last,
        "input_hidden": rows_of_hidden(rng, (batch * width, hidden[0]), hidden[1]),
        "cumu_count": count,
    }
    if draft_vocab:
        inputs["topk_tokens"] = layer.tokens % draft_vocab
        inputs["hot_token_id"] = np.sort(rng.permutation(VOCAB)[:draft_vocab])
    return inputs


# Zero times infinity is NaN, and so is NaN times anything: behind every number, -inf included.
_NOT_FINITE = np.array([[np.nan, 1, 0.5], [np.inf, -np.inf, 0.25], [np.nan, -1, np.nan]])

_ROWS = (
    row("b1_w1_k8_first_layer", "first_layer", shape=(1, 1, 8)),
    row("b1_w1_k1", "smallest", shape=(1, 1, 1)),
    row("b128_w3_k7", "batch_limit", shape=(128, 3, 7), count=8),
    row("b128_w10_k10_h8", "batch_limit candidate_limit", shape=(128, 10, 10),
        hidden=(8, "float32")),
    row("b4_w8_k8", "default", shape=(4, 8, 8), count=9),
    row("b3_w5_k5", "not_a_power_of_two", shape=(3, 5, 5)),
    row("b3_w7_k3", "wider_than_k", shape=(3, 7, 3)),
    row("b2_w10_k1", "wider_than_k one_choice", shape=(2, 10, 1)),
    row("b2_w1_k10", "first_layer", shape=(2, 1, 10)),
    row("b5_w7_k10", "not_a_power_of_two", shape=(5, 7, 10), count=400),
    row("b2_w3_k1_count4096", "count_limit", shape=(2, 3, 1), count=4096),
    row("b0_w3_k4", "empty_batch", shape=(0, 3, 4)),
    row("b6_w5_k7_ties", "ties", shape=(6, 5, 7), kind="ties"),
    row("b128_w7_k5_ties", "ties batch_limit", shape=(128, 7, 5), kind="ties"),
    row("b3_w10_k10_equal", "ties all_equal", shape=(3, 10, 10), kind="equal"),
    row("b4_w3_k5_certain", "p_one", shape=(4, 3, 5), kind="ones"),
    row("b4_w3_k8_zero", "p_zero", shape=(4, 3, 8), kind="zero"),
    row("b4_w5_k8_nan", "p_nan", shape=(4, 5, 8), kind="nan"),
    row("b2_w3_k3_all_nan", "p_nan p_zero", shape=(2, 3, 3), kind="all_nan"),
    row("b4_w3_k10_over_one", "p_over_one", shape=(4, 3, 10), kind="over"),
    row("b4_w5_k3_negative", "p_negative", shape=(4, 5, 3), kind="negative"),
    row("b3_w3_k5_infinite", "p_infinite", shape=(3, 3, 5), kind="infinite"),
    row("b3_w4_k4_subnormal", "p_tiny", shape=(3, 4, 4), kind="tiny"),
    row("b2_w8_k8_parents_tie", "ties", put("last_layer_scores", ..., 0.25), shape=(2, 8, 8)),
    row("b3_w3_k4_parents_not_finite", "score_nan score_infinite",
        put("last_layer_scores", ..., _NOT_FINITE), put("topk_probas", np.s_[:, ::3], 0.0),
        shape=(3, 3, 4)),
    row("b3_w2_k6_no_hidden", "hidden_0", shape=(3, 2, 6), hidden=(0, "float32")),
    row("b3_w2_k6_h1_fp16", "hidden_1 fp16", shape=(3, 2, 6), hidden=(1, "float16")),
    row("b5_w3_k4_h64_fp16", "hidden_64 fp16", shape=(5, 3, 4), hidden=(64, "float16")),
    row("b5_w3_k4_h65_bf16", "hidden_65 bf16", shape=(5, 3, 4), hidden=(65, "bfloat16")),
    row("b2_w4_k4_h4096_bf16", "hidden_4096 bf16", shape=(2, 4, 4), hidden=(4096, "bfloat16")),
    row("b1_w8_k8_h4096", "hidden_4096", shape=(1, 8, 8), hidden=(4096, "float32")),
    row("b1_w2_k2_h4097_fp16", "hidden_4097 fp16", shape=(1, 2, 2), hidden=(4097, "float16")),
    row("b1_w3_k8_h8192_fp16", "hidden_limit fp16", shape=(1, 3, 8), hidden=(8192, "float16")),
    row("b2_w3_k3_hidden_inf", "hidden_inf", put("input_hidden", (1, 3), np.inf), shape=(2, 3, 3)),
    row("b4_w5_k5_map", "map", shape=(4, 5, 5), draft_vocab=512),
    row("b2_w2_k3_map_exact", "map map_edge", put("topk_tokens", (1, 2), 6), shape=(2, 2, 3),
        draft_vocab=7),
    row("b128_w2_k8_map", "map batch_limit", shape=(128, 2, 8), draft_vocab=4096),
    row("b0_w2_k3_repeating_map", "map empty_batch", put("hot_token_id", 1, 0), shape=(0, 2, 3),
        draft_vocab=50),
    row("token_past_map", "map refused", BOUNDS, put("topk_tokens", (2, 3), 512), shape=(4, 3, 3),
        draft_vocab=512),
    row("token_negative_with_map", "map refused negative", BOUNDS, put("topk_tokens", (1, 0), -1),
        shape=(3, 3, 3), draft_vocab=512),
    row("map_not_injective", "map refused repeat", DATA,
        lambda inputs: put("hot_token_id", 9, inputs["hot_token_id"][400])(inputs),
        shape=(3, 3, 4), draft_vocab=512),
    row("b129", "beyond_batch", BOUNDS, shape=(129, 1, 2)),
    row("w10_k11", "beyond_top_k", BOUNDS, shape=(2, 10, 11)),
    row("w11_k1", "beyond_width", BOUNDS, shape=(2, 11, 1)),
    row("count_0", "below_count", BOUNDS, setting(cumu_count=0), shape=(2, 3, 3)),
    row("count_4097", "beyond_count", BOUNDS, setting(cumu_count=4097), shape=(2, 3, 3)),
    row("hidden_8193", "beyond_hidden", BOUNDS, shape=(1, 1, 2), hidden=(8193, "float16")),
    row("map_too_long", "beyond_draft_vocab", BOUNDS, blank("hot_token_id", 2**18 + 1),
        shape=(1, 1, 2), draft_vocab=9),
    row("hidden_rows_missing", "wrong_shape", BOUNDS, blank("input_hidden", 5, 16),
        shape=(2, 3, 3)),
    row("tokens_of_another_layer", "wrong_shape", BOUNDS, blank("topk_tokens", 2, 12),
        shape=(2, 3, 3)),
    row("probas_float64", "wrong_dtype", DTYPE, cast("topk_probas", "float64"), shape=(2, 3, 3)),
    row("tokens_int32", "wrong_dtype int32", DTYPE, cast("topk_tokens", "int32"), shape=(2, 3, 3)),
)  # fmt: skip

LAYER_CASES = cases(KERNEL, _layer, _ROWS)
