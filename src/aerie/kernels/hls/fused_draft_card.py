"""The card of a whole draft as one region, and of the attention block that stays on chip."""

from __future__ import annotations

from aerie.kernels.card import Card
from aerie.kernels.cards.axes import BATCH, TABLE_ROWS, TABLE_WIDTH
from aerie.kernels.cards.dtypes import F32, I32, I64, INDPTR
from aerie.kernels.cards.fields import fields, may_read, reads, returns, scalar, updates
from aerie.kernels.hls import drafter_cards as drafter
from aerie.kernels.hls.drafter_cards import F16, any_size, q4_weight
from aerie.kernels.hls.fused_cards import FUSED_GROWTH

LOAD_ATTENTION = Card(
    call=fields(
        "F4",
        "fused_load_attention",
        "fused",
        "The attention block's weights to the chip, where they stay while the model is served.",
        **q4_weight("qkv", "NW", "NS"),
        **q4_weight("output", "NO", "NP"),
    ),
    axes=(
        any_size("NW", "bytes of the projections"),
        any_size("NS", "their scales"),
        any_size("NO", "bytes of the output projection"),
        any_size("NP", "its scales"),
    ),
    cost=drafter.FREE,
    ties="None.",
)

_LEVEL_INPUTS = ("level_probas", "level_tokens")
_GROWTH_INPUTS = {p.name: p for p in FUSED_GROWTH.inputs if p.name not in _LEVEL_INPUTS}
_GROWTH_SCALARS = {entry.name: entry for entry in FUSED_GROWTH.scalars}

FUSED_DRAFT = Card(
    call=fields(
        "F3",
        "fused_draft",
        "fused",
        "A draft round: the features of new tokens through the head (fc, attention,"
        " feed-forward), its vocabulary streamed into running top lists, then level after level"
        " of the tree as in fused_growth, every level fed from the chip. Out come the laid-out"
        " tree and the draft's own keys and values. The head is whole in 16 bits (head_kind 0),"
        " whole in 4 (1), or a sketch of rank RK whose n_candidates best are scored again with"
        " the whole head (2). Without the attention block's weights they are those that"
        " fused_load_attention left on chip.",
        features=reads(F16, ("R", "TH"), "of the target, new tokens of each request"),
        new_tokens=reads(I64, ("R",), "the token after each"),
        new_positions=reads(I64, ("R",), "position of each"),
        row_indptr=reads(I32, INDPTR, "first row of each request"),
        **_GROWTH_INPUTS,
        gain_floor=reads(F32, ("D",), "a slot is fed while it adds this much, by level"),
        embedding=reads(F16, ("VT", "H"), "one row a token"),
        fc=may_read(F16, ("H", "TH"), "16-bit mixer of the features"),
        **q4_weight("fc_q4", "N0", "N1", may_read),
        norms=reads(F32, ("NN",), "embedding, hidden, feed-forward, final"),
        eps=reads(F32, drafter.ONE, "of all norms"),
        cosines=reads(F32, ("NP", "HD"), "by position"),
        sines=reads(F32, ("NP", "HD"), "by position"),
        **q4_weight("qkv", "N2", "N3", may_read),
        **q4_weight("output", "N4", "N5", may_read),
        **q4_weight("gate_up", "N6", "N7"),
        **q4_weight("down", "N8", "N9"),
        head=may_read(F16, ("V", "H"), "one row a token"),
        **q4_weight("head_q4", "N10", "N11", may_read),
        **q4_weight("sketch_in", "N12", "N13", may_read),
        **q4_weight("sketch_out", "N14", "N15", may_read),
        keys=updates(F16, ("S", "C"), "the draft's keys"),
        values=updates(F16, ("S", "C"), "the draft's values"),
        used_widths=returns(I32, ("D",), "slots that each level really fed"),
        rescored=returns(I32, ("D",), "rows of the whole head that each level read again"),
        **{port.name: port for port in FUSED_GROWTH.outputs},
        **_GROWTH_SCALARS,
        Q=scalar("int", 32, 8192, "width of all queries"),
        M=scalar("int", 128, drafter.MAX_DRAFT_WIDTH, "width of the feed-forward"),
        V=scalar("int", 1, 1 << 18, "draft vocabulary"),
        window=drafter.WINDOW,
        head_kind=scalar("int", 0, 2, "whole, 4-bit, or sketched"),
        RK=scalar("int", 0, 8192, "rank of the sketch", default=0),
        n_candidates=scalar("int", 1, drafter.MAX_TOP, "scored again", default=1),
    ),
    axes=(
        BATCH,
        drafter.ROWS,
        any_size("TH", "width of a row of features"),
        drafter.HIDDEN,
        drafter.KEY,
        drafter.EMBEDDED,
        drafter.SLOTS,
        drafter.ANGLES,
        drafter.HALF,
        FUSED_GROWTH.axes[1],
        TABLE_ROWS,
        TABLE_WIDTH,
        any_size("NN", "entries of all norms"),
        *(any_size(f"N{i}", "of a flat weight") for i in range(16)),
    ),
    cost=drafter.FREE,
    ties="As fused_growth; a token's logit decides before its id.",
    refusals=FUSED_GROWTH.refusals,
    companions=(
        ("fc_q4", "fc_q4_scale"),
        ("qkv", "qkv_scale", "output", "output_scale"),
        ("head_q4", "head_q4_scale"),
        ("sketch_in", "sketch_in_scale", "sketch_out", "sketch_out_scale"),
    ),
)

FUSED_DRAFT_CARDS: tuple[Card, ...] = (FUSED_DRAFT, LOAD_ATTENTION)
