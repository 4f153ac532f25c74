"""The NumPy backend's kernels by name, and how it takes tensors in."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.errors import UsageError
from aerie.kernels.implementation import Implementation
from aerie.kernels.numpy_cpu import (
    commit,
    growth,
    layout,
    memory,
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
    )
}


def adopt(array: Any, device: str, is_written: bool) -> NDArray[Any]:
    """Take NumPy arrays as they are and CPU tensors as views; refuse everything else."""
    if type(array) is np.ndarray:
        return array
    try:
        return array.numpy()
    except (AttributeError, TypeError, RuntimeError):
        return _adopt_slowly(array, device)


def _adopt_slowly(array: Any, device: str) -> NDArray[Any]:
    """What `Tensor.numpy` does not take: bfloat16, and tensors that ask for gradients."""
    if isinstance(array, np.ndarray):
        return array
    if getattr(getattr(array, "device", None), "type", None) != "cpu":
        raise UsageError(f"backend numpy takes NumPy arrays and CPU tensors, got {type(array)}")
    if str(array.dtype) == "torch.bfloat16":
        # NumPy has no bfloat16: its bit patterns travel as uint16. The tensor proves that torch
        # is loaded, so this module need not import it.
        array = array.view(sys.modules["torch"].uint16)
    return np.asarray(array.detach().numpy())
