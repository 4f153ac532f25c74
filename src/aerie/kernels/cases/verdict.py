"""Cases of the verifying kernels: K5, K6 and the target's own tokens; K5 is written here."""

from __future__ import annotations

from typing import Any

import numpy as np

from aerie.kernels.cases.draws import bounds_of, cycle, draw_logits
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, cast, put
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.verdict_sampling import SAMPLING_CASES
from aerie.kernels.cases.verdict_walk import WALK_CASES

KERNEL = "convert_logits_to_probas"

NAN, INF = np.nan, np.inf
# Greedy and sampled requests side by side: the rule is chosen per request.
_MIXED = (0.0, 0.7, 1.0, 1e-7, 5.0)


def _ragged(
    rng: Rng,
    rows: tuple[int, ...],
    vocab: int,
    heat: Any = 1.0,
    kind: str = "usual",
    batch: int | None = None,
    n_spare: int = 0,
) -> Inputs:
    """K5 inputs: `rows` and `heat` repeat over the batch; `n_spare` rows belong to no request."""
    counts = cycle(rows, len(rows) if batch is None else batch, "int64")
    indptr = bounds_of(counts)
    return {
        "logits": draw_logits(rng, (int(indptr[-1]) + n_spare, vocab), kind),
        "temperature": cycle(heat, len(counts), "float32"),
        "qo_indptr": indptr,
    }


_TWO = {"rows": (3, 2), "vocab": 7}

