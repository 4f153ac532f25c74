"""The Triton backend's kernels by name; what is missing comes from the PyTorch backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aerie.kernels.implementation import implementations_in
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


# Calls beyond these go to PyTorch. The map's injectivity takes a sort of the whole map, and the
# engine maps its tokens before.
COVERS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "draft_tree_layer_score_index_gen_op": _without("hot_token_id"),
    "compute_kv_indices": _without("tree_mask", "fed_slots"),
    "draft_tree_reject_sample": _without("coins", "target_probas"),
    "multiply_int4": packed.covers_int4,
    "multiply_fp8": packed_floats.covers_fp8,
    "unpack_int4": unpack.covers,
    "unpack_fp8": unpack.covers,
    "multiply_experts": experts.covers_experts,
}
CHECKED_INSIDE = ("grow_draft_layer",)

_OWN = implementations_in(
    commit, draft_top, experts, fp8_rows, growth, growth_layer, layout_rows, masks, near_ties,
    packed, packed_floats, partial_kv, replay, round_forest, round_levels, round_rows,
    round_text, round_verdict, sampling, scores, slots, unpack, verdict, walk,
)  # fmt: skip

KERNELS = {
    name: replace(own, covers=COVERS.get(name), checks_inside=name in CHECKED_INSIDE)
    for name, own in _OWN.items()
}
