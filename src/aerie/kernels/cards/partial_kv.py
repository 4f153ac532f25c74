"""Cards of a preview: which blocks of the KV it looks at, their copy, and the run it leaves."""

from __future__ import annotations

from dataclasses import replace

from aerie.kernels.card import Axis, Call, Card, Ulps
from aerie.kernels.cards.axes import BATCH, MAX_VERIFY, NODES, SEATED_ROWS, SEATED_WIDTH
from aerie.kernels.cards.dtypes import BOOL, EACH, F32, HIDDEN, I32, I64, STORE
from aerie.kernels.cards.fields import POOL_ROW, TABLE, cost, limit, reads, returns, scalar, updates
from aerie.kernels.formula import Formula

BEHIND = -3e38  # bound of a block behind the text

_POOL = ("Y", "S", "G", "D")
_NEAR_POOL = ("Y", "T", "G", "D")
_BLOCKS = ("Y", "B", "G", "J")

LAYERS = Axis("Y", 0, 1024, "layers of the pool")
SLOTS = Axis("S", 1, 1 << 28, "slots of the pool")
KV_HEADS = Axis("G", 1, 1024, "KV heads")
GROUP = Axis("Q", 1, 1024, "query heads of a KV head")
HEAD = Axis("D", 1, 1024, "size of a head")
BLOCKS = Axis("J", 1, 1 << 20, "blocks of one request")
_SIZE = scalar("int", 1, 1024, "positions of a block")
_SEQ_LEN = reads(I64, EACH, "tokens with KV")
_KEYS = reads(HIDDEN, _POOL, "keys of the pool")
_LISTED = "The table lists slots of the pool up to seq_len; n_blocks blocks hold them."


class ScoredBlocks(Call):
    """What R20 and R21 look at."""

    block_size = _SIZE
    n_blocks = scalar("int", 1, 1 << 20, "blocks of one request at most")
    queries = reads(HIDDEN, ("Y", "B", "G*Q", "D"), "of one row, scaled and rotated")
    keys = _KEYS
    req_to_token = TABLE
    req_pool_indices = POOL_ROW
    seq_len = _SEQ_LEN


class WeighedBlocks(ScoredBlocks, number="R20", name="weigh_kv_blocks"):
    """The attention that each block of a text gets: of every query head the softmax over the
    positions 0 to seq_len, summed over a block's positions and over the query heads of a KV head,
    in float64 and rounded to float32 once. 0 for a block behind the text.
    """

    block_scores = returns(F32, ("Y", "B", "G", "n_blocks"), "mass of each block")
    card = Card(
        axes=(LAYERS, BATCH, KV_HEADS, GROUP, HEAD, SLOTS, SEATED_ROWS, SEATED_WIDTH),
        ties="None: sums.",
        assumes=_LISTED,
        # Of float32 products: an absolute error of 1e-5 in them is so many units of their mass.
        tolerances={"block_scores": Ulps(cpu=256, gpu=2048)},
        cost=cost(
            "E*Y*B*G*D*(Q + n_blocks*block_size) + 4*B*n_blocks*block_size",
            "4*Y*B*G*n_blocks",
            "2*Y*B*G*Q*D*n_blocks*block_size",
        ),
    )


class BoundedBlocks(ScoredBlocks, number="R21", name="bound_kv_blocks"):
    """How high the scores of a block may be, from the largest and the smallest value of its keys in
    every channel: the larger of a query's products with the two, averaged over the query heads of a
    KV head, in float64 and rounded to float32 once. -3e38 for a block behind the text.
    """

    block_scores = returns(F32, ("Y", "B", "G", "n_blocks"), "bound of each block")
    card = replace(
        WeighedBlocks.card,
        # A sum of products whose signs differ may be small: the error is that of its largest terms.
        tolerances={"block_scores": Ulps(cpu=4096, gpu=4096)},
        cost=replace(
            WeighedBlocks.card.cost, operations=Formula("Y*B*G*D*n_blocks*(2*block_size + 4*Q)")
        ),
    )


