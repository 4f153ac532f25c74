"""The Triton backend's kernels by name; what is missing comes from the PyTorch backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerie.kernels.implementation import Implementation
from aerie.kernels.triton_gpu import (
    commit,
    growth,
    layout_rows,
    replay,
    sampling,
    slots,
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
    )
}
