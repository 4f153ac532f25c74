"""The card of a whole draft as one region, and of the attention block that stays on chip."""

from __future__ import annotations

from aerie.kernels.card import Card, Scalar
from aerie.kernels.cards.axes import (
    BATCH,
    F32,
    I32,
    I64,
    TABLE_ROWS,
    TABLE_WIDTH,
    may_read,
    reads,
    returns,
    updates,
)
from aerie.kernels.hls.drafter_cards import (
    ANGLES,
    EMBEDDED,
    F16,
    FREE,
    HALF,
    HIDDEN,
    KEY,
    MAX_DRAFT_WIDTH,
    MAX_TOP,
    ONE,
    ROWS,
    SLOTS,
    WINDOW,
    any_size,
    q4_weight,
)
from aerie.kernels.hls.fused_cards import FUSED_GROWTH

LOAD_ATTENTION = Card(
    "F4",
    "fused_load_attention",
    "fused",
    1,
    "The attention block's weights to the chip, where they stay while the model is served.",
    (
        any_size("NW", "bytes of the projections"),
        any_size("NS", "their scales"),
        any_size("NO", "bytes of the output projection"),
        any_size("NP", "its scales"),
    ),
    (*q4_weight("qkv", "NW", "NS"), *q4_weight("output", "NO", "NP")),
    "None.",
    FREE,
)

_LEVEL_INPUTS = ("level_probas", "level_tokens")
_GROWTH_INPUTS = tuple(p for p in FUSED_GROWTH.inputs if p.name not in _LEVEL_INPUTS)
_GROWTH_SCALARS = FUSED_GROWTH.scalars

FUSED_DRAFT = Card(
    "F3",
    "fused_draft",
    "fused",
    1,
    "A draft round: the features of new tokens through the head (fc, attention, feed-forward), its"
    " vocabulary streamed into running top lists, then level after level of the tree as in"
    " fused_growth, every level fed from the chip. Out come the laid-out tree and the draft's own"
    " keys and values. The head is whole in 16 bits (head_kind 0), whole in 4 (1), or a sketch of"
    " rank RK whose n_candidates best are scored again with the whole head (2). Without the"
    " attention block's weights they are those that fused_load_attention left on chip.",
    (
        BATCH,
        ROWS,
        any_size("TH", "width of a row of features"),
        HIDDEN,
        KEY,
        EMBEDDED,
        SLOTS,
        ANGLES,
        HALF,
        FUSED_GROWTH.axes[1],
        TABLE_ROWS,
        TABLE_WIDTH,
        any_size("NN", "entries of all norms"),
        *(any_size(f"N{i}", "of a flat weight") for i in range(16)),
    ),
    (
        reads("features", F16, ("R", "TH"), "of the target, new tokens of each request"),
        reads("new_tokens", I64, ("R",), "the token after each"),
        reads("new_positions", I64, ("R",), "position of each"),
        reads("row_indptr", I32, ("B+1",), "first row of each request"),
        *_GROWTH_INPUTS,
        reads("gain_floor", F32, ("D",), "a slot is fed while it adds this much, by level"),
        reads("embedding", F16, ("VT", "H"), "one row a token"),
        may_read("fc", F16, ("H", "TH"), "16-bit mixer of the features"),
        *q4_weight("fc_q4", "N0", "N1", optional=True),
        reads("norms", F32, ("NN",), "embedding, hidden, feed-forward, final"),
        reads("eps", F32, ONE, "of all norms"),
        reads("cosines", F32, ("NP", "HD"), "by position"),
        reads("sines", F32, ("NP", "HD"), "by position"),
        *q4_weight("qkv", "N2", "N3", optional=True),
        *q4_weight("output", "N4", "N5", optional=True),
        *q4_weight("gate_up", "N6", "N7"),
        *q4_weight("down", "N8", "N9"),
        may_read("head", F16, ("V", "H"), "one row a token"),
        *q4_weight("head_q4", "N10", "N11", optional=True),
        *q4_weight("sketch_in", "N12", "N13", optional=True),
        *q4_weight("sketch_out", "N14", "N15", optional=True),
        updates("keys", F16, ("S", "C"), "the draft's keys"),
        updates("values", F16, ("S", "C"), "the draft's values"),
        returns("used_widths", I32, ("D",), "slots that each level really fed"),
        returns("rescored", I32, ("D",), "rows of the whole head that each level read again"),
        *FUSED_GROWTH.outputs,
    ),
    "As fused_growth; a token's logit decides before its id.",
    FREE,
    scalars=(
        *_GROWTH_SCALARS,
        Scalar("Q", "int", 32, 8192, "width of all queries"),
        Scalar("M", "int", 128, MAX_DRAFT_WIDTH, "width of the feed-forward"),
        Scalar("V", "int", 1, 1 << 18, "draft vocabulary"),
        WINDOW,
        Scalar("head_kind", "int", 0, 2, "whole, 4-bit, or sketched"),
        Scalar("RK", "int", 0, 8192, "rank of the sketch", default=0),
        Scalar("n_candidates", "int", 1, MAX_TOP, "scored again", default=1),
    ),
    refusals=FUSED_GROWTH.refusals,
    companions=(
        ("fc_q4", "fc_q4_scale"),
        ("qkv", "qkv_scale", "output", "output_scale"),
        ("head_q4", "head_q4_scale"),
        ("sketch_in", "sketch_in_scale", "sketch_out", "sketch_out_scale"),
    ),
)

FUSED_DRAFT_CARDS: tuple[Card, ...] = (FUSED_DRAFT, LOAD_ATTENTION)
