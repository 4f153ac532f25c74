"""The Triton backend's kernels by name; what is missing comes from the PyTorch backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerie.kernels.implementation import Implementation
from aerie.kernels.triton_gpu import (
    commit,
    draft_top,
    experts,
    fp8_rows,
    growth,
    growth_layer,
    layout_rows,
    masks,
    near_ties,
    packed,
    packed_floats,
    partial_kv,
    replay,
    round_forest,
    round_levels,
    round_rows,
    round_text,
    round_verdict,
    sampling,
    scores,
    slots,
    unpack,
    verdict,
    walk,
)


def _without(*names: str) -> Any:
    """Covers calls that pass none of these optional inputs."""

    def covers(inputs: Mapping[str, Any]) -> bool:
        return not any(name in inputs for name in names)

    return covers


KERNELS: dict[str, Implementation] = {
    run.__name__: Implementation(run, check, covers)
    for run, check, covers in (
        # The map's injectivity takes a sort of the whole map, and the engine maps its tokens
        # before: PyTorch has it.
        (growth.draft_tree_layer_score_index_gen_op, None, _without("hot_token_id")),
        (growth.update_cumu_draft_state, growth.check_cumu_draft_state, None),
        (growth.calculate_work_deltas, None, None),
        (layout_rows.update_node_data, None, None),
        (slots.fused_tree_mask_operator, None, None),
        (slots.compute_kv_indices, None, _without("tree_mask", "fed_slots")),
        (verdict.convert_logits_to_probas, None, None),
        (commit.update_verify_result, None, None),
        (replay.build_active_slots, None, None),
        (sampling.sample_target_tokens, None, None),
        (walk.draft_tree_reject_sample, None, _without("coins", "target_probas")),
        (round_rows.place_verify_rows, None, None),
        (round_rows.place_prompt_rows, None, None),
        (round_levels.place_draft_rows, None, None),
        (round_levels.place_draft_levels, None, None),
        (round_levels.mark_draft_paths, None, None),
        (draft_top.best_draft_children, None, None),
        (round_verdict.choose_best_nodes, None, None),
        (round_forest.choose_planned_nodes, None, None),
        (round_forest.note_chosen_nodes, None, None),
        (round_verdict.move_kv_slots, None, None),
        (round_verdict.hand_over_verdict, None, None),
        (round_text.find_text_path, None, None),
        (round_text.merge_text_path, None, None),
        (scores.toss_coins, None, None),
        (scores.score_target_tokens, None, None),
        (near_ties.find_near_ties, None, None),
        (masks.forbid_tokens, None, None),
        (partial_kv.weigh_kv_blocks, None, None),
        (partial_kv.bound_kv_blocks, None, None),
        (partial_kv.gather_kv_blocks, None, None),
        (packed.multiply_int4, None, packed.covers_int4),
        (packed_floats.multiply_fp8, None, packed_floats.covers_fp8),
        (fp8_rows.multiply_fp8_rows, None, None),
        (unpack.unpack_int4, None, unpack.covers),
        (unpack.unpack_fp8, None, unpack.covers),
        (experts.multiply_experts, None, experts.covers_experts),
    )
}
KERNELS["grow_draft_layer"] = Implementation(
    growth_layer.grow_draft_layer, growth_layer.check_draft_layer, checks_inside=True
)
