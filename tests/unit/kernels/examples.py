"""One small valid call of every kernel: three requests, odd shapes, nothing at a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aerie.kernels.cases import cases_for

Inputs = dict[str, Any]
BATCH = 3

# Rows of the ragged examples: request 0 has three rows, request 1 five, request 2 two.
#   request 1:  0 ── 1 ── 3 ── 4      request 0:  0 ── 1     request 2:  0 ── 1
#                 └─ 2                              └─ 2
QO_INDPTR = np.array([0, 3, 8, 10], dtype=np.int32)
DRAFT_TOKENS = np.array([9, 1, 2, 8, 3, 4, 5, 6, 7, 0], dtype=np.int64)
FIRST_CHILD = np.array([1, -1, -1, 1, 3, -1, 4, -1, 1, -1], dtype=np.int64)
NEXT_SIBLING = np.array([-1, 2, -1, -1, 2, -1, -1, -1, -1, -1], dtype=np.int64)
BITS = np.array([1, 3, 5, 1, 3, 5, 11, 27, 1, 3], dtype=np.uint32)
N_ROWS, VOCABULARY = 10, 11


def ancestor_bits() -> np.ndarray:
    bits = np.zeros((N_ROWS, 4), dtype=np.uint32)
    bits[:, 0] = BITS
    return bits


def slot_table() -> np.ndarray:
    return 100 + np.arange(5 * 20, dtype=np.int32).reshape(5, 20)


def pool_rows() -> np.ndarray:
    return np.array([4, 0, 2], dtype=np.int64)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def layer() -> Inputs:
    generator = np.random.default_rng(1)
    return {
        "topk_probas": generator.random((BATCH, 6)).astype(np.float32),
        "topk_tokens": np.tile(np.arange(6), (BATCH, 1)),
        "last_layer_scores": generator.random((BATCH, 2)).astype(np.float32),
        "input_hidden": generator.random((BATCH * 2, 4)).astype(np.float32),
        "hot_token_id": np.arange(20, dtype=np.int64)[::-1] * 3,
        "cumu_count": 4,
    }


def store() -> Inputs:
    generator = np.random.default_rng(2)
    scores = generator.random((BATCH, 6)).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")
    nodes = {
        name: generator.integers(0, 4, (BATCH, 12))
        for name in ("cumu_tokens", "cumu_deltas", "prev_indexs", "next_indexs", "side_indexs")
    }
    return {
        **nodes,
        "cumu_scores": generator.random((BATCH, 12)).astype(np.float32),
        "sort_scores": -np.sort(-generator.random((BATCH, 7)).astype(np.float32), axis=1),
        "curr_layer_scores": scores,
        "topk_tokens": np.tile(np.arange(50, 56), (BATCH, 1)),
        "sort_layer_scores": np.take_along_axis(scores, order, axis=1),
        "sort_layer_indices": order,
        "frontier_indexs": np.tile([1, 3], (BATCH, 1)),
        "input_tree_mask": generator.random((BATCH, 2, 8)) < 0.5,
        "cumu_count": 4,
        "verify_num": 6,
        "fed_count": 3,
        "compat": False,
    }


def deltas() -> Inputs:
    old = -np.sort(-np.random.default_rng(3).random((BATCH, 4)), axis=1)
    new = -np.sort(-np.random.default_rng(4).random((BATCH, 3)), axis=1)
    scores = np.concatenate([old, new], axis=1).astype(np.float32)
    return {"work_scores": scores, "node_top_k": 3, "verify_num": 5}


def tree_mask() -> Inputs:
    return {
        "req_to_token": slot_table(),
        "req_pool_indices": pool_rows(),
        "seq_len": ints(4, 0, 7),
        "qo_indptr": QO_INDPTR.copy(),
        "ancestor_bits": ancestor_bits(),
        "kv_capacity": 25,
        "mask_capacity": 12,
    }


def probabilities() -> Inputs:
    logits = np.random.default_rng(5).standard_normal((N_ROWS, VOCABULARY)).astype(np.float32)
    return {
        "logits": logits,
        "temperature": np.array([1.0, 0.5, 0.0], dtype=np.float32),
        "qo_indptr": QO_INDPTR.copy(),
    }


def links() -> Inputs:
    return {
        "qo_indptr": QO_INDPTR.copy(),
        "draft_tokens": DRAFT_TOKENS.copy(),
        "first_child_row": FIRST_CHILD.copy(),
        "next_sibling_row": NEXT_SIBLING.copy(),
        "tree_depth": 3,
    }


def coins() -> Inputs:
    rows = np.full((N_ROWS, VOCABULARY), 1 / VOCABULARY, dtype=np.float32)
    return {**links(), "target_probas": rows, "coins": np.full((BATCH, 5), 0.05, np.float32)}


def match() -> Inputs:
    # Each request's own path: 1; 3 then 5 then 6; nothing.
    said = [1, 10, 10, 3, 5, 10, 6, 10, 10, 10]
    return {**links(), "target_tokens": ints(*said)}


def target_tokens() -> Inputs:
    return {
        **probabilities(),
        "positions": ints(4, 5, 5, 0, 1, 1, 2, 3, 7, 8),
        "seed": ints(1, 2, 3),
        "top_k": ints(0, 5, 3),
        "top_p": np.array([1.0, 0.9, 0.5], dtype=np.float32),
        "repetition_penalty": np.array([1.0, 1.5, 1.1], dtype=np.float32),
        "draft_tokens": DRAFT_TOKENS.copy(),
        "ancestor_bits": ancestor_bits(),
        "stop_tokens": np.array([[4, -1], [2, 9], [-1, -1]]),
        "floor_position": ints(6, 2, 0),
    }


def commit() -> Inputs:
    return {
        "accept_index": np.array([[0, 2, -1, -1], [0, 1, 3, 4], [0, -1, -1, -1]]),
        "accept_count": ints(1, 3, 0),
        "bonus_token": ints(10, 10, 10),
        "draft_tokens": DRAFT_TOKENS.copy(),
        "qo_indptr": QO_INDPTR.copy(),
        "seq_len": ints(4, 0, 7),
        "length_limit": ints(90, 90, 90),
        "stop_tokens": np.full((BATCH, 2), -1, dtype=np.int64),
        "req_to_token": slot_table(),
        "req_pool_indices": pool_rows(),
    }


def kv_lists() -> Inputs:
    mask = np.zeros((BATCH, 2, 5), dtype=bool)
    mask[:, 0, :2] = mask[:, 1, 1:3] = True
    return {
        "req_to_token": slot_table(),
        "req_pool_indices": pool_rows(),
        "seq_len": ints(4, 0, 7),
        "tree_mask": mask,
        "fed_slots": np.arange(15, dtype=np.int32).reshape(BATCH, 5),
        "kv_capacity": 40,
    }


def offsets() -> Inputs:
    return {"verify_count": ints(3, 5, 2), "seq_len": ints(4, 0, 7)}


def draft_locations() -> Inputs:
    return {
        "req_to_token": slot_table(),
        "req_pool_indices": pool_rows(),
        "start": ints(4, 0, 7),
        "end": ints(7, 5, 9),
        "out_cache_loc": 500 + np.arange(15, dtype=np.int32).reshape(BATCH, 5),
    }


def pool_locations() -> Inputs:
    return {**draft_locations(), "out_cache_loc": 500 + np.arange(11, dtype=np.int32)}


def node_rows() -> Inputs:
    parents = np.array([[-1, 0, 0, 1, 9], [-1, 0, 0, 1, 3], [-1, 0, 1, 1, 9]], dtype=np.int64)
    return {
        "cumu_tokens": np.arange(15, dtype=np.int64).reshape(BATCH, 5),
        "cumu_deltas": np.array([[0, 1, 1, 2, 9], [0, 1, 1, 2, 3], [0, 1, 2, 2, 9]]),
        "prev_indexs": parents,
        "node_count": ints(4, 5, 4),
        "selected": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]], dtype=bool),
        "seq_len": ints(4, 0, 7),
        "row_capacity": 14,
    }


def replay_rows(n_rows: int, batch: int) -> Inputs:
    return {
        "input_ids": np.arange(1, n_rows + 1),
        "positions": np.arange(11, n_rows + 11),
        "out_cache_loc": np.arange(21, n_rows + 21, dtype=np.int32),
        "hidden": np.arange(n_rows * 2, dtype=np.float32).reshape(n_rows, 2),
        "seq_len": np.arange(31, batch + 31),
        "req_pool_indices": np.arange(1, batch + 1),
    }


def static_rows(n_rows: int, batch: int) -> Inputs:
    return {f"static_{name}": value + 50 for name, value in replay_rows(n_rows, batch).items()}


def draft_replay() -> Inputs:
    return {
        **replay_rows(6, BATCH),
        **static_rows(16, 8),
        "tree_width": 2,
        "buckets": (1, 4, 6),
        "seq_len_fill": 1,
    }


def extend_replay() -> Inputs:
    return {
        **replay_rows(7, BATCH),
        **static_rows(16, 8),
        "extend_len": ints(2, 4, 1),
        "static_extend_len": np.full(8, 60, dtype=np.int64),
        "static_qo_indptr": np.full(9, 70, dtype=np.int32),
        "batch_buckets": (1, 4, 6),
        "row_buckets": (8, 12),
        "seq_len_fill": 1,
    }


def active_slots() -> Inputs:
    return {
        "finished": np.array([False, True, False, False]),
        "seq_len": ints(3, 3, 9, 3),
        "length_limit": ints(9, 9, 9, 9),
        "eos_terminated": np.array([False, False, False, True]),
        "accept_count": ints(1, 2, 3, 4),
        "draft_tokens": np.arange(8, dtype=np.int64).reshape(4, 2),
        "ancestor_bits": np.ones((4, 2, 4), dtype=np.uint32),
    }


def case_of(kernel: str, name: str) -> tuple[str, Callable[[], Inputs]]:
    """A parity case of three requests as an example."""
    return kernel, next(case.build for case in cases_for(kernel) if case.name == name)


EXAMPLES: dict[str, tuple[str, Callable[[], Inputs]]] = {
    "layer": ("draft_tree_layer_score_index_gen_op", layer),
    "store": ("update_cumu_draft_state", store),
    "deltas": ("calculate_work_deltas", deltas),
    "tree_mask": ("fused_tree_mask_operator", tree_mask),
    "probabilities": ("convert_logits_to_probas", probabilities),
    "coins": ("draft_tree_reject_sample", coins),
    "match": ("draft_tree_reject_sample", match),
    "target_tokens": ("sample_target_tokens", target_tokens),
    "commit": ("update_verify_result", commit),
    "kv_lists": ("compute_kv_indices", kv_lists),
    "offsets": ("calculate_verify_kv_qo_ms", offsets),
    "draft_locations": ("assign_draft_cache_locs_operator", draft_locations),
    "pool_locations": ("assign_req_to_token_pool_operator", pool_locations),
    "node_rows": ("update_node_data", node_rows),
    "draft_replay": ("draft_replay_input_operator", draft_replay),
    "extend_replay": ("extend_replay_input_operator", extend_replay),
    "active_slots": ("build_active_slots", active_slots),
    "verify_rows": case_of("place_verify_rows", "b3_ragged"),
    "prompt_rows": case_of("place_prompt_rows", "b3_ragged"),
    "draft_rows": case_of("place_draft_rows", "b3_run_7"),
    "draft_levels": case_of("place_draft_levels", "b3_grows"),
    "draft_paths": case_of("mark_draft_paths", "b3"),
    "draft_children": case_of("best_draft_children", "r3_map"),
    "draft_layer": case_of("grow_draft_layer", "b3_w3_k5_certain"),
    "best_nodes": case_of("choose_best_nodes", "b3_ties"),
    "planned_nodes": case_of("choose_planned_nodes", "b3_one_depth"),
    "noted_nodes": case_of("note_chosen_nodes", "b3_exactly_noted"),
    "moved_slots": case_of("move_kv_slots", "three_requests"),
    "handed_over": case_of("hand_over_verdict", "b3_run_1"),
    "found_path": case_of("find_text_path", "b3_longer_wins_over_later"),
    "merged_path": case_of("merge_text_path", "b3_path_of_127_new"),
    "tossed_coins": case_of("toss_coins", "b3"),
    "scored_tokens": case_of("score_target_tokens", "b3"),
    "near_ties": case_of("find_near_ties", "b3_all_equal"),
    "masked": case_of("forbid_tokens", "b3_map"),
    "weighed_blocks": case_of("weigh_kv_blocks", "b3_block_edges"),
    "bounded_blocks": case_of("bound_kv_blocks", "b3_block_edges"),
    "chosen_blocks": case_of("choose_kv_blocks", "b3_ties"),
    "gathered_blocks": case_of("gather_kv_blocks", "b3_block_edges"),
    "spliced_run": case_of("splice_drafted_run", "b4"),
    "four_bits": case_of("multiply_int4", "r3_bias"),
    "eight_bits": case_of("multiply_fp8", "r3_bias"),
    "eight_bit_rows": case_of("multiply_fp8_rows", "r3_bias"),
    "four_bits_out": case_of("unpack_int4", "n5_plain"),
    "eight_bits_out": case_of("unpack_fp8", "n5_plain"),
    "experts": case_of("multiply_experts", "r3_gated_bias"),
}
