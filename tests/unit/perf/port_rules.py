"""How many elements the kernels and regions move that no budget is made of (`perf/rules.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from aerie.perf.rules import RULES, Rule, reads, rule

_SPANS = {
    "req_to_token": rule(written="assigned"),
    # Judged first and written then: a span may be too long to be kept.
    "out_cache_loc": rule(read="judged + assigned"),
}
_STATIC_ROWS = rule(written="clean*row_bucket")
_STATIC_REQUESTS = rule(written="clean*bucket")
_DRAFT_ROWS = rule(written="bucket*tree_width")

# A weight is read once a level for all rows; fc once a round. `layers` counts passes through the
# attention block, `levels` those through feed-forward and head.
_FUSED_DRAFT = {
    **reads(
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
    "seq_len": rule(read="2*B"),  # once for the draft, once for the layout
    "req_pool_indices": rule(read="2*B"),
    "keys": rule("columns*C", "(R + fed)*C"),
    "values": rule("columns*C", "(R + fed)*C"),
}

ALL_RULES: Mapping[str, Mapping[str, Rule]] = {
    **RULES,
    "update_node_data": reads(
        selected="listed*N", cumu_tokens="chosen", prev_indexs="chosen", cumu_deltas="rows"
    ),
    "sample_target_tokens": reads(
        logits="rows*V",
        positions="rows",
        prompt_counts="read*V",
        output_counts="read*V",
        logit_bias="read*V",
        draft_tokens="loaded",
        ancestor_bits="4*loaded",
        stop_tokens="read*S",
    ),
    "compute_kv_indices": reads(req_to_token="prefix", tree_mask="sound*W*F", fed_slots="taken*F"),
    "assign_draft_cache_locs_operator": _SPANS,
    "assign_req_to_token_pool_operator": _SPANS,
    "draft_replay_input_operator": {
        "static_input_ids": _DRAFT_ROWS,
        "static_positions": _DRAFT_ROWS,
        "static_out_cache_loc": _DRAFT_ROWS,
        "static_hidden": rule(written="bucket*tree_width*H"),
        "static_seq_len": rule(written="bucket"),
        "static_req_pool_indices": rule(written="bucket"),
    },
    "extend_replay_input_operator": {
        # Lengths are judged before anything moves, and are a buffer of their own as well.
        "extend_len": rule(read="B + clean*B"),
        **reads(
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
        "static_hidden": rule(written="clean*row_bucket*H"),
        "static_extend_len": _STATIC_REQUESTS,
        "static_seq_len": _STATIC_REQUESTS,
        "static_req_pool_indices": _STATIC_REQUESTS,
        "static_qo_indptr": rule(written="clean*(bucket + 1)"),
    },
    "fused_growth": reads(
        level_probas="candidates", level_tokens="candidates", req_to_token="slots"
    ),
    "fused_verdict": reads(
        logits="read*V",
        draft_tokens="loaded",
        first_child_row="loaded",
        next_sibling_row="loaded",
        length_limit="live",
        stop_tokens="live*S",
        req_to_token="rows",
    ),
    "draft_embed_rows": reads(embedding="R*H"),
    "draft_rotate_store": {
        **reads(cosines="R*HD", sines="R*HD"),
        "keys": rule(written="R*C"),
        "values": rule(written="R*C"),
    },
    "draft_attend": reads(
        tree_mask="R*n_fed", req_to_token="columns", keys="columns*C", values="columns*C"
    ),
    "fused_draft": _FUSED_DRAFT,
    "build_active_slots": {
        "accept_count": rule(written="dead"),
        "draft_tokens": rule(written="dead*T"),
        "ancestor_bits": rule(written="4*dead*T"),
    },
}
