"""How many elements a kernel moves through each port, as formulas beside the cards.

A port without a rule is touched once: an input is read whole, an output written whole. A rule
replaces that where a kernel touches less, or an array is updated in place. Names are the card's
axes and scalars, and counts, which depend on what the arrays hold: requests that were taken, rows
they have, parents that were really gathered. Here are the kernels of a budget; the ledger of every
kernel and region is held against C-simulation in `tests/unit/perf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aerie.kernels.formula import Formula


@dataclass(frozen=True)
class Rule:
    """Elements read and written through one port of a call."""

    read: Formula
    written: Formula


def rule(read: str = "0", written: str = "0") -> Rule:
    """From formulas as text."""
    return Rule(Formula(read), Formula(written))


def reads(**ports: str) -> dict[str, Rule]:
    """Of ports that are only read, by their names."""
    return {name: rule(read=text) for name, text in ports.items()}


_NODES = rule(written="taken*W*K")

RULES: Mapping[str, Mapping[str, Rule]] = {
    "draft_tree_layer_score_index_gen_op": reads(
        topk_probas="taken*W*K", last_layer_scores="taken*W", input_hidden="parents*H"
    ),
    "update_cumu_draft_state": {
        "cumu_tokens": _NODES,
        "cumu_scores": _NODES,
        "cumu_deltas": rule("taken*W", "taken*W*K"),
        "prev_indexs": _NODES,
        "next_indexs": rule(written="taken*(W*K + W)"),
        "side_indexs": _NODES,
        "sort_scores": rule(
            "taken*min(verify_num, cumu_count)", "taken*min(verify_num, cumu_count + W*K)"
        ),
        **reads(
            curr_layer_scores="taken*W*K",
            sort_layer_scores="taken*W*K",
            input_tree_mask="taken*W*F",
        ),
    },
    "fused_tree_mask_operator": reads(req_to_token="slots", ancestor_bits="4*rows"),
    "convert_logits_to_probas": {
        "logits": rule(read="rows*V"),
        # A request that fails late takes back the rows it wrote.
        "target_probas": rule(written="(R + rewritten)*V"),
    },
    "draft_tree_reject_sample": reads(
        draft_tokens="loaded",
        first_child_row="loaded",
        next_sibling_row="loaded",
        target_probas="walked_rows*V",
        coins="walked*(tree_depth + 2)",
        target_tokens="walked_rows",
    ),
    "update_verify_result": reads(
        bonus_token="bonus",
        length_limit="live",
        stop_tokens="live*S",
        draft_tokens="accepted",
        req_to_token="rows",
    ),
}
