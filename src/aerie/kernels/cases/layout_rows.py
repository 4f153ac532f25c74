"""Cases of K10c: node stores and choices turned into ragged rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.cases.draws import cycle
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import Plan, grow, merge_paths, select

KERNEL = "update_node_data"


def _nodes(
    rng: Rng,
    plan: Plan,
    size: Any = 8,
    kind: str = "best",
    merged: Any = 0,
    room: int = 3,
    seq: Any = (17, 0, 1, 300),
) -> Inputs:
    """K10c inputs: a grown store, n-gram paths of `merged` nodes, `size` chosen nodes each.

    `room` is what row_capacity holds beyond (or below) the need.
    """
    store = grow(rng, plan)
    lengths = cycle(merged, plan.batch, "int64")
    counts = merge_paths(rng, store, lengths)
    selected = select(rng, store, counts, cycle(size, plan.batch, "int64"), kind)
    return {
        "cumu_tokens": store.tokens,
        "cumu_deltas": store.depths,
        "prev_indexs": store.prev,
        "node_count": counts,
        "selected": selected,
        "seq_len": cycle(seq, plan.batch, "int64"),
        "row_capacity": int(selected.sum()) + room,
    }


def _twins(inputs: Inputs) -> None:
    """Give two children of request 1's root one token."""
    inputs["cumu_tokens"][1, 2] = inputs["cumu_tokens"][1, 1]


def _chosen_twins(inputs: Inputs) -> None:
    _twins(inputs)
    inputs["selected"][1, :3] = True
    inputs["row_capacity"] += 2


def _orphan(inputs: Inputs) -> None:
    """Choose a grandchild of request 1 without its parent."""
    inputs["selected"][1] = False
    inputs["selected"][1, [0, int(inputs["node_count"][1]) - 1]] = True


_TWO_LAYERS = Plan(3, 4, (1, 3, 1))
_WIDE = Plan(2, 10, (1, 10, 10, 1))

