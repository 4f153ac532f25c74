"""Inputs of every kernel at a batch size and a verify budget, as one round would call them.

Each kernel's cases of the parity suite know how to make its inputs; here stand the sizes of a
round. Levels of eight nodes with eight children each are drafted, as deep as five.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

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

    @property
    def rows(self) -> int:
        """Rows of all trees."""
        return self.batch * self.verify

    @property
    def plan(self) -> Plan:
        """The drafts of all requests."""
        return Plan(self.batch, TOP_K, (1, *[WIDTH] * LEVELS))

    @property
    def trees(self) -> tuple[str, ...]:
        """The tree that each request verifies."""
        return (f"random{self.verify}",) * self.batch

    @property
    def drafted(self) -> dict[str, Any]:
        """A whole draft of every request, to be chosen from."""
        return {"trees": (f"binary{self.plan.n_nodes}",), "batch": self.batch}

    @property
    def texts(self) -> tuple[int, ...]:
        """Tokens of every request."""
        return (self.context,) * self.batch

    @property
    def features(self) -> tuple[int, str]:
        """Width and dtype of hidden rows."""
        return self.hidden, "float16"


# By kernel: the options with which its family of cases makes a round's inputs.
SIZES: dict[str, Callable[[Shape], dict[str, Any]]] = {
    "draft_tree_layer_score_index_gen_op": lambda s: {
        "shape": (s.batch, WIDTH, TOP_K),
        "hidden": s.features,
        "count": s.plan.n_nodes,
    },
    "update_cumu_draft_state": lambda s: {"plan": s.plan, "verify": s.verify},
    "calculate_work_deltas": lambda s: {
        "batch": s.batch,
        "old": min(s.verify, s.plan.n_nodes),
        "top_k": TOP_K,
        "verify": s.verify,
    },
    "fused_tree_mask_operator": lambda s: {"shapes": s.trees, "seq": s.context},
    "convert_logits_to_probas": lambda s: {
        "rows": (s.verify,) * s.batch,
        "vocab": s.vocabulary,
        "heat": 0.7,
    },
    "draft_tree_reject_sample": lambda s: {"shapes": s.trees, "accept": "all"},
    "sample_target_tokens": lambda s: {"shapes": s.trees, "vocab": s.vocabulary},
    "update_verify_result": lambda s: {
        "batch": Batch(s.trees, seq=s.context, depth=RUN),
        "accept": ACCEPTED,
    },
    "compute_kv_indices": lambda s: {"seq": s.texts},
    "calculate_verify_kv_qo_ms": lambda s: {"rows": (s.verify,) * s.batch, "seq": s.context},
    "assign_draft_cache_locs_operator": lambda s: {"start": s.texts, "length": s.verify},
    "assign_req_to_token_pool_operator": lambda s: {"start": s.texts, "length": s.verify},
    "update_node_data": lambda s: {"plan": s.plan, "size": s.verify, "seq": s.context},
    "draft_replay_input_operator": lambda s: {
        "batch": s.batch,
        "width": WIDTH,
        "buckets": (s.batch,),
        "hidden": s.features,
    },
    "extend_replay_input_operator": lambda s: {
        "lengths": (FED,) * s.batch,
        "buckets": ((s.batch,), (FED * s.batch,)),
        "hidden": s.features,
    },
    "build_active_slots": lambda s: {"n_slots": s.batch, "given": ()},
    "place_verify_rows": lambda s: {"batch": s.batch, "before": s.context, "rows": s.verify},
    "place_prompt_rows": lambda s: {"batch": s.batch, "before": s.context, "rows": s.verify},
    "place_draft_rows": lambda s: {
        "batch": s.batch,
        "seq_len": s.context,
        "count": FED,
        "run": RUN + 1,
        "width": s.context + 128,
    },
    "place_draft_levels": lambda s: {
        "batch": s.batch,
        "widths": (WIDTH,) * (LEVELS - 1),
        "seq_len": s.context,
        "width": s.context + 128,
    },
    "mark_draft_paths": lambda s: {
        "batch": s.batch,
        "width": WIDTH,
        "n_nodes": WIDTH,
        "top_k": TOP_K,
        "fed": WIDTH,
        "first_id": 1 + TOP_K,
    },
    "best_draft_children": lambda s: {"shape": (s.batch * WIDTH, s.vocabulary), "top_k": TOP_K},
    "grow_draft_layer": lambda s: {"plan": s.plan, "verify": s.verify, "hidden": s.features},
    "choose_best_nodes": lambda s: {**s.drafted, "verify": s.verify},
    "choose_planned_nodes": lambda s: {
        **s.drafted,
        "verify": s.verify,
        "sizes": range(1, s.rows - s.batch + 2, max(s.rows // 16, 1)),
    },
    "note_chosen_nodes": lambda s: {**s.drafted, "chosen": s.verify, "noted": s.verify},
    "move_kv_slots": lambda s: {
        "paths": ((0, 3, 5),) * s.batch,
        "pool": (8, 16 * s.batch + 1, 2, 64),
        "room": (RUN - 1) * s.batch,
    },
    "hand_over_verdict": lambda s: {
        "ends": ("goes_on",),
        "batch": s.batch,
        "run": RUN + 1,
        "nodes": s.plan.n_nodes,
    },
    "find_text_path": lambda s: {
        "batch": s.batch,
        "lengths": s.context,
        "vocab": 200,
        "looks": (4, PATH, 4096),
        "width": s.context + 128,
    },
    "merge_text_path": lambda s: {
        "ways": ("leaves",),
        "batch": s.batch,
        "shape": f"random{s.plan.n_nodes}",
        "longest": PATH,
    },
    "toss_coins": lambda s: {"batch": s.batch, "depth": RUN},
    "score_target_tokens": lambda s: {
        "batch": s.batch,
        "shape": (s.rows, s.vocabulary),
        "run": RUN + 1,
        "top_n": 20,
        "wanted": 5,
    },
    "find_near_ties": lambda s: {
        "shapes": s.trees,
        "vocab": s.vocabulary,
        "heat": 0.0,
        "run": RUN + 1,
        "limit": 3 * 2.0**-7,
    },
    "forbid_tokens": lambda s: {"counts": (s.verify,) * s.batch, "vocab": s.vocabulary},
    "weigh_kv_blocks": lambda s: {"lengths": s.texts, "heads": HEADS, "block_size": BLOCK},
    "bound_kv_blocks": lambda s: {"lengths": s.texts, "heads": HEADS, "block_size": BLOCK},
    "choose_kv_blocks": lambda s: {"lengths": s.texts, "block_size": BLOCK, "kept": KEPT},
    "gather_kv_blocks": lambda s: {
        "lengths": s.texts,
        "heads": (HEADS[0], HEADS[1], HEADS[3]),
        "block_size": BLOCK,
        "n_chosen": min(sum(KEPT), -(-s.context // BLOCK)),
    },
    "splice_drafted_run": lambda s: {
        "batch": s.batch,
        "shape": f"random{s.plan.n_nodes}",
        "longest": PREVIEWED,
        "counts": PREVIEWED // 2,
    },
}


def workload(shape: Shape) -> dict[str, Inputs]:
    """Named inputs of every kernel for one round of this shape; the same on every call."""
    families: dict[str, Callable[..., Inputs]] = {}
    for case in all_cases():
        # Cases are rows of tables: each is a call of its family, and the row. Of several families
        # of a kernel the last counts: of the walk's, the rule that requests get.
        assert isinstance(case.build, partial)
        _, families[case.kernel], _ = case.build.args
    return {
        name: families[name](generator(name, "round"), **sizes(shape))
        for name, sizes in SIZES.items()
    }
