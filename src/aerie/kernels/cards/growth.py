"""Cards of the drafting kernels K1 to K3, to score, store and weigh a layer; R7 is all three."""

from __future__ import annotations

from aerie.kernels.card import Axis, Call, Card, Refusal, Ulps
from aerie.kernels.cards.axes import (
    BATCH,
    DRAFT_VOCAB,
    FED,
    HIDDEN_SIZE,
    MAX_CANDIDATES,
    MAX_VERIFY,
    NODES,
    TOP_K,
    VERIFY,
    WIDTH,
)
from aerie.kernels.cards.dtypes import BOOL, F32, HIDDEN, I64, STORE
from aerie.kernels.cards.fields import (
    STATUS,
    cost,
    limit,
    may_read,
    reads,
    returns,
    scalar,
    updates,
)
from aerie.kernels.status import Status

# Captured runs discount stored scores from depth 2 on by this factor (compat mode).
COMPAT_DISCOUNT = 0.9999

_LAYER = ("B", "W*K")
_BEST = ("B", "K")
_UNKNOWN_NODE = Refusal(Status.OUT_OF_RANGE, "cumu_count", "a frontier id is not a node yet")
_SAME_NODE = Refusal(Status.BROKEN_TREE, "1", "two frontier slots are the same node")
_TWIN = Refusal(Status.DUPLICATE_SIBLING, "1", "a frontier slot proposes one token twice")
_CANDIDATES = limit("W*K", str(MAX_CANDIDATES), "candidates of one layer")


class LayerScores(Call, number="K1", name="draft_tree_layer_score_index_gen_op", family="growth"):
    """Score the W*K candidates of a layer, sort them all, gather the hidden rows of the best K. A
    probability is read as min(max(p, 0), 1), NaN as 0; the path score is the float32 product with
    the parent's, which may be any float: a product that is NaN stays NaN. Column t*K+j is the j-th
    choice of frontier slot t.
    """

    cumu_count = scalar("int", 1, 4096, "nodes stored before this layer")
    topk_probas = reads(F32, _LAYER, "draft probability of each candidate, whole vocabulary")
    topk_tokens = reads(I64, _LAYER, "candidate tokens, draft ids when a map is given")
    last_layer_scores = reads(F32, ("B", "W"), "path score of each frontier slot")
    input_hidden = reads(HIDDEN, ("B*W", "H"), "hidden row of each frontier slot")
    hot_token_id = may_read(I64, ("VD",), "draft id to target id; injective")
    curr_layer_scores = returns(F32, _LAYER, "path score of each candidate")
    sort_layer_scores = returns(F32, _LAYER, "all path scores, descending")
    sort_layer_indices = returns(I64, _LAYER, "candidate index of each sorted score", -1)
    cache_topk_indices = returns(I64, _BEST, "node ids of the best K candidates", -1)
    parent_indices_in_layer = returns(I64, _BEST, "frontier slot each of them hangs on", -1)
    output_hidden = returns(HIDDEN, ("B", "K", "H"), "hidden row of that parent slot")
    mapped_tokens = returns(I64, _LAYER, "candidate tokens as target ids", -1)
    status = STATUS
    card = Card(
        axes=(BATCH, WIDTH, TOP_K, HIDDEN_SIZE, DRAFT_VOCAB),
        limits=(_CANDIDATES,),
        refusals=(
            Refusal(Status.OUT_OF_RANGE, "VD", "a draft token has no entry in hot_token_id"),
            Refusal(Status.NOT_INJECTIVE, "1", "hot_token_id repeats a target id (all requests)"),
        ),
        ties=(
            "Equal scores keep candidate order: the lower candidate index comes first. NaN comes"
            " behind every number."
        ),
        cost=cost(
            "B*(12*W*K + 4*W + E*K*H)",
            "B*(24*W*K + 16*K + E*K*H)",
            # one product and, for a sorting network, about log2(64) = 6 comparisons a candidate
            "7*B*W*K",
        ),
    )


class GrownStore(Call):
    """The nodes of every request, and how many there are before a layer."""

    cumu_count = scalar("int", 1, 4096, "nodes stored before this layer")
    verify_num = scalar("int", 1, MAX_VERIFY, "nodes the verifier may take, root included")
    fed_count = scalar("int", 0, 1024, "nodes fed to the draft before this layer")
    cumu_tokens = updates(I64, STORE, "token of each node")
    cumu_scores = updates(F32, STORE, "stored path score of each node")
    cumu_deltas = updates(I64, STORE, "depth of each node")
    prev_indexs = updates(I64, STORE, "parent")
    next_indexs = updates(I64, STORE, "first child")
    side_indexs = updates(I64, STORE, "next sibling")
    sort_scores = updates(F32, ("B", "M"), "best path scores so far, descending")


