"""The cards: K1 to K13 by family, R1 onwards by part of the round."""

from aerie.kernels.cards.commit import COMMIT_CARDS
from aerie.kernels.cards.growth import GROWTH_CARDS
from aerie.kernels.cards.layout import LAYOUT_CARDS
from aerie.kernels.cards.memory import MEMORY_CARDS
from aerie.kernels.cards.replay import REPLAY_CARDS
from aerie.kernels.cards.round import ROUND_CARDS
from aerie.kernels.cards.verdict import VERDICT_CARDS

__all__ = [
    "COMMIT_CARDS",
    "GROWTH_CARDS",
    "LAYOUT_CARDS",
    "MEMORY_CARDS",
    "REPLAY_CARDS",
    "ROUND_CARDS",
    "VERDICT_CARDS",
]
