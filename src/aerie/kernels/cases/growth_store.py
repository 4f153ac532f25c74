"""Cases of K2: a layer stored in the node store, its links, masks and score order."""

from __future__ import annotations

import numpy as np

from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import Candidates, Plan, best_scores, draw_candidates, grow

KERNEL = "update_cumu_draft_state"


def stored(rng: Rng, plan: Plan, verify: int, kept: int | None = None) -> tuple[Inputs, Candidates]:
    """What K2 and R7 take of the store that `plan` grows, and a layer below its last frontier."""
    store = grow(rng, plan)
    last = np.take_along_axis(store.path, store.frontier, 1)
    layer = draw_candidates(rng, last, plan.top_k, plan.kind)
    best = best_scores(store, verify, plan.compat)
    sort_scores = np.zeros((plan.batch, verify if kept is None else kept), np.float32)
    sort_scores[:, : best.shape[1]] = best
    inputs = {
        "cumu_tokens": store.tokens,
        "cumu_scores": store.scores,
        "cumu_deltas": store.depths,
        "prev_indexs": store.prev,
        "next_indexs": store.next,
        "side_indexs": store.side,
        "sort_scores": sort_scores,
        "topk_tokens": layer.tokens,
        "frontier_indexs": store.frontier,
        "input_tree_mask": store.mask,
        "cumu_count": store.count,
        "verify_num": verify,
        "fed_count": store.fed_count,
    }
    return inputs, layer


def _state(rng: Rng, plan: Plan, verify: int = 16, kept: int | None = None) -> Inputs:
    """K2 inputs: a store and one more layer."""
    inputs, layer = stored(rng, plan, verify, kept)
    return {
        **inputs,
        "curr_layer_scores": layer.scores,
        "sort_layer_scores": layer.sorted_scores,
        "sort_layer_indices": layer.order,
        "compat": plan.compat,
    }


