"""Cases of a round's choice, R8 to R10: trees of every shape, ties, offers and notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aerie.kernels.cards.axes import KNOTS
from aerie.kernels.cases.forests import Forest, left_over, plant
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, blank, cast, put
from aerie.kernels.cases.table import Array, Inputs, Rng, cases, row

BEST, PLANNED, NOTED = "choose_best_nodes", "choose_planned_nodes", "note_chosen_nodes"
_MIXED = ("ngram20", "star9", "chain6", "binary15", "comb9")


def _forest(
    rng: Rng,
    trees: Sequence[str] = _MIXED,
    batch: int | None = None,
    kind: str = "usual",
    size: int | None = None,
    leftover: bool = False,
) -> Forest:
    """Trees of the shapes in turn, one per request."""
    n_trees = len(trees) if batch is None else batch
    shapes = [trees[index % len(trees)] for index in range(n_trees)]
    forest = plant(rng, shapes, kind, size=size)
    if leftover:
        left_over(rng, forest)
    return forest


def _choice(rng: Rng, forest: Forest, verify: int) -> Inputs:
    """What R8 and R9 share; the outputs hold what the round before left in them."""
    batch = len(forest.scores)
    return {
        "cumu_scores": forest.scores,
        "selected": rng.random(forest.scores.shape) < 0.5,
        "n_chosen": rng.integers(0, 99, batch).astype(np.int32),
        "verify_num": verify,
    }


def _best(rng: Rng, verify: int = 6, **trees: Any) -> Inputs:
    """R8 inputs."""
    return _choice(rng, _forest(rng, **trees), verify)


# Trees that R8 and R9 choose from: what the two share.
_CHOICES = (
    row("b5_mixed", "mixed"),
    row("b1_root", "smallest root_only", trees=("chain1",), verify=1),
    row("b1_root_of_many", "root_only", trees=("random40",), verify=1),
    row("b1_chain", "chain", trees=("chain9",)),
    row("b1_star", "star", trees=("star9",)),
    row("b1_all_fit", "full", trees=("random13",), verify=128),
    row("b1_one_less_than_all", "one_out", trees=("random13",), verify=12),
    row("b1_exactly_all", "verify_exact", trees=("random13",), verify=13),
    row("b3_ties", "ties", trees=("random31", "comb31", "star31"), kind="ties"),
    row("b3_all_equal", "ties all_equal", trees=("random31", "binary31"), kind="ones"),
    row("b3_some_without_score", "p_zero ties", trees=("random31",), kind="some_zero"),
    row("b2_nothing_drafted", "p_zero none", trees=("star9", "chain4"), kind="zero"),
    row("b4_tiny", "p_tiny", trees=("random20",), batch=4, kind="tiny"),
    row("b0", "empty_batch", batch=0),
    row("b128", "batch_limit", batch=128, verify=5),
    row("b128_ties", "batch_limit ties", batch=128, kind="ties", verify=7),
    row("b2_left_over", "left_over", trees=("random20", "chain1"), leftover=True),
    row("b2_128_rows", "verify_limit", trees=("random300",), batch=2, verify=128),
    row("b1_nodes_4096", "capacity_limit", trees=("random4096",), size=4096, verify=64),
    row("b1_nodes_257", "not_a_power_of_two", trees=("random257",), size=257),
    row("b7_prime", "prime", trees=("ngram37", "random23"), batch=7, verify=11),
)
_WRONG = (
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("nodes_4097", "beyond_nodes", BOUNDS, trees=("chain2",), size=4097),
    row("verify_0", "below_verify", BOUNDS, verify=0),
    row("verify_129", "beyond_verify", BOUNDS, verify=129),
    row("choice_of_other_nodes", "wrong_shape", BOUNDS, blank("selected", 5, 9)),
    row("counts_of_another_batch", "wrong_shape batch", BOUNDS, blank("n_chosen", 4)),
    row("scores_float64", "wrong_dtype", DTYPE, cast("cumu_scores", "float64")),
    row("choice_uint8", "wrong_dtype uint8", DTYPE, cast("selected", "uint8")),
    row("counts_int64", "wrong_dtype int64", DTYPE, cast("n_chosen", "int64")),
)
_BEST_ROWS = (*_CHOICES, *_WRONG)


def _corrections(rng: Rng, learnt: str, depths: int) -> Array:
    """What a calibration adds: nothing yet, a little at each knot, or far too much."""
    knots = np.sort(rng.random((depths, KNOTS)), axis=1)
    scale = {"nothing": 0.0, "some": 0.2, "much": 4.0}[learnt]
    return (scale * (knots - 0.5)).reshape(-1)


def _planned(
    rng: Rng,
    verify: int = 6,
    sizes: Sequence[int] = (1, 2, 3, 5, 9, 40),
    offer: tuple[float, Sequence[float] | None] = (40.0, None),
    learnt: tuple[str, int] = ("some", 8),
    deepest: int | None = None,
    **trees: Any,
) -> Inputs:
    """R9 inputs: `sizes` are rows beyond the roots less one; `offer` is the rate and the seconds of
    each (None: rising), `learnt` how much was and for how many depths."""
    forest = _forest(rng, **trees)
    rate, seconds = offer
    costs = np.cumsum(rng.random(len(sizes))) * 0.01 if seconds is None else np.array(seconds)
    return {
        **_choice(rng, forest, verify),
        "cumu_deltas": forest.depths,
        "prev_indexs": forest.parents,
        "row_sizes": np.array(sizes, np.int64) - 1 + max(len(forest.scores), 1),
        "numbers": np.concatenate(([rate], costs, _corrections(rng, *learnt))),
        "deepest": forest.deepest if deepest is None else deepest,
    }


_CHEAP, _DEAR = (0.0,) * 6, (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
_PLANNED_ROWS = (
    *_CHOICES,
    row("b5_nothing_learnt", "uncalibrated", learnt=("nothing", 8)),
    row("b5_nothing_learnt_ties", "uncalibrated ties", learnt=("nothing", 8), kind="ties"),
    row("b5_far_off", "clipped", learnt=("much", 8)),
    row("b5_far_off_ties", "clipped ties", learnt=("much", 8), kind="ties"),
    row("b5_time_is_free", "free", offer=(40.0, _CHEAP)),
    row("b5_time_is_dear", "dear", offer=(1e3, _DEAR)),
    row("b5_a_step_down", "not_monotone", offer=(40.0, (0.01, 0.05, 0.06, 0.02, 0.07, 0.03))),
    row("b5_not_on_offer", "inf", offer=(40.0, (0.01, np.inf, 0.02, 0.03, np.inf, np.inf))),
    row("b5_no_rate", "rate_0", offer=(0.0, None)),
    row("b5_no_rate_not_on_offer", "rate_0 inf",
        offer=(0.0, (0.1, np.inf, 0.1, np.inf, 0.1, np.inf))),
    row("b5_nothing_on_offer", "inf none", offer=(40.0, (np.inf,) * 6)),
    row("b1_one_size", "one_size", trees=("random30",), sizes=(8,)),
    row("b3_every_size", "many_sizes", trees=("random30",), batch=3, sizes=tuple(range(1, 80))),
    row("b2_sizes_beyond_the_nodes", "sizes_beyond", trees=("chain3",), batch=2,
        sizes=(1, 4, 50, 900)),
    row("b3_one_depth", "depths_1", learnt=("some", 1), trees=("chain12", "random20", "star5")),
    row("b3_deeper_than_learnt", "depths_2", learnt=("some", 2),
        trees=("chain12", "random20", "star5")),
    row("b2_chain_of_128", "depth_127", trees=("chain128",), batch=2, verify=128, kind="ones"),
    row("b2_bound_is_loose", "loose", trees=("random20", "chain5"), deepest=127),
    row("b2_merged_paths", "merged", trees=("ngram60", "ngram31"), verify=30, sizes=(1, 9, 33)),
    *_WRONG,
    row("deepest_0", "below_depth", BOUNDS, deepest=0),
    row("deepest_128", "beyond_depth", BOUNDS, deepest=128),
    row("sizes_16385", "beyond_sizes", BOUNDS, blank("row_sizes", 16_385)),
    row("numbers_32769", "beyond_numbers", BOUNDS, blank("numbers", 32_769)),
    row("numbers_without_knots", "beyond_offer", BOUNDS, blank("numbers", 6 + KNOTS)),
    row("half_a_row_of_knots", "beyond_knots", BOUNDS, blank("numbers", 16 + KNOTS)),
    row("numbers_float32", "wrong_dtype float32", DTYPE, cast("numbers", "float32")),
)  # fmt: skip


def _noted(
    rng: Rng,
    chosen: int | Sequence[int] = (6, 1, 4, 9),
    noted: int = 16,
    **trees: Any,
) -> Inputs:
    """R10 inputs: the best `chosen[b]` nodes; the notes hold those of the round before."""
    forest = _forest(rng, leftover=True, **trees)
    batch = len(forest.scores)
    selected = np.zeros(forest.scores.shape, bool)
    for b, n_best in enumerate(np.resize(chosen, batch)):
        selected[b, np.argsort(-forest.scores[b], kind="stable")[:n_best]] = True
    selected &= forest.scores > 0

    def old() -> Array:
        return rng.integers(-9, 99, (batch, noted)).astype(np.int32)

    return {
        "cumu_scores": forest.scores,
        "cumu_deltas": forest.depths,
        "cumu_tokens": forest.tokens,
        "prev_indexs": forest.parents,
        "selected": selected,
        "noted_scores": old().astype(np.float32),
        "noted_depths": old(),
        "noted_tokens": old(),
        "noted_parents": old(),
    }


_NOTED_ROWS = (
    row("b5_mixed", "mixed"),
    row("b1_root", "smallest root_only", trees=("chain1",), chosen=1, noted=1),
    row("b1_root_of_many", "root_only", trees=("random30",), chosen=1),
    row("b1_chain", "chain", trees=("chain9",), chosen=9),
    row("b1_star", "star", trees=("star9",), chosen=7),
    row("b1_everything", "full", trees=("random16",), chosen=16),
    row("b3_deep", "deep", trees=("chain40", "comb31", "ngram50"), chosen=40, noted=64),
    row("b0", "empty_batch", batch=0),
    row("b128", "batch_limit", batch=128),
    row("b128_one_noted", "batch_limit rows_1", batch=128, noted=1, chosen=1),
    row("b2_more_than_noted", "cut", trees=("random40",), batch=2, chosen=20, noted=7),
    row("b3_one_more_than_noted", "cut one_more", trees=("random40",), batch=3, chosen=8, noted=7),
    row("b3_exactly_noted", "capacity_exact", trees=("random40",), batch=3, chosen=7, noted=7),
    row("b2_128_rows", "verify_limit", trees=("random200",), batch=2, chosen=128, noted=128),
    row("b2_127_rows", "prime", trees=("random200",), batch=2, chosen=127, noted=128),
    row("b1_nodes_4096", "capacity_limit", trees=("random4096",), size=4096, chosen=33, noted=40),
    row("b1_nodes_257", "not_a_power_of_two", trees=("random257",), size=257, chosen=12),
    row("b3_nothing_chosen", "none", put("selected", np.s_[:], False), trees=("random20",),
        batch=3),
    row("b3_one_without_a_choice", "none mixed", put("selected", 1, False), trees=("random20",),
        batch=3),
    row("b2_large_tokens", "tokens_edge", put("cumu_tokens", np.s_[:, 0], 2**31 - 1),
        trees=("random20",), batch=2),
    row("b7_prime", "prime mixed", batch=7, noted=13),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("nodes_4097", "beyond_nodes", BOUNDS, trees=("chain2",), size=4097),
    row("noted_129", "beyond_noted", BOUNDS, noted=129),
    row("noted_0", "below_noted", BOUNDS, noted=0),
    row("notes_of_other_rows", "wrong_shape", BOUNDS, blank("noted_depths", 5, 17)),
    row("tokens_of_other_nodes", "wrong_shape nodes", BOUNDS, blank("cumu_tokens", 5, 9)),
    row("notes_int64", "wrong_dtype", DTYPE, cast("noted_tokens", "int64")),
    row("scores_float64", "wrong_dtype float64", DTYPE, cast("noted_scores", "float64")),
    row("choice_uint8", "wrong_dtype uint8", DTYPE, cast("selected", "uint8")),
)  # fmt: skip

CHOICE_CASES = (
    *cases(BEST, _best, _BEST_ROWS),
    *cases(PLANNED, _planned, _PLANNED_ROWS),
    *cases(NOTED, _noted, _NOTED_ROWS),
)
