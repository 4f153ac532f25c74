"""Cases of the draft inside a round: R5 bits, R6 logits of every kind, R7 layers that K2 knows."""

from __future__ import annotations

import numpy as np

from aerie.kernels.cases.draws import draw_logits, in_dtype, rows_of_hidden
from aerie.kernels.cases.growth_store import GROWN_ROWS, stored
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import Plan

PATHS, CHILDREN, LAYER = "mark_draft_paths", "best_draft_children", "grow_draft_layer"


def _paths(
    rng: Rng,
    batch: int,
    width: int = 4,
    n_nodes: int = 3,
    top_k: int = 3,
    fed: int = 5,
    first_id: int = 20,
) -> Inputs:
    """R5 inputs: children of random frontier slots."""
    ids = first_id + rng.integers(0, width * top_k, (batch, n_nodes))
    return {
        "frontier_bits": rng.integers(-(2**31), 2**31, (batch, width, 4)).astype(np.int32),
        "node_ids": ids,
        "first_id": first_id,
        "top_k": top_k,
        "fed_count": fed,
    }


_PATH_ROWS = (
    row("b3", "mixed", batch=3),
    row("b1_smallest", "smallest", batch=1, width=1, n_nodes=1, top_k=1, fed=0, first_id=1),
    row("b1_first_layer", "first_layer", batch=1, width=1, n_nodes=8, top_k=8, fed=0, first_id=1),
    row("b0", "empty_batch", batch=0),
    row("b128", "batch_limit", batch=128),
    row("b128_wide", "batch_limit candidate_limit", batch=128, width=10, n_nodes=10, top_k=10),
    *(row(f"b3_fed_{fed}", f"word fed_{fed}", batch=3, fed=fed)
      for fed in (0, 1, 29, 30, 31, 32, 61, 63, 64, 93, 95, 96, 124)),
    row("b3_last_bit", "edge", batch=3, fed=125),
    row("b2_128_fed", "verify_limit", batch=2, n_nodes=8, fed=120),
    row("b2_refused", "refused", put("node_ids", 1, -1), batch=2),
    row("b2_past_the_layer", "past", put("node_ids", (0, 1), 4000), batch=2),
    row("b5_prime", "prime", batch=5, width=7, n_nodes=5, top_k=7),
    row("b2_late_layer", "count_limit", batch=2, first_id=4096),
    row("b2_nobody_seen", "empty_bits", put("frontier_bits", ..., 0), batch=2),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("w11", "beyond_width", BOUNDS, batch=2, width=11),
    row("n11", "beyond_nodes", BOUNDS, batch=2, n_nodes=11, width=10),
    row("fed_126_and_3", "beyond_bits", BOUNDS, batch=2, fed=126),
    row("fed_129", "beyond_fed", BOUNDS, batch=2, fed=129),
    row("k11", "beyond_top_k", BOUNDS, setting(top_k=11), batch=2),
    row("first_4097", "beyond_count", BOUNDS, batch=2, first_id=4097),
    row("first_0", "below_count", BOUNDS, setting(first_id=0), batch=2),
    row("bits_of_two_words", "wrong_shape", BOUNDS, blank("frontier_bits", 2, 4, 2), batch=2),
    row("ids_of_another_batch", "wrong_shape batch", BOUNDS, blank("node_ids", 3, 3), batch=2),
    row("bits_uint32", "wrong_dtype", DTYPE, cast("frontier_bits", "uint32"), batch=2),
    row("ids_int32", "wrong_dtype int32", DTYPE, cast("node_ids", "int32"), batch=2),
)  # fmt: skip


def _logits(
    rng: Rng,
    shape: tuple[int, int] = (3, 300),
    top_k: int = 4,
    kind: str = "usual",
    dtype: str = "float32",
    mapped: bool = False,
) -> Inputs:
    """R6 inputs: logits of a kind as K5's are drawn."""
    drawn = draw_logits(rng, shape, kind)
    if dtype == "float16":
        drawn = np.clip(drawn, -6e4, 6e4)
    inputs: Inputs = {"logits": in_dtype(drawn, dtype), "node_top_k": top_k}
    if mapped:
        inputs["hot_token_id"] = np.sort(rng.permutation(4 * shape[1])[: shape[1]])
    return inputs