def _cousins(inputs: Inputs) -> None:
    """Give every slot the tokens of slot 0: cousins may share a token, siblings may not."""
    width = inputs["frontier_indexs"].shape[1]
    tokens = inputs["topk_tokens"]
    tokens[:] = np.tile(tokens[:, : tokens.shape[1] // width], (1, width))


def _twins(inputs: Inputs) -> None:
    inputs["topk_tokens"][1, 4] = inputs["topk_tokens"][1, 3]


_SMALL = Plan(3, 3, (1, 2))

# What K2 and R7 are asked.
GROWN_ROWS = (
    row("b1_k8_first_layer", "first_layer", plan=Plan(1, 8)),
    row("b128_w3_k7", "batch_limit", plan=Plan(128, 7, (1, 3)), verify=32),
    row("b2_w10_k10", "candidate_limit", plan=Plan(2, 10, (1, 10)), verify=128),
    row("b3_w7_k10", "not_a_power_of_two", plan=Plan(3, 10, (1, 7)), verify=33),
    row("b2_widths_1_8_3", "width_shrinks", plan=Plan(2, 8, (1, 8, 3)), verify=40),
    row("b2_w8_k5_wider_than_k", "wider_than_k", plan=Plan(2, 5, (1, 5, 8)), verify=30),
    row("b0_w3_k4", "empty_batch", plan=Plan(0, 4, (1, 3))),
    row("b4_w5_k7_ties", "ties", plan=Plan(4, 7, (1, 5), "ties"), verify=30),
    row("b2_w8_k8_equal", "ties all_equal", plan=Plan(2, 8, (1, 8), "equal"), verify=50),
    row("b3_w3_k5_certain", "p_one ties", plan=Plan(3, 5, (1, 3), "ones"), verify=12),
    row("b3_w3_k5_zero", "p_zero ties", plan=Plan(3, 5, (1, 3), "zero"), verify=12),
    row("b3_w4_k4_subnormal", "p_tiny", plan=Plan(3, 4, (1, 4), "tiny"), verify=12),
    row("b3_w3_k8_nan", "p_nan", plan=Plan(3, 8, (1, 3), "nan"), verify=16),
    row("frontier_not_stored", "refused frontier", BOUNDS, put("frontier_indexs", (1, 1), 4),
        plan=_SMALL),
    row("nodes_one_short", "beyond_capacity", BOUNDS, plan=Plan(3, 3, (1, 2), nodes=9)),
    row("columns_one_short", "beyond_mask", BOUNDS, plan=Plan(3, 3, (1, 2), columns=4)),
    row("sort_buffer_one_short", "beyond_sort", BOUNDS, setting(verify_num=17), plan=_SMALL),
    row("verify_129", "beyond_verify", BOUNDS, plan=_SMALL, verify=129),
    row("count_4097", "beyond_count", BOUNDS, setting(cumu_count=4097), plan=_SMALL),
    row("fed_1025", "beyond_fed", BOUNDS, setting(fed_count=1025), plan=_SMALL),
    row("columns_1025", "beyond_columns", BOUNDS, plan=Plan(1, 3, (1, 2), columns=1025)),
    row("nodes_4097", "beyond_nodes", BOUNDS, plan=Plan(1, 2, nodes=4097)),
    row("b129", "beyond_batch", BOUNDS, plan=Plan(129, 2)),
    row("k11", "beyond_top_k", BOUNDS, plan=Plan(1, 11)),
    row("w11_k10", "beyond_width", BOUNDS, plan=Plan(1, 10, (1, 10, 11))),
    row("frontier_of_another_batch", "wrong_shape", BOUNDS, blank("frontier_indexs", 2, 2),
        plan=_SMALL),
    row("mask_float32", "wrong_dtype", DTYPE, cast("input_tree_mask", "float32"), plan=_SMALL),
)  # fmt: skip

_ROWS = (
    *GROWN_ROWS,
    row("b1_k1_smallest", "first_layer one_choice", plan=Plan(1, 1, columns=1), verify=1),
    row("b4_w8_k8_second_layer", "default", plan=Plan(4, 8, (1, 8)), verify=64),
    row("b8_w4_k4_layer15_full", "capacity_exact deep", plan=Plan(8, 4, (1, *[4] * 14), nodes=229),
        verify=64),
    row("b2_w5_k5_third_layer", "not_a_power_of_two", plan=Plan(2, 5, (1, 5, 5)), verify=20),
    row("b3_k1_chain", "one_choice chain deep", plan=Plan(3, 1, (1,) * 9), verify=8),
    row("b2_widths_1_3_8", "width_grows", plan=Plan(2, 8, (1, 3, 8)), verify=40),
    row("b2_widths_1_5_1_5", "width_shrinks width_grows", plan=Plan(2, 5, (1, 5, 1, 5)), verify=24),
    row("b3_w2_k3_verify_1", "root_only", plan=_SMALL, verify=1),
    row("b3_w2_k3_verify_equals_count", "verify_exact", plan=_SMALL, verify=4),
    row("b3_w2_k3_verify_past_all", "verify_room", plan=_SMALL, verify=100),
    row("b3_w2_k3_verify_128", "verify_limit", plan=_SMALL, verify=128),
    row("b2_w3_k3_wide_sort_buffer", "spare_sort", plan=Plan(2, 3, (1, 3)), verify=7, kept=19),
    row("b2_k8_compat_layer1", "compat first_layer", plan=Plan(2, 8, (1,), compat=True)),
    row("b2_w8_k8_compat_layer2", "compat", plan=Plan(2, 8, (1, 8), compat=True), verify=32),
    row("b2_w4_k4_compat_layer6", "compat deep", plan=Plan(2, 4, (1, 4, 4, 4, 4, 4), compat=True),
        verify=64),
    row("b3_w3_k5_compat_ties", "compat ties", plan=Plan(3, 5, (1, 3), "ties", True), verify=20),
    row("b3_w2_k3_nodes_exact", "capacity_exact", plan=Plan(3, 3, (1, 2), nodes=10)),
    row("b1_w1_k1_nodes_4096", "capacity_limit", plan=Plan(1, 1, (1, 1), nodes=4096), verify=3),
    row("b3_w2_k3_columns_exact", "mask_exact", plan=Plan(3, 3, (1, 2), columns=5)),
    row("b1_w2_k3_columns_1024", "mask_limit", plan=Plan(1, 3, (1, 2), columns=1024)),
    row("b2_k4_root_is_fed", "first_layer root_fed", put("input_tree_mask", np.s_[:, 0, 0], True),
        setting(fed_count=1), plan=Plan(2, 4)),
    row("b3_w3_k4_cousins_share_tokens", "cousins", _cousins, plan=Plan(3, 4, (1, 3))),
    row("b3_w2_k3_same_layer_tokens", "tokens_edge",
        put("topk_tokens", np.s_[:, :3], [0, 2**40, -1]), plan=_SMALL),
    row("b3_w2_k3_scores_not_finite", "score_nan score_infinite",
        put("sort_layer_scores", ..., [np.inf, 0.5, -np.inf, -0.0, np.nan, np.nan]),
        put("curr_layer_scores", ..., np.nan), put("sort_scores", np.s_[1, :3], np.nan),
        put("sort_scores", np.s_[2, :3], [-np.inf, np.inf, 0.0]), plan=_SMALL),
    row("b3_w2_k3_scores_not_sorted", "unsorted",
        put("sort_layer_scores", ..., [0.1, 0.6, 0.2, 0.6, 0.9, 0.0]),
        put("sort_scores", np.s_[:, :4], [0.2, 0.9, 0.6, 0.1]), plan=_SMALL),
    row("b3_w2_k3_depth_at_int64", "depth_edge", put("cumu_deltas", np.s_[:, :4], 2**63 - 1),
        plan=_SMALL),
    row("duplicate_siblings", "refused twins", DATA, _twins, plan=Plan(3, 3, (1, 2))),
    row("frontier_node_twice", "refused frontier twice", DATA, put("frontier_indexs", 1, 2),
        plan=_SMALL),
    row("frontier_negative", "refused frontier negative", BOUNDS,
        put("frontier_indexs", (2, 0), -1), plan=_SMALL),
    row("sort_index_past_layer", "refused order", BOUNDS, put("sort_layer_indices", (0, 0), 6),
        plan=_SMALL),
    row("sort_index_negative", "refused order negative", BOUNDS,
        put("sort_layer_indices", (0, 5), -1), plan=_SMALL),
    row("verify_0", "below_verify", BOUNDS, setting(verify_num=0), plan=_SMALL),
    row("sort_buffer_129", "beyond_sort_limit", BOUNDS, plan=_SMALL, kept=129),
    row("count_0", "below_count", BOUNDS, setting(cumu_count=0), plan=_SMALL),
    row("fed_negative", "below_fed", BOUNDS, setting(fed_count=-1), plan=_SMALL),
    row("links_int32", "wrong_dtype int32", DTYPE, cast("prev_indexs", "int32"), plan=_SMALL),
)  # fmt: skip

STORE_CASES = cases(KERNEL, _state, _ROWS)
