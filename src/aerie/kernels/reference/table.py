"""The reference backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import Implementation
from aerie.kernels.reference import (
    commit,
    experts,
    growth,
    layout,
    masks,
    memory,
    near_ties,
    partial_kv,
    products,
    replay,
    round_choice,
    round_draft,
    round_rows,
    round_text,
    round_verdict,
    scores,
    verdict,
)

KERNELS: dict[str, Implementation] = {
    "draft_tree_layer_score_index_gen_op": Implementation(
        growth.draft_tree_layer_score_index_gen_op
    ),
    "update_cumu_draft_state": Implementation(
        growth.update_cumu_draft_state, growth.check_cumu_draft_state
    ),
    "calculate_work_deltas": Implementation(growth.calculate_work_deltas),
    "fused_tree_mask_operator": Implementation(layout.fused_tree_mask_operator),
    "convert_logits_to_probas": Implementation(verdict.convert_logits_to_probas),
    "draft_tree_reject_sample": Implementation(verdict.draft_tree_reject_sample),
    "sample_target_tokens": Implementation(verdict.sample_target_tokens),
    "update_verify_result": Implementation(commit.update_verify_result),
    "compute_kv_indices": Implementation(memory.compute_kv_indices),
    "calculate_verify_kv_qo_ms": Implementation(layout.calculate_verify_kv_qo_ms),
    "assign_draft_cache_locs_operator": Implementation(
        memory.assign_draft_cache_locs_operator, memory.check_draft_cache_locs
    ),
    "assign_req_to_token_pool_operator": Implementation(
        memory.assign_req_to_token_pool_operator, memory.check_req_to_token_pool
    ),
    "update_node_data": Implementation(layout.update_node_data),
    "draft_replay_input_operator": Implementation(replay.draft_replay_input_operator),
    "extend_replay_input_operator": Implementation(
        replay.extend_replay_input_operator, replay.check_extend_replay_input
    ),
    "build_active_slots": Implementation(replay.build_active_slots),
    "place_verify_rows": Implementation(round_rows.place_verify_rows),
    "place_prompt_rows": Implementation(round_rows.place_prompt_rows),
    "place_draft_rows": Implementation(round_rows.place_draft_rows),
    "place_draft_levels": Implementation(round_rows.place_draft_levels),
    "mark_draft_paths": Implementation(round_draft.mark_draft_paths),
    "best_draft_children": Implementation(round_draft.best_draft_children),
    "grow_draft_layer": Implementation(round_draft.grow_draft_layer, round_draft.check_draft_layer),
    "choose_best_nodes": Implementation(round_choice.choose_best_nodes),
    "choose_planned_nodes": Implementation(round_choice.choose_planned_nodes),
    "note_chosen_nodes": Implementation(round_choice.note_chosen_nodes),
    "move_kv_slots": Implementation(round_verdict.move_kv_slots),
    "hand_over_verdict": Implementation(round_verdict.hand_over_verdict),
    "find_text_path": Implementation(round_text.find_text_path),
    "merge_text_path": Implementation(round_text.merge_text_path),
    "toss_coins": Implementation(scores.toss_coins),
    "score_target_tokens": Implementation(scores.score_target_tokens),
    "find_near_ties": Implementation(near_ties.find_near_ties),
    "forbid_tokens": Implementation(masks.forbid_tokens),
    "weigh_kv_blocks": Implementation(partial_kv.weigh_kv_blocks),
    "bound_kv_blocks": Implementation(partial_kv.bound_kv_blocks),
    "choose_kv_blocks": Implementation(partial_kv.choose_kv_blocks),
    "gather_kv_blocks": Implementation(partial_kv.gather_kv_blocks),
    "splice_drafted_run": Implementation(partial_kv.splice_drafted_run),
    "multiply_int4": Implementation(products.multiply_int4),
    "multiply_fp8": Implementation(products.multiply_fp8),
    "multiply_fp8_rows": Implementation(products.multiply_fp8_rows),
    "unpack_int4": Implementation(products.unpack_int4),
    "unpack_fp8": Implementation(products.unpack_fp8),
    "multiply_experts": Implementation(experts.multiply_experts),
}
