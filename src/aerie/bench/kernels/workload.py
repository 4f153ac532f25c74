"""Inputs of every kernel at a batch size and a verify budget, as one round would call them.

Each kernel's cases of the parity suite know how to make its inputs; here stand the sizes of a
round. Levels of eight nodes with eight children each are drafted, as deep as five.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aerie.kernels.cases.case import Inputs, generator
from aerie.kernels.cases.commit import Batch
from aerie.kernels.cases.suite import all_cases
from aerie.kernels.cases.trees import Plan

TOP_K, WIDTH, LEVELS = 8, 8, 5
RUN = 12  # tokens a round may accept
PATH = 8  # tokens copied from a text
FED = 4  # rows of a request that a draft takes in
ACCEPTED = 3
PREVIEWED = 24  # tokens of a run over a part of the KV
HEADS = (2, 2, 4, 64)  # layers, KV heads, queries of each, width: of a preview
BLOCK, KEPT = 16, (1, 8, 2)  # positions of a block; first, found and last blocks that are kept


@dataclass(frozen=True)
class Shape:
    """The sizes a workload is made for."""

    batch: int
    verify: int
    context: int
    vocabulary: int
    hidden: int


def _tree_sizes(s: Shape) -> dict[str, Inputs]:
    """By kernel: options of its family of cases. Of what grows, chooses, verifies, walks trees."""
    batch, verify, vocab, n_rows = s.batch, s.verify, s.vocabulary, s.batch * s.verify
    plan = Plan(batch, TOP_K, (1, *[WIDTH] * LEVELS))  # the drafts of all requests
    features = (s.hidden, "float16")
    trees = (f"random{verify}",) * batch  # that each request verifies
    drafted: Inputs = {"trees": (f"binary{plan.n_nodes}",), "batch": batch}  # to be chosen from
    texts, counts, nodes = (s.context,) * batch, (verify,) * batch, plan.n_nodes
    steps = range(1, n_rows - batch + 2, max(n_rows // 16, 1))
    walked = Batch(trees, seq=s.context, depth=RUN)
    drawn = {"batch": batch, "shape": (n_rows, vocab), "run": RUN + 1}
    ties = {"run": RUN + 1, "limit": 3 * 2.0**-7}
    return {
        "draft_tree_layer_score_index_gen_op": {
            "shape": (batch, WIDTH, TOP_K), "hidden": features, "count": nodes,
        },
        "update_cumu_draft_state": {"plan": plan, "verify": verify},
        "calculate_work_deltas": {
            "batch": batch, "old": min(verify, nodes), "top_k": TOP_K, "verify": verify,
        },
        "fused_tree_mask_operator": {"shapes": trees, "seq": s.context},
        "convert_logits_to_probas": {"rows": counts, "vocab": vocab, "heat": 0.7},
        "draft_tree_reject_sample": {"shapes": trees, "accept": "all"},
        "sample_target_tokens": {"shapes": trees, "vocab": vocab},
        "update_verify_result": {"batch": walked, "accept": ACCEPTED},
        "compute_kv_indices": {"seq": texts},
        "calculate_verify_kv_qo_ms": {"rows": counts, "seq": s.context},
        "assign_draft_cache_locs_operator": {"start": texts, "length": verify},
        "assign_req_to_token_pool_operator": {"start": texts, "length": verify},
        "update_node_data": {"plan": plan, "size": verify, "seq": s.context},
        "best_draft_children": {"shape": (batch * WIDTH, vocab), "top_k": TOP_K},
        "grow_draft_layer": {"plan": plan, "verify": verify, "hidden": features},
        "choose_best_nodes": {**drafted, "verify": verify},
        "choose_planned_nodes": {**drafted, "verify": verify, "sizes": steps},
        "note_chosen_nodes": {**drafted, "chosen": verify, "noted": verify},
        "hand_over_verdict": {"ends": ("goes_on",), "batch": batch, "run": RUN + 1, "nodes": nodes},
        "merge_text_path": {
            "ways": ("leaves",), "batch": batch, "shape": f"random{nodes}", "longest": PATH,
        },
        "toss_coins": {"batch": batch, "depth": RUN},
        "score_target_tokens": {**drawn, "top_n": 20, "wanted": 5},
        "find_near_ties": {"shapes": trees, "vocab": vocab, "heat": 0.0, **ties},
        "forbid_tokens": {"counts": counts, "vocab": vocab},
        "splice_drafted_run": {
            "batch": batch, "shape": f"random{nodes}", "longest": PREVIEWED,
            "counts": PREVIEWED // 2,
        },
    }  # fmt: skip


def _row_sizes(s: Shape) -> dict[str, Inputs]:
    """Of what places rows, and reads and moves KV and texts."""
    batch, verify, context, features = s.batch, s.verify, s.context, (s.hidden, "float16")
    fed, texts, wide = FED * batch, (context,) * batch, context + 128
    levels = (WIDTH,) * (LEVELS - 1)
    marked = {"n_nodes": WIDTH, "top_k": TOP_K, "fed": WIDTH, "first_id": 1 + TOP_K}
    blocks = {"lengths": texts, "block_size": BLOCK}
    gathered = {"heads": (*HEADS[:2], HEADS[3]), "n_chosen": min(sum(KEPT), -(-context // BLOCK))}
    pool = (8, 16 * batch + 1, 2, 64)
    return {
        "draft_replay_input_operator": {
            "batch": batch, "width": WIDTH, "buckets": (batch,), "hidden": features,
        },
        "extend_replay_input_operator": {
            "lengths": (FED,) * batch, "buckets": ((batch,), (fed,)), "hidden": features,
        },
        "build_active_slots": {"n_slots": batch, "given": ()},
        "place_verify_rows": {"batch": batch, "before": context, "rows": verify},
        "place_prompt_rows": {"batch": batch, "before": context, "rows": verify},
        "place_draft_rows": {
            "batch": batch, "seq_len": context, "count": FED, "run": RUN + 1, "width": wide,
        },
        "place_draft_levels": {
            "batch": batch, "widths": levels, "seq_len": context, "width": wide,
        },
        "mark_draft_paths": {"batch": batch, "width": WIDTH, **marked},
        "move_kv_slots": {"paths": ((0, 3, 5),) * batch, "pool": pool, "room": (RUN - 1) * batch},
        "find_text_path": {
            "batch": batch, "lengths": context, "vocab": 200, "looks": (4, PATH, 4096),
            "width": wide,
        },
        "weigh_kv_blocks": {**blocks, "heads": HEADS},
        "bound_kv_blocks": {**blocks, "heads": HEADS},
        "choose_kv_blocks": {**blocks, "kept": KEPT},
        "gather_kv_blocks": {**blocks, **gathered},
    }  # fmt: skip


def workload(shape: Shape) -> dict[str, Inputs]:
    """Named inputs of every kernel for one round of this shape; the same on every call."""
    families: dict[str, Callable[..., Inputs]] = {}
    for case in all_cases():
        # Cases are rows of tables: each is a call of its family, and the row. Of several families
        # of a kernel the last counts: of the walk's, the rule that requests get.
        assert isinstance(case.build, partial)
        _, families[case.kernel], _ = case.build.args
    return {
        name: families[name](generator(name, "round"), **sizes)
        for name, sizes in (_tree_sizes(shape) | _row_sizes(shape)).items()
    }
