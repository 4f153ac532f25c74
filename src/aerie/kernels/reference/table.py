"""The reference backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import Implementation
from aerie.kernels.reference import commit, growth, layout, memory, replay, verdict

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
}