_ZEROS = put("logits", np.s_[:, :6], [0.0, -0.0, 0.0, -0.0, 0.0, -0.0])
_CHILD_ROWS = (
    row("r3", "mixed"),
    row("r1_smallest", "smallest vocab_1", shape=(1, 1), top_k=1),
    row("r1_k10", "one", shape=(1, 300), top_k=10),
    row("r3_all_of_the_vocabulary", "full", shape=(3, 7), top_k=7),
    row("r0", "empty_batch", shape=(0, 300)),
    row("r128", "batch_limit", shape=(128, 40)),
    row("r1280", "batch_limit rows", shape=(1280, 10), top_k=3),
    row("r2_vocab_2048", "block", shape=(2, 2048)),
    row("r2_vocab_2049", "block", shape=(2, 2049)),
    row("r2_vocab_4097", "block", shape=(2, 4097), top_k=10),
    row("r1_vocab_32000", "large", shape=(1, 32_000), top_k=8),
    row("r5_prime", "prime", shape=(5, 1009), top_k=7),
    row("r3_ties", "ties", kind="ties", top_k=10),
    row("r3_equal", "ties all_equal", kind="equal", top_k=10),
    row("r3_both_zeros", "ties zeros",
        put("logits", ..., -9.0), _ZEROS, top_k=6),
    row("r3_masked", "masked", kind="masked"),
    row("r3_one_left", "masked one_left", kind="one_left"),
    row("r3_two_left_at_the_end", "masked two_left", put("logits", np.s_[:, 298], 0.5),
        kind="one_left"),
    row("r3_subnormal", "subnormal", kind="subnormal"),
    row("r3_far_apart", "far_apart", kind="far_apart"),
    row("r3_huge", "huge", kind="huge"),
    row("r3_one_row_of_nan", "nan", put("logits", 1, np.nan)),
    row("r3_some_nan", "nan mixed", put("logits", np.s_[:, ::7], np.nan)),
    row("r3_infinite", "inf", put("logits", (2, 5), np.inf)),
    row("r3_nothing_possible", "all_masked", put("logits", 0, -np.inf)),
    row("r3_fp16", "fp16", dtype="float16"),
    row("r3_bf16", "bf16", dtype="bfloat16"),
    row("r3_bf16_ties", "bf16 ties", dtype="bfloat16", kind="ties", top_k=9),
    row("r3_map", "map", mapped=True),
    row("r3_map_ties", "map ties", mapped=True, kind="ties"),
    row("r3_map_bf16", "map bf16", mapped=True, dtype="bfloat16"),
    row("rows_16385", "beyond_rows", BOUNDS, shape=(16_385, 2), top_k=1),
    row("vocab_262145", "beyond_vocab", BOUNDS, blank("logits", 1, 262_145)),
    row("k0", "below_top_k", BOUNDS, setting(node_top_k=0)),
    row("k11", "beyond_top_k", BOUNDS, setting(node_top_k=11)),
    row("k_past_the_vocabulary", "beyond_tokens", BOUNDS, shape=(2, 3)),
    row("map_of_other_tokens", "wrong_shape", BOUNDS, blank("hot_token_id", 299), mapped=True),
    row("logits_float64", "wrong_dtype", DTYPE, cast("logits", "float64")),
    row("map_int32", "wrong_dtype int32", DTYPE, cast("hot_token_id", "int32"), mapped=True),
)  # fmt: skip


def _layer(
    rng: Rng,
    plan: Plan,
    verify: int = 16,
    weigh: bool = True,
    hidden: tuple[int, str] = (8, "float32"),
) -> Inputs:
    """R7 inputs: a store and the children of its last frontier."""
    inputs, layer = stored(rng, plan, verify)
    return {
        **inputs,
        "topk_probas": layer.probas,
        "last_layer_scores": layer.last,
        "input_hidden": rows_of_hidden(rng, (layer.last.size, hidden[0]), hidden[1]),
        "weigh": weigh,
    }


_SMALL = Plan(3, 3, (1, 2))
_LAYER_ROWS = (
    *GROWN_ROWS,
    row("b1_k1_smallest", "smallest one_choice", plan=Plan(1, 1, columns=1), verify=1),
    row("b4_w8_k8", "default", plan=Plan(4, 8, (1, 8)), verify=64),
    row("b4_w8_k8_not_weighed", "not_weighed", plan=Plan(4, 8, (1, 8)), verify=64, weigh=False),
    row("b128_not_weighed", "batch_limit not_weighed", plan=Plan(128, 2, (1, 2)), weigh=False),
    row("b3_k1_chain", "chain deep", plan=Plan(3, 1, (1,) * 9), verify=8),
    row("b0_not_weighed", "empty_batch not_weighed", plan=Plan(0, 4, (1, 3)), weigh=False),
    row("b3_verify_1", "root_only", plan=_SMALL, verify=1),
    row("b3_verify_exact", "verify_exact", plan=_SMALL, verify=4),
    row("b3_verify_128", "verify_limit", plan=_SMALL, verify=128),
    row("b3_nodes_exact", "capacity_exact", plan=Plan(3, 3, (1, 2), nodes=10)),
    row("b3_columns_exact", "mask_exact", plan=Plan(3, 3, (1, 2), columns=5)),
    row("b3_no_hidden", "hidden_0", plan=_SMALL, hidden=(0, "float32")),
    row("b3_h600_fp16", "fp16", plan=_SMALL, hidden=(600, "float16")),
    row("b3_h65_bf16", "bf16", plan=_SMALL, hidden=(65, "bfloat16")),
    row("duplicate_siblings", "refused twins", DATA,
        lambda inputs: put("topk_tokens", (1, 4), inputs["topk_tokens"][1, 3])(inputs),
        plan=_SMALL),
    row("frontier_node_twice", "refused twice", DATA, put("frontier_indexs", 1, 2), plan=_SMALL),
    row("refused_above", "refused negative", BOUNDS, put("frontier_indexs", 2, -1), plan=_SMALL),
    row("refused_not_weighed", "refused not_weighed", BOUNDS, put("frontier_indexs", (0, 0), 99),
        plan=_SMALL, weigh=False),
    row("sort_buffer_129", "beyond_sort_limit", BOUNDS, blank("sort_scores", 3, 129), plan=_SMALL),
    row("hidden_8193", "beyond_hidden", BOUNDS, plan=Plan(1, 2), hidden=(8193, "float16")),
)  # fmt: skip

DRAFT_CASES = (
    *cases(PATHS, _paths, _PATH_ROWS),
    *cases(CHILDREN, _logits, _CHILD_ROWS),
    *cases(LAYER, _layer, _LAYER_ROWS),
)