class ChosenBlocks(Call, number="R22", name="choose_kv_blocks"):
    """The blocks that a preview looks at, ascending: the first n_sink, the last n_window, and of
    those between them the n_retrieval with the highest scores; all of them where a text has no
    more. near_len counts their positions; the last block of a text may be short.
    """

    block_size = _SIZE
    n_sink = scalar("int", 0, 1 << 16, "blocks from the beginning")
    n_retrieval = scalar("int", 0, 1 << 16, "blocks by score")
    n_window = scalar("int", 1, 1 << 16, "blocks up to the end")
    block_scores = reads(F32, _BLOCKS, "from R20 or R21")
    seq_len = _SEQ_LEN
    blocks = returns(
        I32, ("Y", "B", "G", "n_sink + n_retrieval + n_window"), "numbers of the chosen blocks", -1
    )
    near_len = returns(I64, EACH, "positions of the chosen blocks")
    card = Card(
        axes=(LAYERS, BATCH, KV_HEADS, BLOCKS),
        ties="Equal scores: the earlier block.",
        assumes="No score is NaN; J blocks hold seq_len positions.",
        cost=cost(
            "4*Y*B*G*J + 8*B", "4*Y*B*G*(n_sink + n_retrieval + n_window) + 8*B", "8*Y*B*G*J"
        ),
    )


class GatheredBlocks(Call, number="R23", name="gather_kv_blocks"):
    """Copy the chosen blocks of every layer and KV head, one behind the other, into a pool of their
    own: position i of chosen block j of request b goes to the slot that row b of near_table lists
    at j * block_size + i. Positions behind the text and entries of -1 are not copied.
    """

    block_size = _SIZE
    near_keys = updates(HIDDEN, _NEAR_POOL, "keys of the pool they are copied to")
    near_values = updates(HIDDEN, _NEAR_POOL, "its values")
    keys = _KEYS
    values = reads(HIDDEN, _POOL, "values of the pool")
    blocks = reads(I32, _BLOCKS, "from R22")
    req_to_token = TABLE
    req_pool_indices = POOL_ROW
    seq_len = _SEQ_LEN
    near_table = reads(I32, ("B", "W"), "slots of the pool they are copied to")
    card = Card(
        axes=(
            LAYERS,
            BATCH,
            KV_HEADS,
            HEAD,
            SLOTS,
            SEATED_ROWS,
            SEATED_WIDTH,
            Axis("J", 1, 1 << 18, "chosen blocks of one request"),
            Axis("T", 1, 1 << 28, "slots of the pool they are copied to"),
            Axis("W", 1, 1 << 21, "columns of its table"),
        ),
        limits=(limit("J*block_size", "W", "columns of near_table"),),
        ties="None: copies.",
        assumes=_LISTED + " No slot is listed twice in near_table.",
        cost=cost(
            "2*E*Y*B*G*D*J*block_size + 4*Y*B*G*J",
            "2*E*Y*B*G*D*J*block_size",
            "2*Y*B*G*D*J*block_size",
        ),
    )


class SplicedRun(Call, number="R24", name="splice_drafted_run"):
    """Put a run of tokens between a root and the tree that was drafted behind it. Node i of the
    run, 1 to P, takes token i, depth i and parent i - 1; it has score 1 and is selected if i <=
    run_count, else score 0. Node j >= 1 of the tree becomes node P + j, run_count deeper; children
    of the root hang below the last node of the run. n_chosen grows by run_count. noted_depths are
    depths as a policy learns from them: of the tree as they were, of the run 0.
    """

    node_count = scalar("int", 1, 4096, "nodes of each tree before")
    cumu_tokens = updates(I64, STORE, "token of each node")
    cumu_scores = updates(F32, STORE, "path score of each node")
    cumu_deltas = updates(I64, STORE, "depth of each node")
    prev_indexs = updates(I64, STORE, "parent")
    selected = updates(BOOL, STORE, "the nodes to verify")
    n_chosen = updates(I32, EACH, "how many they are")
    root_tokens = reads(I64, EACH, "token of the root before the run")
    run_tokens = reads(I64, ("B", "P"), "tokens of each run")
    run_count = reads(I64, EACH, "how many they are")
    noted_depths = returns(I64, STORE, "depths to learn from")
    card = Card(
        axes=(BATCH, NODES, Axis("P", 1, MAX_VERIFY, "tokens of a run at most")),
        limits=(limit("node_count + P", "N", "nodes per request"),),
        ties="None: integers and copies.",
        assumes="0 <= run_count <= P; parents of the first node_count nodes are among them.",
        cost=cost("B*(29*N + 8*P)", "B*(37*N + 4)", "6*B*N"),
    )