_ROWS = (
    row("b1_root_only", "root_only smallest", plan=Plan(1, 4, (1, 1)), size=1),
    row("b3_root_only_unused_links", "root_only stale", put("prev_indexs", np.s_[:, 1:], 99),
        plan=_TWO_LAYERS, size=1),
    row("b3_only_the_root_stored", "root_only count_1", put("node_count", ..., 1),
        plan=_TWO_LAYERS, size=1),
    row("b3_best_8", "best", plan=_TWO_LAYERS),
    row("b4_ragged_sizes", "best ragged", plan=Plan(4, 8, (1, 8, 8, 1)), size=(1, 64, 13, 33)),
    row("b128_best_16", "best batch_limit", plan=Plan(128, 4, (1, 4, 4, 1)), size=(16, 3, 1, 9)),
    row("b16_k8_best_64", "best default", plan=Plan(16, 8, (1, 8, 8, 8, 1)), size=64),
    row("b2_best_128", "best rows_128", plan=_WIDE, size=128),
    row("b2_every_node", "all capacity_exact", plan=Plan(2, 3, (1, 3, 1), nodes=13), size=13,
        room=0),
    row("b3_closure", "closure gaps", plan=_TWO_LAYERS, size=5, kind="closure"),
    row("b8_closure_deep", "closure gaps deep", plan=Plan(8, 3, (1, 3, 3, 3, 3, 1)), size=(9, 4, 2),
        kind="closure"),
    row("b1_chain_128", "chain depth_127 rows_128", plan=Plan(1, 1, (1,) * 128), size=128),
    row("b3_chain_9", "chain one_choice", plan=Plan(3, 1, (1,) * 9), size=(9, 5, 1)),
    row("b2_star_10", "star first_layer", plan=Plan(2, 10, (1, 1)), size=11),
    row("b2_widths_change", "best width_changes", plan=Plan(2, 5, (1, 5, 1, 4, 1)), size=20),
    row("b3_ties", "best ties", plan=Plan(3, 5, (1, 5, 1), "ties"), size=12),
    row("b2_zero_scores", "p_zero", plan=Plan(2, 4, (1, 4, 1), "zero"), size=9),
    row("b2_certain", "p_one", plan=Plan(2, 4, (1, 3, 2, 1), "ones"), size=9),
    row("b3_merged_path", "ngram", plan=Plan(3, 4, (1, 4, 1)), size=12, merged=3),
    row("b4_merged_some", "ngram ragged_count", plan=Plan(4, 3, (1, 3, 2)), size=40,
        merged=(0, 5, 2, 8)),
    row("b3_merged_closure", "ngram closure", plan=Plan(3, 4, (1, 4, 2)), size=6, merged=(6, 0, 3),
        kind="closure"),
    row("b0", "empty_batch", plan=Plan(0, 4, (1, 1)), room=0),
    row("b0_capacity_room", "empty_batch capacity_room", plan=Plan(0, 4, (1, 1)), room=6),
    row("b3_capacity_exact", "capacity_exact", plan=_TWO_LAYERS, room=0),
    row("b3_capacity_16384", "capacity_limit", setting(row_capacity=16_384), plan=_TWO_LAYERS,
        size=4),
    row("b2_seq_65537", "long_context", plan=Plan(2, 3, (1, 2, 1)), seq=(65_537, 2_000_000)),
    row("b3_seq_0", "seq_0", plan=_TWO_LAYERS, seq=0),
    row("b3_unchosen_twins", "twins_unchosen", _twins, plan=_TWO_LAYERS, size=1),
    row("b2_cousins_share_tokens", "cousins",
        put("cumu_tokens", np.s_[:, 5:13], [1, 2, 3, 4, 1, 2, 3, 4]), plan=Plan(2, 4, (1, 3, 1)),
        size=20),
    row("b3_positions_wrap", "int64_edge", put("cumu_deltas", np.s_[:, 1:], 2**63 - 1),
        plan=_TWO_LAYERS, seq=(1, 2, 3)),
    row("b3_tokens_apart_above_bit_51", "tokens_edge",
        put("cumu_tokens", np.s_[:, 1:5], [5, 5 + 2**51, 5 - 2**62, 5 - 2**63]), plan=_TWO_LAYERS),
    row("b1_nodes_4096", "capacity_nodes", plan=Plan(1, 4, (1, 2, 1), nodes=4096)),
    row("no_root", "refused root", DATA, put("selected", (1, 0), False), plan=_TWO_LAYERS),
    row("nothing_chosen", "refused root empty", DATA, put("selected", 2, False), plan=_TWO_LAYERS),
    row("parent_not_chosen", "refused orphan", DATA, _orphan, plan=_TWO_LAYERS),
    row("node_not_in_use", "refused unused", DATA, put("selected", (0, 17), True),
        plan=_TWO_LAYERS),
    row("first_unused_node_linked", "refused unused edge", DATA, put("selected", (0, 17), True),
        put("prev_indexs", (0, 17), 0), plan=_TWO_LAYERS),
    row("parent_after_child", "refused order", DATA, put("prev_indexs", (1, 1), 2),
        put("selected", (1, np.s_[:3]), True), setting(row_capacity=99), plan=_TWO_LAYERS),
    row("its_own_parent", "refused order self", DATA, put("prev_indexs", (1, 1), 1),
        put("selected", (1, np.s_[:2]), True), setting(row_capacity=99), plan=_TWO_LAYERS),
    row("root_has_parent", "refused root link", DATA, put("prev_indexs", (1, 0), 0),
        plan=_TWO_LAYERS),
    row("duplicate_siblings", "refused twins", DATA, _chosen_twins, plan=_TWO_LAYERS, size=1),
    row("rows_129", "refused rows", BOUNDS, plan=_WIDE, size=(5, 129)),
    row("capacity_one_short", "refused capacity", BOUNDS, plan=_TWO_LAYERS, room=-1),
    row("capacity_0", "refused capacity none", BOUNDS, setting(row_capacity=0), plan=_TWO_LAYERS),
    row("count_0", "refused count", BOUNDS, put("node_count", 1, 0), plan=_TWO_LAYERS),
    row("count_past_nodes", "refused count past", BOUNDS, put("node_count", 2, 25),
        plan=_TWO_LAYERS),
    row("sequence_negative", "refused sequence", BOUNDS, put("seq_len", 0, -1), plan=_TWO_LAYERS),
    row("twins_and_capacity", "refused twins capacity", DATA, _chosen_twins,
        setting(row_capacity=1), plan=_TWO_LAYERS, size=1),
    row("b129", "beyond_batch", BOUNDS, plan=Plan(129, 1, (1, 1)), size=1),
    row("nodes_4097", "beyond_nodes", BOUNDS, plan=Plan(1, 2, (1, 1), nodes=4097)),
    row("capacity_negative", "below_capacity", BOUNDS, setting(row_capacity=-1), plan=_TWO_LAYERS),
    row("capacity_16385", "beyond_capacity", BOUNDS, setting(row_capacity=16_385),
        plan=_TWO_LAYERS),
    row("choice_of_other_nodes", "wrong_shape", BOUNDS, blank("selected", 3, 9), plan=_TWO_LAYERS),
    row("choice_uint8", "wrong_dtype", DTYPE, cast("selected", "uint8"), plan=_TWO_LAYERS),
    row("links_int32", "wrong_dtype int32", DTYPE, cast("prev_indexs", "int32"), plan=_TWO_LAYERS),
)  # fmt: skip

ROW_CASES = cases(KERNEL, _nodes, _ROWS)
