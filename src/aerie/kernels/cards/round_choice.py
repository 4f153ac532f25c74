"""Cards of a round's choice: which nodes are verified next, and what is noted about them."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card
from aerie.kernels.cards.axes import BATCH, DEPTH, KNOTS, MAX_VERIFY, NODES
from aerie.kernels.cards.dtypes import BOOL, EACH, F32, F64, I32, I64, STORE
from aerie.kernels.cards.fields import cost, limit, reads, scalar, updates

_NOTED = ("B", "M")
_SCORES = reads(F32, STORE, "path score of each node, 0 for none")
_DEPTHS = reads(I64, STORE, "depth of each node")
_PARENTS = reads(I64, STORE, "parent of each node, -1 for the root")
_VERIFY = scalar("int", 1, MAX_VERIFY, "nodes of one request at most, root included")
_SELECTED = updates(BOOL, STORE, "the nodes to verify")
_N_CHOSEN = updates(I32, EACH, "how many they are")


class BestNodes(Call, number="R8", name="choose_best_nodes"):
    """The best verify_num nodes of each request by path score, never one without a score. Scores
    never rise from a parent to its child, so the choice is closed under ancestors.
    """

    verify_num = _VERIFY
    cumu_scores = _SCORES
    selected = _SELECTED
    n_chosen = _N_CHOSEN
    card = Card(
        axes=(BATCH, NODES),
        ties="Equal scores: the lower node id comes first.",
        assumes="No score is NaN.",
        cost=cost("4*B*N", "B*N + 4*B", "8*B*N"),
    )


class PlannedNodes(Call, number="R9", name="choose_planned_nodes"):
    __doc__ = f"""The forest of all requests that is worth most. A node weighs the probability that
    its whole path is accepted: its score plus the correction of its depth, interpolated between
    {KNOTS} knots that lie evenly in the square root of the score, clipped to [0, 1], in float64 and
    rounded to float32 once; the root weighs its score, a node without a score nothing, and none
    more than its parent. Beyond the verify_num best of a request nothing weighs. For a size n on
    offer the forest is the roots, then the nodes by weight, n in all or as many as weigh anything;
    its value is the sum of the weights (float64) less rate * seconds(n), NaN counting as -inf. The
    size of the largest value is taken, the first of several. Parents may be any nodes of lower id:
    nodes merged behind the layers are right.
    """

    deepest = scalar("int", 1, DEPTH.high, "no node is deeper")
    verify_num = _VERIFY
    cumu_scores = _SCORES
    cumu_deltas = _DEPTHS
    prev_indexs = _PARENTS
    row_sizes = reads(I64, ("S",), "rows in all, ascending, each at least B")
    numbers = reads(F64, ("Q",), "rate, seconds of each size, corrections [depth - 1, knot]")
    selected = _SELECTED
    n_chosen = _N_CHOSEN
    card = Card(
        axes=(
            BATCH,
            NODES,
            Axis("S", 1, 1 << 14, "sizes on offer"),
            Axis("Q", 2 + KNOTS, 1 << 15, "numbers of the offer"),
        ),
        limits=(
            limit(f"1 + S + {KNOTS}", "Q", "rate, seconds and the knots of one depth"),
            limit(
                "Q - 1 - S", f"(Q - 1 - S)//{KNOTS}*{KNOTS}", "corrections in whole rows of knots"
            ),
        ),
        ties="Equal weights: the lower request, then the lower node id comes first.",
        assumes=(
            "No score is NaN or above 1; a parent's id is lower than its child's; nodes deeper than"
            " the corrections have rows take the last one's. Sums may be added in any order, so"
            " that values closer than a few units of float64 may change places."
        ),
        cost=cost("20*B*N + 8*S + 8*Q", "B*N + 4*B", "B*N*(32 + deepest) + S"),
    )


class NotedNodes(Call, number="R10", name="note_chosen_nodes"):
    """Score, depth, token and parent of the chosen nodes in the order of their rows, which is that
    of their ids; 0 behind the last one, parent -1. Rows beyond M are not noted.
    """

    cumu_scores = _SCORES
    cumu_deltas = _DEPTHS
    cumu_tokens = reads(I64, STORE, "token of each node")
    prev_indexs = _PARENTS
    selected = reads(BOOL, STORE, "the nodes to verify")
    noted_scores = updates(F32, _NOTED, "path score of each row")
    noted_depths = updates(I32, _NOTED, "depth of each row")
    noted_tokens = updates(I32, _NOTED, "token of each row")
    noted_parents = updates(I32, _NOTED, "row of the parent, -1 for the root")
    card = Card(
        axes=(BATCH, NODES, Axis("M", 1, MAX_VERIFY, "rows noted of each request")),
        ties="None: copies.",
        assumes="The choice is closed under ancestors; tokens and depths fit int32.",
        cost=cost("29*B*N", "16*B*M", "B*(2*N + 4*M)"),
    )
