"""Cases of the drafting kernels K1 to K3; those of K3 are written here."""

from __future__ import annotations

import numpy as np

from aerie.kernels.cases.growth_layer import LAYER_CASES
from aerie.kernels.cases.growth_store import STORE_CASES
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, blank, cast, put, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import COMPAT_ROOT

KERNEL = "calculate_work_deltas"

# Where the old and the new run lie, and how far they spread: apart, or exactly on one value.
_LEVELS = {
    "new_above": (0.5, 0.9, 0.1),
    "new_below": (0.5, 0.01, 0.1),
    "all_equal": (0.5, 0.5, 0.0),
    "all_zero": (0.0, 0.0, 0.0),
}


def _runs(
    rng: Rng,
    batch: int,
    old: int,
    top_k: int,
    verify: int,
    kind: str = "usual",
) -> Inputs:
    """K3 inputs: `old` kept scores, the root first, then `top_k` new ones, both descending."""
    first, second = rng.random((batch, old)), rng.random((batch, top_k))
    if kind == "ties":
        first, second = np.ceil(first * 4) / 4, np.ceil(second * 4) / 4
    elif kind == "wide_range":
        first, second = first**20, second**20
    elif kind in _LEVELS:
        low, high, spread = _LEVELS[kind]
        first, second = low + spread * first, high + spread * second
    first, second = -np.sort(-first, axis=1), -np.sort(-second, axis=1)
    first[:, :1] = COMPAT_ROOT if kind == "compat" else 1.0
    return {
        "work_scores": np.concatenate([first, second], axis=1).astype(np.float32),
        "node_top_k": top_k,
        "verify_num": verify,
    }


# Two free slots, then the old scores from the last on; equal infinities and NaN gain nothing.
_NOT_FINITE = np.array(
    [
        [np.nan, np.nan, np.nan, np.nan, 0.5, np.nan, 0.25, 0.125],
        [1.0, 0.5, 0.25, 0.125, np.nan, 0.5, np.nan, 0.5],
        [np.inf, np.inf, 0.5, -np.inf, 0.5, 0.5, -np.inf, -np.inf],
        [1.0, -np.inf, -np.inf, -np.inf, -np.inf, -0.5, -np.inf, 0.5],
    ]
)

