"""Cases of R17: ties, gaps around the limit, what filters leave, and every option of sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aerie.kernels.cases.draws import cycle
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, Spoil, blank, both, cast, put
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.verdict_sampling import EVERYTHING, sampling_inputs

KERNEL = "find_near_ties"
STEP = 2.0**-7  # of bfloat16, between 1 and 2
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def _run(
    rng: Rng,
    run: int = 3,
    limit: float | Sequence[float] = 0.1,
    **sampling: Any,
) -> Inputs:
    """Rows of a sampled call, some of each request; tokens are the highest scores or any."""
    inputs = sampling_inputs(rng, **sampling)
    n_rows, vocab = inputs["logits"].shape
    first, last = inputs["qo_indptr"][:-1].astype(np.int64), inputs["qo_indptr"][1:]
    rows = first[:, None] + np.arange(run)
    tokens = rng.integers(0, vocab, rows.shape)
    is_row = rows < last[:, None]
    if n_rows:
        best = inputs["logits"].argmax(axis=1)[np.minimum(rows, n_rows - 1)]
        tokens = np.where(rng.random(rows.shape) < 0.7, best, tokens)
    return {
        **inputs,
        "rows": np.where(is_row, rows, -1),
        "tokens": tokens,
        "limit": cycle(limit, len(first), "float32"),
    }


def _pair(gap: float, size: float = 12.0) -> Spoil:
    """Two ids stand far above the others, so far apart; the tokens are the first of them."""
    return both(
        put("logits", ..., -60.0),
        put("logits", (..., 5), size),
        put("logits", (..., 9), size - gap),
        put("tokens", ..., 5),
    )


_ONE: dict[str, Any] = {"shapes": ["chain3"], "batch": 3}
# Between 8 and 16 three steps of bfloat16 are 0.1875.
_STEPS: dict[str, Any] = {**_ONE, "limit": 3 * STEP}
_ROWS = (
    row("b2", "usual"),
    row("b1_smallest", "smallest", run=1, shapes=["chain1"], vocab=2),
    row("b1_vocab_1", "vocab_1", shapes=["chain3"], vocab=1),
    row("b0", "empty_batch", shapes=()),
    row("b2_no_rows", "no_rows", shapes=("chain0", "chain0")),
    row("b3_some_without_rows", "no_rows some", shapes=("chain0", "star4", "chain0")),
    row("b128", "batch_limit", shapes=["chain2"], batch=128, vocab=19, run=2),
    row("b1_run_128", "run_limit", shapes=["chain128"], run=128, vocab=13),
    row("b2_spare_rows", "spare_rows", extra={"n_spare": 5}),
    row("b3_tie", "greedy tie", _pair(0.0), heat=0.0, **_STEPS),
    row("b3_below_the_limit", "greedy below", _pair(0.125), heat=0.0, **_STEPS),
    row("b3_at_the_limit", "greedy at", _pair(0.1875), heat=0.0, **_STEPS),
    row("b3_above_the_limit", "greedy above", _pair(0.25), heat=0.0, **_STEPS),
    row("b3_larger_logits", "greedy size_16", _pair(0.25, 16.5), heat=0.0, **_STEPS),
    row("b3_smaller_logits", "greedy size_4", _pair(0.125, 7.5), heat=0.0, **_STEPS),
    row("b3_negative_logits", "greedy negative", _pair(0.1875, -12.0), heat=0.0, **_STEPS),
    row("b3_tie_at_zero", "greedy zero tie", _pair(0.0, 0.0), heat=0.0, **_STEPS),
    row("b3_gap_at_zero", "greedy zero", _pair(1e-3, 0.0), heat=0.0, **_STEPS),
    row("b3_limit_0", "greedy limit_0", kind="ties", heat=0.0, limit=0.0, **_ONE),
    row("b3_limits_mixed", "greedy limits", _pair(0.125), heat=0.0, limit=(0.0, 3 * STEP, STEP),
        **_ONE),
    row("b3_token_behind", "greedy behind", _pair(0.125), put("tokens", ..., 9), heat=0.0,
        **_STEPS),
    row("b3_token_masked", "greedy masked", _pair(0.125), put("logits", (..., 5), -np.inf),
        heat=0.0, **_STEPS),
    row("b3_all_equal", "greedy all_equal", kind="equal", heat=0.0, **_ONE),
    row("b3_one_left", "one_left", kind="one_left", heat=(0.0, 0.7), **_ONE),
    row("b2_without_seed", "greedy no_seed", heat=(0.0, 1e-7), extra={"seed": None}),
    row("b3_noise", "noise", heat=(0.3, 1.0, 5.0), limit=0.2, **_ONE),
    row("b3_noise_all_equal", "noise all_equal", kind="equal", vocab=512, **_ONE),
    row("b4_mixed_heat", "mixed_heat", shapes=["star4"], batch=4, heat=(0, 0.7, 1, 1e-7)),
    row("b3_cold", "noise cold", heat=(2e-6, 1e-3, 0.05), limit=0.05, **_ONE),
    row("b4_sample_index", "sample_index", shapes=["chain2"], batch=4, limit=2.0,
        extra={"seed": 7, "sample_index": (0, 1, 2, 1_000_000)}),
    row("b3_seed_edges", "seeds", limit=0.3, extra={"seed": (-1, _LOWEST, _HIGHEST)}, **_ONE),
    row("b2_positions_at_int64", "position_edge",
        put("positions", np.s_[:4], [_HIGHEST, _LOWEST, -1, 2**32 - 1])),
    row("b5_top_k", "top_k", shapes=["star3"], batch=5, limit=4.0,
        extra={"top_k": (0, 1, 5, 50, 900)}),
    row("b3_top_k_leaves_one", "top_k one", _pair(0.0), limit=9.0, extra={"top_k": 1}, **_ONE),
    row("b3_top_k_leaves_two", "top_k two", _pair(0.0), limit=9.0, extra={"top_k": 2}, **_ONE),
    row("b3_top_p_leaves_one", "top_p one", _pair(1.0), limit=9.0, extra={"top_p": 0.5}, **_ONE),
    row("b3_min_p_leaves_one", "min_p one", _pair(1.0), limit=9.0, extra={"min_p": 0.9}, **_ONE),
    row("b4_top_p", "top_p", shapes=["star4"], batch=4, limit=4.0,
        extra={"top_p": (0.9, 0.5, 1e-6, 1.0)}),
    row("b3_top_p_exact_quarter", "top_p ties", kind="equal", vocab=4, shapes=["chain3"], batch=3,
        limit=9.0, extra={"top_p": (0.25, 0.5, 0.75)}),
    row("b4_min_p", "min_p", shapes=["star4"], batch=4, limit=4.0,
        extra={"min_p": (0.1, 0.0, 0.5, 1.0)}),
    row("b3_top_k_then_top_p", "top_k top_p", limit=4.0,
        extra={"top_k": (4, 8, 2), "top_p": (0.8, 0.6, 0.9)}, **_ONE),
    row("b3_filters_ties", "top_k top_p min_p ties", kind="ties", limit=4.0,
        extra={"top_k": (3, 7, 1), "top_p": (0.9, 0.7, 0.8), "min_p": (0.0, 0.1, 0.0)}, **_ONE),
    row("b2_greedy_filters_do_nothing", "greedy filters", heat=0.0, limit=4.0,
        extra={"top_k": 1, "top_p": 0.2, "min_p": 0.5}),
    row("b4_everything", "everything", shapes=("random12", "chain5", "star9", "binary15"),
        limit=2.0, extra=EVERYTHING),
    row("b4_everything_greedy", "everything greedy", heat=0.0, limit=2.0,
        shapes=("random12", "chain5", "star9", "binary15"), extra=EVERYTHING),
    row("b3_outside", "unused outside", put("rows", np.s_[0, :2], [-2, _HIGHEST]),
        put("tokens", np.s_[1, :2], [50, -1]), heat=0.0, kind="equal", **_ONE),
    row("b3_no_row", "unused", put("rows", ..., -1), kind="equal", **_ONE),
    *(row(f"b1_vocab_{vocab}", f"block vocab_{vocab}", shapes=["chain2"], vocab=vocab, run=2,
          limit=1.0, extra={"top_p": 0.9}) for vocab in (2047, 2048, 2049)),
    row("b2_vocab_10007", "prime", vocab=10_007, limit=0.1),
    row("b2_vocab_10007_filters", "prime filters", vocab=10_007, limit=1.0,
        extra={"top_k": (40, 0), "top_p": (0.95, 0.9)}),
    row("b129", "beyond_batch", BOUNDS, shapes=["chain1"], batch=129, vocab=7),
    row("run_129", "beyond_run", BOUNDS, run=129, vocab=7),
    row("rows_16385", "beyond_rows", BOUNDS,
        blank("logits", 16_385, 1), blank("positions", 16_385), vocab=7),
    row("vocab_262145", "beyond_vocab", BOUNDS, blank("logits", 0, 2**18 + 1),
        shapes=("chain0", "chain0")),
    row("stops_65", "beyond_stops", BOUNDS, extra={"floor": 9, "n_stops": 65}),
    row("tokens_of_another_run", "wrong_shape", BOUNDS, blank("tokens", 2, 4)),
    row("limits_of_another_batch", "wrong_shape batch", BOUNDS, blank("limit", 3)),
    row("limit_float64", "wrong_dtype", DTYPE, cast("limit", "float64")),
    row("rows_int32", "wrong_dtype int32", DTYPE, cast("rows", "int32")),
)  # fmt: skip

NEAR_CASES = cases(KERNEL, _run, _ROWS)
