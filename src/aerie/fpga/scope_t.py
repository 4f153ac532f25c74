"""Scope T: the tree kernels K1 to K7 and the frontier's gather, unfused over fused, counted.

Same rounds, same precision, no weights. The verifier's logits are read once on both sides; were
they to arrive as a stream, the fused side would not read them either, and that is not claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aerie.errors import AerieError
from aerie.fpga.counted import ByteCounter
from aerie.fpga.trace import TracedRound, padded
from aerie.fpga.tree_round import OUTCOME, RoundResult, TreeRound
from aerie.fpga.tree_runs import run_fused, run_unfused

# Rows from nodes are K10c, a supporting kernel: counted apart.
BESIDE = ("update_node_data",)
K6_ROWS = "draft_tree_reject_sample"
GROWTH = (
    "draft_tree_layer_score_index_gen_op",
    "update_cumu_draft_state",
    "calculate_work_deltas",
    "fused_tree_mask_operator",
)


def count_cell(
    traces: Sequence[TracedRound], sizes: tuple[int, int], by_coins: bool
) -> dict[str, Any]:
    """Run every round of a cell both ways and count; results must agree, and with the engine's."""
    unfused, fused = ByteCounter(), ByteCounter()
    tokens = 0
    for trace in traces:
        one = trace.round if by_coins else replace(trace.round, coins=None)
        if sizes != (one.logits.shape[1], one.levels[0].hidden.shape[1]):
            one = padded(one, *sizes)
        wanted, found = run_unfused(one, unfused.call), run_fused(one, fused.call)
        require_same(one, wanted, found, trace)
        tokens += int(wanted.outcome["out_indptr"][-1])
    first = traces[0].round
    before = {name: moved.total for name, moved in unfused.by_top().items()}
    beside = sum(before.pop(name) for name in BESIDE)
    after = {name: moved.total for name, moved in fused.by_top().items()}
    vocab, hidden = sizes
    n_before, n_after = sum(before.values()), sum(after.values())
    # Were K6 to read no more than the rows it stands on: one for each token.
    n_rows = before.get(K6_ROWS, 0) // (4 * vocab)
    spared = 4 * vocab * max(n_rows - tokens, 0) if by_coins else 0
    growth = sum(before[name] for name in GROWTH)
    return {
        "batch": first.batch,
        "verify": first.verify_num,
        "vocab": vocab,
        "hidden": hidden,
        "rule": "coins" if by_coins else "match",
        "rounds": len(traces),
        "tokens": tokens,
        "unfused": before,  # by kernel
        "fused": after,  # by region
        "beside": beside,
        "unfused_bytes": n_before,
        "fused_bytes": n_after,
        "unfused_per_token": round(n_before / tokens),
        "fused_per_token": round(n_after / tokens),
        "factor": round(n_before / n_after, 4),
        "walked_only": round((n_before - spared) / n_after, 4),
        "growth_factor": round(growth / after["fused_growth"], 4),  # K1 to K4 alone
        "kind": "c-sim",
    }


def require_same(
    one: TreeRound, wanted: RoundResult, found: RoundResult, trace: TracedRound
) -> None:
    """A count is worth nothing if the two sides, or the live engine, computed something else."""
    for name in OUTCOME:
        if not np.array_equal(wanted.outcome[name], found.outcome[name]):
            raise AerieError(f"fused and unfused rounds differ in {name} at batch {one.batch}")
    end = int(trace.out_indptr[-1])
    live = np.array_equal(trace.emitted[:end], wanted.outcome["out_tokens"][:end])
    if not live or not np.array_equal(trace.out_indptr, wanted.outcome["out_indptr"]):
        raise AerieError(f"the recorded round of batch {one.batch} emitted other tokens")
