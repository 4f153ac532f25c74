"""The small steps of a captured round in Triton, by the names `speculation/round_ops.py` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aerie.kernels.triton_gpu.draft_top import draft_top
from aerie.kernels.triton_gpu.growth_layer import (
    Frontier,
    GrownLayer,
    LayerCounts,
    NodeStore,
    grow_layer,
    layer_scratch,
)
from aerie.kernels.triton_gpu.round_forest import choose_planned, note_chosen
from aerie.kernels.triton_gpu.round_rows import draft_places, next_bits, verify_arrays
from aerie.kernels.triton_gpu.round_verdict import choose_best, hand_over, move_slots

OPS: dict[str, Callable[..., Any]] = {
    "verify_arrays": verify_arrays,
    "hand_over": hand_over,
    "move_slots": move_slots,
    "choose_best": choose_best,
    "choose_planned": choose_planned,
    "note_chosen": note_chosen,
    "draft_places": draft_places,
    "next_bits": next_bits,
}


def layer_grower(device: str) -> Callable[[Any, Any, Any, Any], GrownLayer]:
    """K1, K2 and K3 of a layer as one launch; the scratch is shared by all layers."""
    scratch = layer_scratch(torch.device(device))

    def grow(store: Any, frontier: Any, children: tuple[Tensor, Tensor], counts: Any) -> GrownLayer:
        return grow_layer(
            NodeStore(**store.arrays, sort_scores=store.sort_scores),
            Frontier(*children, frontier.scores, frontier.hidden, frontier.ids, frontier.mask),
            LayerCounts(counts.cumu_count, counts.fed_count, counts.verify_num),
            scratch,
        )

    return grow


def best_children(token_map: Tensor | None) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    """Softmax and top k over the draft vocabulary, streamed, as target ids."""

    def best(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return draft_top(logits, k, token_map)

    return best
