"""The NumPy backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import Implementation
from aerie.kernels.numpy_cpu import commit, growth, layout, memory, replay, sampling, verdict

# The operations of an engine's round; the others are called rarely, and come from the base.
KERNELS: dict[str, Implementation] = {
    run.__name__: Implementation(run, check)
    for run, check in (
        (growth.draft_tree_layer_score_index_gen_op, None),
        (growth.update_cumu_draft_state, growth.check_cumu_draft_state),
        (growth.calculate_work_deltas, None),
        (layout.update_node_data, None),
        (verdict.draft_tree_reject_sample, None),
        (sampling.sample_target_tokens, None),
        (commit.update_verify_result, None),
        (memory.compute_kv_indices, None),
        (replay.build_active_slots, None),
    )
}
