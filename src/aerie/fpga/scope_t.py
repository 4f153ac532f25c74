"""Scope T: the tree kernels K1 to K7 and the frontier's gather, unfused over fused, counted.

Same rounds, same precision, no weights. The verifier's logits are read once on both sides; were
they to arrive as a stream, the fused side would not read them either, and that is not claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aerie.errors import AerieError
from aerie.fpga.counted import ByteCounter
from aerie.fpga.trace import TracedRound, padded
from aerie.fpga.tree_round import OUTCOME, RoundResult, TreeRound
from aerie.fpga.tree_runs import run_fused, run_unfused

FLOOR = 2.0
# Rows from nodes are K10c, a supporting kernel: counted apart.
BESIDE = ("update_node_data",)
K6_ROWS = "draft_tree_reject_sample"
GROWTH = (
    "draft_tree_layer_score_index_gen_op",
    "update_cumu_draft_state",
    "calculate_work_deltas",
    "fused_tree_mask_operator",
)


@dataclass(frozen=True)
class CellBytes:
    """Bytes of one cell over its rounds."""

    batch: int
    verify: int
    vocab: int
    hidden: int
    rule: str
    rounds: int
    tokens: int
    unfused: dict[str, int]  # by kernel
    fused: dict[str, int]  # by region
    beside: int

    @property
    def factor(self) -> float:
        """Unfused over fused."""
        return sum(self.unfused.values()) / sum(self.fused.values())

    @property
    def walked_only(self) -> float:
        """The same, were K6 to read no more than the rows it stands on: one for each token."""
        rows = self.unfused.get(K6_ROWS, 0) // (4 * self.vocab)
        spared = 4 * self.vocab * max(rows - self.tokens, 0) if self.rule == "coins" else 0
        return (sum(self.unfused.values()) - spared) / sum(self.fused.values())

    @property
    def growth_factor(self) -> float:
        """K1 to K4 alone."""
        return sum(self.unfused[name] for name in GROWTH) / self.fused["fused_growth"]

    def payload(self) -> dict[str, Any]:
        """The row for JSON."""
        before, after = sum(self.unfused.values()), sum(self.fused.values())
        return {
            **vars(self),
            "unfused_bytes": before,
            "fused_bytes": after,
            "unfused_per_token": round(before / self.tokens),
            "fused_per_token": round(after / self.tokens),
            "factor": round(self.factor, 4),
            "walked_only": round(self.walked_only, 4),
            "growth_factor": round(self.growth_factor, 4),
            "kind": "c-sim",
        }


def count_cell(traces: Sequence[TracedRound], sizes: tuple[int, int], by_coins: bool) -> CellBytes:
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
    return CellBytes(
        first.batch, first.verify_num, *sizes, "coins" if by_coins else "match", len(traces),
        tokens, before, after, beside,
    )  # fmt: skip


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
