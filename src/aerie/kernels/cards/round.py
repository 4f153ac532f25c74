"""The cards of the round: the small operations between K1 to K13 that every round runs."""

from __future__ import annotations

from aerie.kernels.cards.experts import EXPERT_CARDS
from aerie.kernels.cards.growth import DRAFT_LAYER
from aerie.kernels.cards.partial_kv import PARTIAL_CARDS
from aerie.kernels.cards.products import PRODUCT_CARDS
from aerie.kernels.cards.round_choice import CHOICE_CARDS
from aerie.kernels.cards.round_draft import DRAFT_CARDS
from aerie.kernels.cards.round_rows import ROW_CARDS
from aerie.kernels.cards.round_text import TEXT_CARDS
from aerie.kernels.cards.round_verdict import VERDICT_STATE_CARDS
from aerie.kernels.cards.scores import SCORE_CARDS

ROUND_CARDS = (
    *ROW_CARDS,
    *DRAFT_CARDS,
    DRAFT_LAYER,
    *CHOICE_CARDS,
    *VERDICT_STATE_CARDS,
    *TEXT_CARDS,
    *SCORE_CARDS,
    *PARTIAL_CARDS,
    *PRODUCT_CARDS,
    *EXPERT_CARDS,
)