_ROWS = (
    row("b1_r1_v7", "smallest", rows=(1,), vocab=7),
    row("b1_r1_v1", "vocab_1", rows=(1,), vocab=1, heat=0.7),
    row("b3_r5_v50", "ragged", rows=(3, 5, 1), vocab=50),
    row("b128_r5_v50_mixed", "batch_limit mixed_heat", rows=(5, 2, 8), vocab=50, heat=_MIXED,
        batch=128),
    row("b2_v4096", "vocab_4096", rows=(9, 17), vocab=4096, heat=(0.7, 1.0)),
    row("b2_v32000", "vocab_32000", rows=(3, 2), vocab=32_000, heat=(0.7, 0.0)),
    row("b1_r128_v512", "rows_128", rows=(128,), vocab=512, heat=0.9),
    row("b1_r200_v33", "rows_200", rows=(200,), vocab=33),
    row("b2_v513_odd", "vocab_odd", rows=(3, 3), vocab=513),
    row("b0_v50", "empty_batch", rows=(), vocab=50),
    row("b0_v50_spare_rows", "empty_batch spare_rows", rows=(), vocab=50, n_spare=3),
    row("b3_no_rows", "no_rows", rows=(0, 0, 0), vocab=50),
    row("b4_some_without_rows", "no_rows ragged", rows=(0, 3, 0, 2), vocab=50),
    row("b2_spare_rows_nan", "spare_rows", put("logits", np.s_[5:], NAN), rows=(3, 2), vocab=50,
        n_spare=4),
    row("b5_mixed_heat", "mixed_heat", rows=(4,), vocab=50, heat=_MIXED, batch=5),
    row("b3_greedy", "greedy", rows=(4, 1, 2), vocab=50, heat=0.0),
    row("b3_greedy_ties", "greedy ties", rows=(6, 2, 3), vocab=50, heat=0.0, kind="ties"),
    row("b2_greedy_equal", "greedy ties all_equal", rows=(2, 2), vocab=50, heat=0.0, kind="equal"),
    row("b2_greedy_masked", "greedy masked", rows=(3, 4), vocab=50, heat=1e-7, kind="masked"),
    row("b4_heat_at_greedy_bound", "heat_bound", rows=(2,), vocab=50,
        heat=(9e-7, 1e-6, 1.1e-6, 2e-6), batch=4),
    row("b2_heat_5", "hot", rows=(3, 3), vocab=512, heat=5.0),
    row("b2_heat_1000", "hot flat", rows=(3, 3), vocab=50, heat=1000.0),
    row("b3_ties", "ties", rows=(3, 2, 1), vocab=50, kind="ties"),
    row("b2_equal", "ties all_equal", rows=(2, 1), vocab=512, heat=0.7, kind="equal"),
    row("b3_masked", "masked", rows=(3, 2, 4), vocab=512, heat=0.7, kind="masked"),
    row("b2_one_left", "masked p_one", rows=(2, 3), vocab=50, kind="one_left"),
    row("b2_subnormal", "p_tiny", rows=(2, 2), vocab=50, kind="subnormal"),
    row("b2_far_apart", "far_apart p_one", rows=(3, 2), vocab=50, heat=(0.7, 1.0),
        kind="far_apart"),
    row("b2_huge_finite", "huge", rows=(2, 2), vocab=50, heat=(1.0, 5.0), kind="huge"),
    row("b2_huge_greedy", "huge greedy", rows=(2, 2), vocab=50, heat=0.0, kind="huge"),
    row("b128_one_row_each", "batch_limit decode", rows=(1,), vocab=512, heat=(0.7, 0.0),
        batch=128),
    row("nan_logit", "refused nan", DATA, put("logits", (4, 3), NAN), **_TWO),
    row("nan_logit_greedy", "refused nan greedy", DATA, put("logits", (0, 6), NAN), heat=0.0,
        **_TWO),
    row("infinite_logit", "refused inf", DATA, put("logits", (3, 0), INF), **_TWO),
    row("quotient_overflows", "refused huge", DATA, heat=(1.0, 0.7), kind="huge", **_TWO),
    row("quotients_all_underflow", "refused huge low", DATA, put("logits", 0, -3e38), heat=0.5,
        **_TWO),
    row("all_masked_row", "refused masked", DATA, put("logits", 1, -INF), **_TWO),
    row("all_masked_row_greedy", "refused masked greedy", DATA, put("logits", 4, -INF),
        heat=(1.0, 0.0), **_TWO),
    row("all_masked_and_nan", "refused masked nan", DATA, put("logits", 0, -INF),
        put("logits", (2, 2), NAN), **_TWO),
    row("heat_negative", "refused heat", DATA, heat=(1.0, -0.5), **_TWO),
    row("heat_nan", "refused heat nan", DATA, heat=(NAN, 1.0), **_TWO),
    row("heat_infinite", "refused heat inf", DATA, heat=(1.0, INF), **_TWO),
    row("heat_negative_without_rows", "refused heat no_rows", DATA, heat=(1.0, -1.0), rows=(2, 0),
        vocab=7),
    row("layout_falls", "refused layout", DATA, put("qo_indptr", 1, 6), rows=(3, 2, 4), vocab=7),
    row("layout_past_rows", "refused layout past", DATA, put("qo_indptr", 2, 6), **_TWO),
    row("layout_negative", "refused layout negative", DATA, put("qo_indptr", 0, -1), **_TWO),
    row("b129", "beyond_batch", BOUNDS, rows=(1,), vocab=3, batch=129),
    row("rows_16385", "beyond_rows", BOUNDS, blank("logits", 16_385, 1), **_TWO),
    row("vocab_262145", "beyond_vocab", BOUNDS, blank("logits", 0, 2**18 + 1), rows=(0, 0),
        vocab=7),
    row("vocab_0", "below_vocab", BOUNDS, blank("logits", 0, 0), rows=(0, 0), vocab=7),
    row("layout_of_another_batch", "wrong_shape", BOUNDS, blank("qo_indptr", 4), **_TWO),
    row("logits_float16", "wrong_dtype", DTYPE, cast("logits", "float16"), **_TWO),
    row("layout_int64", "wrong_dtype int64", DTYPE, cast("qo_indptr", "int64"), **_TWO),
)  # fmt: skip

VERDICT_CASES = (
    *cases(KERNEL, _ragged, _ROWS),
    *WALK_CASES,
    *SAMPLING_CASES,
)