class CumulativeState(GrownStore, number="K2", name="update_cumu_draft_state", family="growth"):
    """Store the layer's W*K nodes with their links, emit the next frontier's candidates and keep
    the running order of scores. Takes path scores, never conditional probabilities. compat stores
    score * 0.9999 from depth 2 on, once, never compounded. Scores may be any floats in any order:
    sort_scores becomes the first of a stable descending sort of the old ones and the layer's.
    Depths wrap around int64.
    """

    compat = scalar("bool", 0, 1, "constants of the captured runs", default=False)
    curr_layer_scores = reads(F32, _LAYER, "path scores, from K1")
    topk_tokens = reads(I64, _LAYER, "target ids (K1's mapped_tokens)")
    sort_layer_scores = reads(F32, _LAYER, "from K1")
    sort_layer_indices = reads(I64, _LAYER, "from K1")
    frontier_indexs = reads(I64, ("B", "W"), "node id of each frontier slot")
    input_tree_mask = reads(BOOL, ("B", "W", "F"), "fed nodes each frontier slot sees")
    output_scores = returns(F32, _BEST, "path scores of the next frontier's candidates")
    output_tokens = returns(I64, _BEST, "their tokens", -1)
    work_scores = returns(
        F32,
        ("B", "min(verify_num, cumu_count) + K"),
        "sort_scores before this layer, then output_scores: two descending runs",
    )
    output_tree_mask = returns(BOOL, ("B", "K", "F"), "parent's row plus column fed_count + i")
    status = STATUS
    card = Card(
        axes=(BATCH, WIDTH, TOP_K, NODES, VERIFY, FED),
        limits=(
            _CANDIDATES,
            limit("cumu_count + W*K", "N", "nodes per request"),
            limit("verify_num", "M", "entries of sort_scores"),
            limit("fed_count + K", "F", "columns of the draft's tree mask"),
        ),
        refusals=(
            _UNKNOWN_NODE,
            _SAME_NODE,
            Refusal(Status.CANDIDATE, "W*K", "a sort index is not a candidate"),
            _TWIN,
        ),
        ties="sort_scores: on equal scores the older entry stays in front; NaN comes last.",
        cost=cost(
            "B*(24*W*K + 8*W + W*F + 4*M)",
            "B*(44*W*K + 8*W + 12*K + K*F + 8*M + 4*K)",
            "B*(4*W*K + 2*M + K*F)",
        ),
    )


class WorkDeltas(Call, number="K3", name="calculate_work_deltas", family="growth"):
    """G[k]: mean over the batch of the extra score mass that verifying k of the new nodes brings,
    at verify_num nodes in all. Each new score takes a free slot (worth 0) while there is one, then
    the smallest old score's that no new one took before, and gains what it is above that, or
    nothing; NaN and equal infinities gain nothing. G[0] = 0, never decreasing, concave for
    descending runs. Increments and their sum in float64, requests ascending, rounded to float32
    once. An empty batch: 0.
    """

    node_top_k = scalar("int", 1, 10, "length of the second run")
    verify_num = scalar("int", 1, MAX_VERIFY, "nodes the verifier may take, root included")
    work_scores = reads(F32, ("B", "C"), "two descending runs: old, then node_top_k new")
    G = returns(F32, ("node_top_k + 1",), "gain of verifying the k best new nodes")
    card = Card(
        axes=(BATCH, Axis("C", 1, MAX_VERIFY + 10, "length of both runs together")),
        limits=(
            limit("node_top_k", "C", "scores of the second run"),
            limit("C - node_top_k", "verify_num", "scores of the first run"),
        ),
        ties="A new score equal to the old one it would displace gains nothing.",
        tolerances={"G": Ulps(cpu=1, gpu=1)},
        cost=cost("4*B*C", "4*node_top_k + 4", "B*(C + node_top_k)"),
    )


class DraftLayer(GrownStore, number="R7", name="grow_draft_layer"):
    """A whole layer of the draft tree: K1 without a map, K2 without compat on K1's results and, if
    weigh is set, K3 on K2's; G is 0 if not. A refused request keeps its store; its next frontier is
    no node, so that the layers below are refused as well, and adds 0 to G.
    """

    weigh = scalar("bool", 0, 1, "whether somebody learns from its gain", default=False)
    topk_probas = reads(F32, _LAYER, "draft probability of each candidate")
    topk_tokens = reads(I64, _LAYER, "candidate tokens, target ids")
    last_layer_scores = reads(F32, ("B", "W"), "path score of each frontier slot")
    input_hidden = reads(HIDDEN, ("B*W", "H"), "hidden row of each frontier slot")
    frontier_indexs = reads(I64, ("B", "W"), "node id of each frontier slot")
    input_tree_mask = reads(BOOL, ("B", "W", "F"), "fed nodes each frontier slot sees")
    node_ids = returns(I64, _BEST, "node ids of the best K candidates", -1)
    output_scores = returns(F32, _BEST, "their path scores")
    output_tokens = returns(I64, _BEST, "their tokens", -1)
    output_hidden = returns(HIDDEN, ("B", "K", "H"), "hidden row of their parent slot")
    output_tree_mask = returns(BOOL, ("B", "K", "F"), "parent's row plus column fed_count + i")
    G = returns(F32, ("K + 1",), "gain of verifying the k best new nodes, 0 if not weighed")
    status = STATUS
    card = Card(
        axes=(BATCH, WIDTH, TOP_K, HIDDEN_SIZE, NODES, VERIFY, FED),
        limits=CumulativeState.card.limits,
        refusals=(_UNKNOWN_NODE, _SAME_NODE, _TWIN),
        ties="Equal scores: the lower candidate first; in sort_scores the older entry.",
        assumes=(
            "sort_scores is descending, as it is when every layer was stored by this card or K2."
        ),
        tolerances={"G": Ulps(cpu=1, gpu=1)},
        cost=cost(
            "B*(12*W*K + 12*W + W*F + 4*M + E*K*H)",
            "B*(44*W*K + 8*W + 20*K + K*F + 4*M + E*K*H) + 4*K + 4",
            "B*(11*W*K + 2*M + K*F + K)",
        ),
    )