_ROWS = (
    row("b1_first_layer_k8", "first_layer", batch=1, old=1, top_k=8, verify=64),
    row("b1_k1_smallest", "smallest", batch=1, old=1, top_k=1, verify=1),
    row("b128_old64_k8_full", "batch_limit full", batch=128, old=64, top_k=8, verify=64),
    row("b128_old3_k7_free", "batch_limit free_slots", batch=128, old=3, top_k=7, verify=20),
    row("b5_old10_k8_fills_then_displaces", "free_slots full", batch=5, old=10, top_k=8, verify=13),
    row("b5_old12_k8_last_slot_exact", "capacity_exact", batch=5, old=12, top_k=8, verify=20),
    row("b3_old128_k10_longest", "verify_limit full", batch=3, old=128, top_k=10, verify=128),
    row("b3_old1_k10_verify128", "verify_limit free_slots", batch=3, old=1, top_k=10, verify=128),
    row("b4_no_old_scores", "no_old", batch=4, old=0, top_k=5, verify=3),
    row("b4_no_old_verify_room", "no_old free_slots", batch=4, old=0, top_k=5, verify=9),
    row("b4_old1_verify1_k5", "root_only full", batch=4, old=1, top_k=5, verify=1),
    row("b4_old2_verify2_k10_more_new_than_old", "full exhausted", batch=4, old=2, top_k=10,
        verify=2, kind="new_above"),
    row("b0_old4_k3", "empty_batch", batch=0, old=4, top_k=3, verify=8),
    row("b0_no_old_k1", "empty_batch no_old", batch=0, old=0, top_k=1, verify=1),
    row("b6_old8_k7_ties_full", "ties full", batch=6, old=8, top_k=7, verify=8, kind="ties"),
    row("b6_old8_k7_ties_free", "ties", batch=6, old=8, top_k=7, verify=11, kind="ties"),
    row("b3_old5_k5_equal", "ties all_equal", batch=3, old=5, top_k=5, verify=5, kind="all_equal"),
    row("b3_old6_k4_zero", "p_zero", batch=3, old=6, top_k=4, verify=7, kind="all_zero"),
    row("b3_old9_k3_above", "new_above", batch=3, old=9, top_k=3, verify=9, kind="new_above"),
    row("b3_old9_k3_below", "new_below", batch=3, old=9, top_k=3, verify=9, kind="new_below"),
    row("b3_old9_k5_below_free", "new_below free_slots", batch=3, old=9, top_k=5, verify=11,
        kind="new_below"),
    row("b7_old30_k10_wide_range", "wide_range", batch=7, old=30, top_k=10, verify=30,
        kind="wide_range"),
    row("b128_old40_k10_wide_range", "wide_range batch_limit", batch=128, old=40, top_k=10,
        verify=44, kind="wide_range"),
    row("b2_old16_k8_compat", "compat", batch=2, old=16, top_k=8, verify=16, kind="compat"),
    row("b2_old3_k5_certain", "p_one ties", put("work_scores", ..., 1.0), batch=2, old=3, top_k=5,
        verify=4),
    row("b2_old4_k4_subnormal", "p_tiny", put("work_scores", np.s_[:, 4:], 1e-42), batch=2, old=4,
        top_k=4, verify=6),
    row("b3_old33_k3", "odd_lengths", batch=3, old=33, top_k=3, verify=34),
    row("b3_old7_k1", "one_choice", batch=3, old=7, top_k=1, verify=7),
    row("b64_old20_k5_one_request_gains", "mixed", put("work_scores", np.s_[1:, 20:], 0.0),
        batch=64, old=20, top_k=5, verify=20),
    row("b4_old4_k4_not_finite", "score_nan score_infinite", put("work_scores", ..., _NOT_FINITE),
        batch=4, old=4, top_k=4, verify=6),
    row("b1_old4_k4_infinite_gain", "score_infinite", put("work_scores", (0, 4), np.inf), batch=1,
        old=4, top_k=4, verify=4),
    row("b3_old4_k4_all_minus_infinity", "score_infinite all_equal",
        put("work_scores", ..., -np.inf), batch=3, old=4, top_k=4, verify=5),
    row("b2_old5_k5_not_sorted", "unsorted",
        put("work_scores", ..., [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6, 0.1]),
        batch=2, old=5, top_k=5, verify=6),
    row("b2_old3_k5_negative", "p_negative", put("work_scores", np.s_[:, 2:5], -0.5), batch=2,
        old=3, top_k=5, verify=5),
    row("b2_old2_k8_past_float32", "score_huge", put("work_scores", ..., 3e38), batch=2, old=2,
        top_k=8, verify=10),
    row("old_past_verify", "beyond_verify", BOUNDS, batch=2, old=9, top_k=3, verify=8),
    row("k_past_scores", "beyond_run", BOUNDS, setting(node_top_k=9), batch=2, old=5, top_k=3,
        verify=8),
    row("verify_0", "below_verify", BOUNDS, setting(verify_num=0), batch=2, old=1, top_k=3,
        verify=1),
    row("verify_129", "beyond_verify_limit", BOUNDS, batch=2, old=4, top_k=3, verify=129),
    row("k_0", "below_top_k", BOUNDS, setting(node_top_k=0), batch=2, old=4, top_k=3, verify=9),
    row("k_11", "beyond_top_k", BOUNDS, batch=2, old=4, top_k=11, verify=9),
    row("b129", "beyond_batch", BOUNDS, batch=129, old=4, top_k=3, verify=9),
    row("scores_139", "beyond_scores", BOUNDS, batch=1, old=129, top_k=10, verify=128),
    row("scores_flat", "wrong_shape", BOUNDS, blank("work_scores", 8), batch=2, old=4, top_k=3,
        verify=9),
    row("scores_float64", "wrong_dtype", DTYPE, cast("work_scores", "float64"), batch=2, old=4,
        top_k=3, verify=9),
)  # fmt: skip

GROWTH_CASES = (*LAYER_CASES, *STORE_CASES, *cases(KERNEL, _runs, _ROWS))
