"""A recorded round as the memory image of the composed top, and what must stand there after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.fpga.sim.images import Array, CallImage, Image, flush, padded_rows
from aerie.fpga.tree_round import TreeRound
from aerie.fpga.tree_runs import grow_unfused
from aerie.kernels.arrays import as_numpy
from aerie.kernels.registry import load

LAYER = "draft_tree_layer_score_index_gen_op"
STATE = "update_cumu_draft_state"


def defined(one: TreeRound, bus: int) -> dict[str, Array]:
    """What the reference makes of the round, kernel by kernel, in the top's arrays."""
    kernels = load("reference", data_errors="status")
    seen: dict[str, list[Any]] = {"scores": [], "nodes": [], "parents": [], "hidden": []}
    order: list[Array] = []

    def call(name: str, **inputs: Any) -> Mapping[str, Any]:
        results = kernels[name](**inputs)._asdict()
        found = {key: as_numpy(value) for key, value in results.items()}
        if name == LAYER:
            # A round of live probabilities holds no subnormal; flushing must change nothing.
            scores = found["curr_layer_scores"]
            assert np.array_equal(flush(scores), scores)
            seen["scores"].append(scores.reshape(-1))
            seen["nodes"].append(found["cache_topk_indices"].reshape(-1))
            seen["parents"].append(found["parent_indices_in_layer"].reshape(-1))
            rows = found["output_hidden"]
            seen["hidden"].append(padded_rows(rows.reshape(-1, rows.shape[2]), bus))
        if name == STATE:
            order[:] = [inputs["sort_scores"].copy()]
        return found

    grown = grow_unfused(one, call)
    n_kept = min(one.verify_num, 1 + sum(one.level_widths) * one.top_k)
    return {
        "node_scores": np.concatenate(seen["scores"]),
        "frontier_nodes": np.concatenate(seen["nodes"]),
        "parent_slots": np.concatenate(seen["parents"]),
        "output_hidden": np.concatenate(seen["hidden"]),
        "G": grown.gains.reshape(-1),
        "sort_scores": np.ascontiguousarray(order[0][:, :n_kept]),
    }


def round_image(one: TreeRound, bus: int) -> CallImage:
    """Inputs of the top and room for its results."""
    wanted = defined(one, bus)
    image = Image()
    hidden = np.concatenate([padded_rows(level.hidden, bus) for level in one.levels])
    image.put("widths", np.array(one.level_widths, np.int32))
    image.put("level_probas", np.concatenate([level.probas.reshape(-1) for level in one.levels]))
    image.put("input_hidden", hidden)
    for name, array in wanted.items():
        image.fresh(name, array.shape, array.dtype)
    image.seal()
    registers = {
        "B": one.batch,
        "D": one.depth,
        "K": one.top_k,
        "verify_num": one.verify_num,
        "row_beats": hidden.shape[1] // (bus // 8),
    }
    registers |= {f"{name}_base": place for name, place in image.places.items()}
    return CallImage(image, registers, wanted)
