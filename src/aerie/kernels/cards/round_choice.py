"""Cards of a round's choice: which nodes are verified next, and what is noted about them."""

from __future__ import annotations

from aerie.kernels.card import Axis, Card, Scalar
from aerie.kernels.cards.axes import (
    BATCH,
    BOOL,
    DEPTH,
    F32,
    F64,
    I32,
    I64,
    KNOTS,
    MAX_VERIFY,
    NODES,
    cost,
    limit,
    reads,
    updates,
)

_STORE = ("B", "N")
_NOTED = ("B", "M")
_SCORES = reads("cumu_scores", F32, _STORE, "path score of each node, 0 for none")
_DEPTHS = reads("cumu_deltas", I64, _STORE, "depth of each node")
_PARENTS = reads("prev_indexs", I64, _STORE, "parent of each node, -1 for the root")
_VERIFY = Scalar("verify_num", "int", 1, MAX_VERIFY, "nodes of one request at most, root included")
_SELECTED = updates("selected", BOOL, _STORE, "the nodes to verify")
_N_CHOSEN = updates("n_chosen", I32, ("B",), "how many they are")

BEST_NODES = Card(
    number="R8",
    name="choose_best_nodes",
    family="round",
    version=1,
    summary=(
        "The best verify_num nodes of each request by path score, never one without a score."
        " Scores never rise from a parent to its child, so the choice is closed under ancestors."
    ),
    axes=(BATCH, NODES),
    scalars=(_VERIFY,),
    ports=(_SCORES, _SELECTED, _N_CHOSEN),
    ties="Equal scores: the lower node id comes first.",
    assumes="No score is NaN.",
    cost=cost("4*B*N", "B*N + 4*B", "8*B*N"),
)

PLANNED_NODES = Card(
    number="R9",
    name="choose_planned_nodes",
    family="round",
    version=1,
    summary=(
        "The forest of all requests that is worth most. A node weighs the probability that its"
        " whole path is accepted: its score plus the correction of its depth, interpolated between"
        f" {KNOTS} knots that lie evenly in the square root of the score, clipped to [0, 1], in"
        " float64 and rounded to float32 once; the root weighs its score, a node without a score"
        " nothing, and none more than its parent. Beyond the verify_num best of a request nothing"
        " weighs. For a size n on offer the forest is the roots, then the nodes by weight, n in"
        " all or as many as weigh anything; its value is the sum of the weights (float64) less rate"
        " * seconds(n), NaN counting as -inf. The size of the largest value is taken, the first of"
        " several. Parents may be any nodes of lower id: nodes merged behind the layers are right."
    ),
    axes=(
        BATCH,
        NODES,
        Axis("S", 1, 1 << 14, "sizes on offer"),
        Axis("Q", 2 + KNOTS, 1 << 15, "numbers of the offer"),
    ),
    scalars=(Scalar("deepest", "int", 1, DEPTH.high, "no node is deeper"), _VERIFY),
    ports=(
        _SCORES,
        _DEPTHS,
        _PARENTS,
        reads("row_sizes", I64, ("S",), "rows in all, ascending, each at least B"),
        reads("numbers", F64, ("Q",), "rate, seconds of each size, corrections [depth - 1, knot]"),
        _SELECTED,
        _N_CHOSEN,
    ),
    limits=(
        limit(f"1 + S + {KNOTS}", "Q", "rate, seconds and the knots of one depth"),
        limit("Q - 1 - S", f"(Q - 1 - S)//{KNOTS}*{KNOTS}", "corrections in whole rows of knots"),
    ),
    ties="Equal weights: the lower request, then the lower node id comes first.",
    assumes=(
        "No score is NaN or above 1; a parent's id is lower than its child's; nodes deeper than"
        " the corrections have rows take the last one's. Sums may be added in any order, so that"
        " values closer than a few units of float64 may change places."
    ),
    cost=cost("20*B*N + 8*S + 8*Q", "B*N + 4*B", "B*N*(32 + deepest) + S"),
)

NOTED_NODES = Card(
    number="R10",
    name="note_chosen_nodes",
    family="round",
    version=1,
    summary=(
        "Score, depth, token and parent of the chosen nodes in the order of their rows, which is"
        " that of their ids; 0 behind the last one, parent -1. Rows beyond M are not noted."
    ),
    axes=(BATCH, NODES, Axis("M", 1, MAX_VERIFY, "rows noted of each request")),
    ports=(
        _SCORES,
        _DEPTHS,
        reads("cumu_tokens", I64, _STORE, "token of each node"),
        _PARENTS,
        reads("selected", BOOL, _STORE, "the nodes to verify"),
        updates("noted_scores", F32, _NOTED, "path score of each row"),
        updates("noted_depths", I32, _NOTED, "depth of each row"),
        updates("noted_tokens", I32, _NOTED, "token of each row"),
        updates("noted_parents", I32, _NOTED, "row of the parent, -1 for the root"),
    ),
    ties="None: copies.",
    assumes="The choice is closed under ancestors; tokens and depths fit int32.",
    cost=cost("29*B*N", "16*B*M", "B*(2*N + 4*M)"),
)

CHOICE_CARDS = (BEST_NODES, PLANNED_NODES, NOTED_NODES)
