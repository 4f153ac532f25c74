"""The NumPy backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import Implementation
from aerie.kernels.numpy_cpu import (
    commit,
    growth,
    layout,
    masks,
    memory,
    near_ties,
    partial_kv,
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

# The operations of an engine's round; the others are called rarely, and come from the base.
KERNELS: dict[str, Implementation] = {
    run.__name__: Implementation(run, check)
    for run, check in (
        (growth.draft_tree_layer_score_index_gen_op, None),
        (growth.update_cumu_draft_state, growth.check_cumu_draft_state),
        (growth.calculate_work_deltas, None),
        (layout.update_node_data, None),
        (layout.fused_tree_mask_operator, None),
        (verdict.draft_tree_reject_sample, None),
        (sampling.sample_target_tokens, None),
        (commit.update_verify_result, None),
        (memory.compute_kv_indices, None),
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
        (masks.forbid_tokens, None),
        (partial_kv.weigh_kv_blocks, None),
        (partial_kv.bound_kv_blocks, None),
        (partial_kv.choose_kv_blocks, None),
        (partial_kv.gather_kv_blocks, None),
        (partial_kv.splice_drafted_run, None),
    )
}
