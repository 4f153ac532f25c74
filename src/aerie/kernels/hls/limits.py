"""What the hardware holds, where that is less than the cards ask for."""

from __future__ import annotations

from collections.abc import Mapping

from aerie.kernels.card import Limit
from aerie.kernels.formula import Formula

MAX_CANDIDATES = 64
MAX_HIDDEN = 4096

_CANDIDATES = Limit(Formula("W*K"), Formula(str(MAX_CANDIDATES)), "candidates the sorter holds")
_HIDDEN = Limit(Formula("H"), Formula(str(MAX_HIDDEN)), "hidden size the row buffers hold")

LIMITS: Mapping[str, tuple[Limit, ...]] = {
    "draft_tree_layer_score_index_gen_op": (_CANDIDATES, _HIDDEN),
    "update_cumu_draft_state": (_CANDIDATES,),
}
