"""The PyTorch backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import Implementation
from aerie.kernels.pytorch import (
    commit,
    growth,
    layout,
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
    sampling,
    scores,
    verdict,
)

KERNELS: dict[str, Implementation] = {
    run.__name__: Implementation(run, check)
    for run, check in (
        (growth.draft_tree_layer_score_index_gen_op, None),
        (growth.update_cumu_draft_state, growth.check_cumu_draft_state),
        (growth.calculate_work_deltas, None),
        (layout.fused_tree_mask_operator, None),
        (verdict.convert_logits_to_probas, None),
        (verdict.draft_tree_reject_sample, None),
        (sampling.sample_target_tokens, None),
        (commit.update_verify_result, None),
        (memory.compute_kv_indices, None),
        (layout.calculate_verify_kv_qo_ms, None),
        (memory.assign_draft_cache_locs_operator, memory.check_draft_cache_locs),
        (memory.assign_req_to_token_pool_operator, memory.check_req_to_token_pool),
        (layout.update_node_data, None),
        (replay.draft_replay_input_operator, None),
        (replay.extend_replay_input_operator, replay.check_extend_replay_input),
        (replay.build_active_slots, None),
        (round_rows.place_verify_rows, None),
        (round_rows.place_prompt_rows, None),
        (round_rows.place_draft_rows, None),
        (round_rows.place_draft_levels, None),
        (round_draft.mark_draft_paths, None),
        (round_draft.best_draft_children, None),
        (round_draft.grow_draft_layer, round_draft.check_draft_layer),
        (round_choice.choose_best_nodes, None),
        (round_choice.choose_planned_nodes, None),
        (round_choice.note_chosen_nodes, None),
        (round_verdict.move_kv_slots, None),
        (round_verdict.hand_over_verdict, None),
        (round_text.find_text_path, None),
        (round_text.merge_text_path, None),
        (scores.toss_coins, None),
        (scores.score_target_tokens, None),
        (near_ties.find_near_ties, None),
        (partial_kv.weigh_kv_blocks, None),
        (partial_kv.bound_kv_blocks, None),
        (partial_kv.choose_kv_blocks, None),
        (partial_kv.gather_kv_blocks, None),
        (partial_kv.splice_drafted_run, None),
        (products.multiply_int4, None),
        (products.multiply_fp8, None),
    )
}
