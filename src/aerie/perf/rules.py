"""How many elements each kernel moves through each port, as formulas beside the cards.

A port without a rule is touched once: an input is read whole, an output written whole. A rule
replaces that where a kernel touches less, or an array is updated in place. Names are the card's
axes and scalars, and the counts of `counts.py`, which depend on what the arrays hold: requests
that were taken, rows they have, parents that were really gathered.
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


def _rule(read: str = "0", written: str = "0") -> Rule:
    return Rule(Formula(read), Formula(written))


def _reads(**ports: str) -> dict[str, Rule]:
    return {name: _rule(read=text) for name, text in ports.items()}


_NODES = _rule(written="taken*W*K")
_SPANS = {
    "req_to_token": _rule(written="assigned"),
    # Judged first and written then: a span may be too long to be kept.
    "out_cache_loc": _rule(read="judged + assigned"),
}
_STATIC_ROWS = _rule(written="clean*row_bucket")
_STATIC_REQUESTS = _rule(written="clean*bucket")
_DRAFT_ROWS = _rule(written="bucket*tree_width")

# A weight is read once a level for all rows; fc once a round. `layers` counts passes through the
# attention block, `levels` those through feed-forward and head.
_FUSED_DRAFT = {
    **_reads(
        widths="asked",
        gain_floor="asked",
        req_to_token="R + fed + columns + slots",
        embedding="(R + fed)*H",
        cosines="angles*HD",
        sines="angles*HD",
        norms="4*H",
        # Whole once a level, or the rows that were scored again.
        head="head_rows*H",
        head_q4="levels*N10",
        head_q4_scale="levels*N11",
        sketch_in="levels*N12",
        sketch_in_scale="levels*N13",
        sketch_out="levels*N14",
        sketch_out_scale="levels*N15",
        qkv="layers*N2",
        qkv_scale="layers*N3",
        output="layers*N4",
        output_scale="layers*N5",
        gate_up="levels*N6",
        gate_up_scale="levels*N7",
        down="levels*N8",
        down_scale="levels*N9",
    ),
    "seq_len": _rule(read="2*B"),  # once for the draft, once for the layout
    "req_pool_indices": _rule(read="2*B"),
    "keys": _rule("columns*C", "(R + fed)*C"),
    "values": _rule("columns*C", "(R + fed)*C"),
}

RULES: Mapping[str, Mapping[str, Rule]] = {
    "draft_tree_layer_score_index_gen_op": _reads(
        topk_probas="taken*W*K",
        last_layer_scores="taken*W",
        input_hidden="parents*H",
    ),
    "update_cumu_draft_state": {
        "cumu_tokens": _NODES,
        "cumu_scores": _NODES,
        "cumu_deltas": _rule("taken*W", "taken*W*K"),
        "prev_indexs": _NODES,
        "next_indexs": _rule(written="taken*(W*K + W)"),
        "side_indexs": _NODES,
        "sort_scores": _rule(
            "taken*min(verify_num, cumu_count)", "taken*min(verify_num, cumu_count + W*K)"
        ),
        **_reads(
            curr_layer_scores="taken*W*K",
            sort_layer_scores="taken*W*K",
            input_tree_mask="taken*W*F",
        ),
    },
    "update_node_data": _reads(
        selected="listed*N", cumu_tokens="chosen", prev_indexs="chosen", cumu_deltas="rows"
    ),
    "fused_tree_mask_operator": _reads(req_to_token="slots", ancestor_bits="4*rows"),
    "convert_logits_to_probas": {
        "logits": _rule(read="rows*V"),
        # A request that fails late takes back the rows it wrote.
        "target_probas": _rule(written="(R + rewritten)*V"),
    },
    "draft_tree_reject_sample": _reads(
        draft_tokens="loaded",
        first_child_row="loaded",
        next_sibling_row="loaded",
        target_probas="walked_rows*V",
        coins="walked*(tree_depth + 2)",
        target_tokens="walked_rows",
    ),
    "sample_target_tokens": _reads(
        logits="rows*V",
        positions="rows",
        prompt_counts="read*V",
        output_counts="read*V",
        logit_bias="read*V",
        draft_tokens="loaded",
        ancestor_bits="4*loaded",
        stop_tokens="read*S",
    ),
    "update_verify_result": _reads(
        bonus_token="bonus",
        length_limit="live",
        stop_tokens="live*S",
        draft_tokens="accepted",
        req_to_token="rows",
    ),
    "compute_kv_indices": _reads(req_to_token="prefix", tree_mask="sound*W*F", fed_slots="taken*F"),
    "assign_draft_cache_locs_operator": _SPANS,
    "assign_req_to_token_pool_operator": _SPANS,
    "draft_replay_input_operator": {
        "static_input_ids": _DRAFT_ROWS,
        "static_positions": _DRAFT_ROWS,
        "static_out_cache_loc": _DRAFT_ROWS,
        "static_hidden": _rule(written="bucket*tree_width*H"),
        "static_seq_len": _rule(written="bucket"),
        "static_req_pool_indices": _rule(written="bucket"),
    },
    "extend_replay_input_operator": {
        # Lengths are judged before anything moves, and are a buffer of their own as well.
        "extend_len": _rule(read="B + clean*B"),
        **_reads(
            input_ids="clean*R",
            positions="clean*R",
            out_cache_loc="clean*R",
            hidden="clean*R*H",
            seq_len="clean*B",
            req_pool_indices="clean*B",
        ),
        "static_input_ids": _STATIC_ROWS,
        "static_positions": _STATIC_ROWS,
        "static_out_cache_loc": _STATIC_ROWS,
        "static_hidden": _rule(written="clean*row_bucket*H"),
        "static_extend_len": _STATIC_REQUESTS,
        "static_seq_len": _STATIC_REQUESTS,
        "static_req_pool_indices": _STATIC_REQUESTS,
        "static_qo_indptr": _rule(written="clean*(bucket + 1)"),
    },
    "fused_growth": _reads(
        level_probas="candidates", level_tokens="candidates", req_to_token="slots"
    ),
    "fused_verdict": _reads(
        logits="read*V",
        draft_tokens="loaded",
        first_child_row="loaded",
        next_sibling_row="loaded",
        length_limit="live",
        stop_tokens="live*S",
        req_to_token="rows",
    ),
    "draft_embed_rows": _reads(embedding="R*H"),
    "draft_rotate_store": {
        **_reads(cosines="R*HD", sines="R*HD"),
        "keys": _rule(written="R*C"),
        "values": _rule(written="R*C"),
    },
    "draft_attend": _reads(
        tree_mask="R*n_fed", req_to_token="columns", keys="columns*C", values="columns*C"
    ),
    "fused_draft": _FUSED_DRAFT,
    "build_active_slots": {
        "accept_count": _rule(written="dead"),
        "draft_tokens": _rule(written="dead*T"),
        "ancestor_bits": _rule(written="4*dead*T"),
    },
}
