"""Cases of sample_target_tokens: every sampling option alone and together, seeds and positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aerie.kernels.cases.draws import cycle, draw_logits
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, blank, both, cast, put
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import lay_out

KERNEL = "sample_target_tokens"

NAN, INF = np.nan, np.inf
_WHOLE = ("seed", "sample_index", "top_k")


def sampling_inputs(
    rng: Rng,
    shapes: Sequence[str] = ("chain3", "star4"),
    vocab: int = 50,
    heat: Any = 0.7,
    kind: str = "usual",
    batch: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Inputs:
    """Inputs of a tree per request; `extra` holds options, repeated over the batch.

    `prompt_counts`, `output_counts`, `logit_bias` and `path` are drawn when named there; `floor`
    holds the floors, counted from the position of each request's first row, and `n_stops` the
    number of stop tokens.
    """
    options = {"seed": (1, 2, 3), **(extra or {})}
    layout = lay_out(rng, shapes, vocab, options.pop("n_spare", 0), batch)
    n_requests = len(layout.rows)
    start = np.append(rng.integers(0, 3000, n_requests), 0)
    request = np.repeat(np.arange(n_requests + 1), np.append(layout.rows, 0))
    request = np.append(request, np.full(len(layout.tokens) - len(request), n_requests))
    inputs: Inputs = {
        "logits": draw_logits(rng, (len(layout.tokens), vocab), kind),
        "positions": start[request] + layout.depths,
        "temperature": cycle(heat, n_requests, "float32"),
        "qo_indptr": layout.indptr,
    }
    if options.pop("path", False):
        inputs |= {"draft_tokens": layout.tokens, "ancestor_bits": layout.bits}
    for name in ("prompt_counts", "output_counts"):
        if options.pop(name, False):
            inputs[name] = rng.poisson(0.4, (n_requests, vocab)).astype(np.int32)
    if options.pop("logit_bias", False):
        bias = rng.standard_normal((n_requests, vocab)) * 2
        bias[:, 1:][rng.random((n_requests, vocab - 1)) < 0.2] = -INF
        inputs["logit_bias"] = bias.astype(np.float32)
    if (floor := options.pop("floor", None)) is not None:
        # Every other entry is none; id 0 stays, so that no row is masked altogether.
        stops = rng.integers(1, max(vocab, 2), (n_requests, options.pop("n_stops", 8)))
        stops[:, 1::2] = -1
        inputs["stop_tokens"] = stops
        inputs["floor_position"] = start[:-1] + cycle(floor, n_requests, "int64")
    for name, values in options.items():
        if values is not None:
            inputs[name] = cycle(values, n_requests, "int64" if name in _WHOLE else "float32")
    return inputs


def _around_zero(inputs: Inputs) -> None:
    """Few small values of both signs: the two zeros are equal, and so are many others."""
    logits = inputs["logits"]
    few = np.array([0.0, -0.0, 0.25, -0.25, 0.5], np.float32)
    logits[:] = np.resize(few, logits.shape)


_TREES = ("random12", "chain5", "star9", "binary15")
_COUNTS = {"prompt_counts": True, "output_counts": True}
_PENALTIES = {
    "repetition_penalty": (1.2, 0.8, 1.0),
    "presence_penalty": (0.5, 0.0, -0.4),
    "frequency_penalty": (0.3, -0.2, 0.0),
}
EVERYTHING = {
    **_PENALTIES, **_COUNTS, "logit_bias": True, "path": True, "floor": (3, 0, 9),
    "sample_index": (0, 3),
    "top_k": (0, 20, 5), "top_p": (0.9, 1.0, 0.6), "min_p": (0.0, 0.05),
}  # fmt: skip

_ROWS = (
    row("b1_r1_v7", "smallest", shapes=["chain1"], vocab=7),
    row("b1_v1", "vocab_1", shapes=["chain3"], vocab=1),
    row("b4_trees", "trees", shapes=_TREES),
    row("b128_trees_mixed_heat", "trees batch_limit mixed_heat", shapes=("chain3", "star5"),
        heat=(0, 0.7, 1, 1e-7, 5), batch=128),
    row("b128_decode", "decode batch_limit", shapes=["chain1"], batch=128, vocab=512),
    row("b2_v513_odd", "vocab_odd", vocab=513),
    row("b2_v4096", "vocab_4096", vocab=4096, shapes=("random9", "star5")),
    row("b1_v32000", "vocab_32000", vocab=32_000, shapes=["chain3"], heat=1.0),
    row("b1_v32000_everything", "vocab_32000 everything", vocab=32_000, shapes=["comb5"],
        extra=EVERYTHING),
    row("b1_rows_128", "rows_128", shapes=["random128"]),
    row("b0", "empty_batch", shapes=()),
    row("b0_everything", "empty_batch everything", shapes=(), extra=EVERYTHING),
    row("b3_some_without_rows", "no_rows", shapes=("chain0", "star4", "chain0")),
    row("b2_spare_rows_nan", "spare_rows", put("logits", np.s_[7:], NAN), extra={"n_spare": 5}),
    row("b3_greedy", "greedy", shapes=_TREES[:3], heat=0.0),
    row("b2_greedy_without_seed", "greedy no_seed", heat=(0.0, 1e-7), extra={"seed": None}),
    row("b2_greedy_ties", "greedy ties", heat=0.0, kind="ties"),
    row("b2_greedy_filters_do_nothing", "greedy filters", heat=0.0,
        extra={"top_k": 3, "top_p": 0.2, "min_p": 0.5}),
    row("b3_heat_at_greedy_bound", "heat_bound", shapes=["chain2"], batch=3,
        heat=(9e-7, 1e-6, 2e-6)),
    row("b2_heat_5", "hot", heat=5.0),
    row("b2_equal_logits", "ties all_equal", kind="equal", vocab=512),
    row("b2_masked", "masked", kind="masked", vocab=512),
    row("b2_one_left", "masked p_one", kind="one_left"),
    row("b2_far_apart", "far_apart", kind="far_apart"),
    row("b6_seed_edges", "seeds", shapes=["chain3"], batch=6,
        extra={"seed": (0, -1, 2**63 - 1, -(2**63), 2**32, 0xFFFFFFFF)}),
    row("b4_same_seed_same_rows", "seeds repeat", put("logits", ..., 0.0), shapes=["chain1"],
        batch=4, extra={"seed": 7}),
    row("b4_sample_index", "sample_index", shapes=["chain2"], batch=4,
        extra={"seed": 7, "sample_index": (0, 1, 2, 1_000_000)}),
    row("b2_long_positions", "long_context",
        put("positions", np.s_[:3], [65_535, 65_536, 1_000_000])),
    row("b2_position_zero", "position_0", put("positions", ..., 0)),
    row("b5_top_k", "top_k", shapes=["star3"], batch=5, extra={"top_k": (0, 1, 5, 50, 900)}),
    row("b3_top_k_ties", "top_k ties", shapes=_TREES[:3], kind="ties", extra={"top_k": (3, 7, 1)}),
    row("b3_top_k_around_zero", "top_k ties zeros", _around_zero, shapes=_TREES[:3],
        extra={"top_k": (9, 20, 30)}),
    row("b2_top_k_both_zeros", "top_k ties zeros_alone", put("logits", ..., 0.0),
        put("logits", np.s_[:, ::2], -0.0), extra={"top_k": (1, 2)}),
    row("b4_top_p", "top_p", shapes=["star4"], batch=4, extra={"top_p": (0.9, 0.5, 1e-6, 1.0)}),
    row("b3_top_p_exact_quarter", "top_p ties strict", kind="equal", vocab=4, shapes=["chain3"],
        batch=3, extra={"top_p": (0.25, 0.5, 0.75)}),
    row("b4_min_p", "min_p", shapes=["star4"], batch=4, extra={"min_p": (0.1, 0.0, 0.5, 1.0)}),
    row("b3_top_k_then_top_p", "top_k top_p", shapes=_TREES[:3],
        extra={"top_k": (4, 8, 2), "top_p": (0.8, 0.6, 0.9)}),
    row("b3_filters_together", "top_k top_p min_p", shapes=_TREES[:3], vocab=512,
        extra={"top_k": (40, 8, 0), "top_p": (0.9, 1.0, 0.7), "min_p": (0.02, 0.1, 0.0)}),
    row("b3_filters_masked", "top_k top_p min_p masked", shapes=_TREES[:3], kind="masked",
        extra={"top_k": (4, 48, 0), "top_p": (0.9, 0.8, 0.7), "min_p": (0.02, 0.0, 0.1)}),
    row("b3_repetition", "repetition", shapes=_TREES[:3],
        extra={"repetition_penalty": (1.3, 0.7, 1.0), **_COUNTS}),
    row("b3_repetition_greedy", "repetition greedy", shapes=_TREES[:3], heat=0.0,
        extra={"repetition_penalty": (1.3, 2.0, 1.0), **_COUNTS}),
    row("b3_repetition_of_the_prompt", "repetition prompt", shapes=_TREES[:3],
        extra={"repetition_penalty": 1.5, "prompt_counts": True}),
    row("b3_presence", "presence", shapes=_TREES[:3],
        extra={"presence_penalty": (0.6, -0.5, 2.0), **_COUNTS}),
    row("b3_frequency", "frequency", shapes=_TREES[:3],
        extra={"frequency_penalty": (0.6, -0.5, 2.0), **_COUNTS}),
    row("b3_penalties_of_the_path", "presence frequency repetition path", shapes=_TREES[:3],
        extra={**_PENALTIES, "path": True}),
    row("b2_path_repeats_a_token", "frequency path", put("draft_tokens", ..., 9), heat=0.0,
        shapes=("chain5", "chain7"), extra={"frequency_penalty": 1.5, "path": True}),
    row("b2_path_rows_128", "path rows_128", shapes=("chain128", "random100"),
        extra={**_PENALTIES, "path": True}),
    row("b3_counts_at_int32", "presence frequency repetition path counts_edge",
        put("output_counts", np.s_[:, ::2], 2**31 - 1),
        put("output_counts", np.s_[:, 1::2], -(2**31)), shapes=_TREES[:3], heat=0.0,
        extra={**_PENALTIES, **_COUNTS, "path": True}),
    row("b2_positions_at_int64", "position_edge",
        put("positions", np.s_[:4], [2**63 - 1, -(2**63), -1, 2**32 - 1])),
    row("b2_path_root_outside", "path root_token", put("draft_tokens", 0, 60_000),
        extra={**_PENALTIES, "path": True}),
    row("b2_path_without_penalty", "path", extra={"path": True}),
    row("b2_path_stray_bits", "path stray_bits", put("draft_tokens", 3, 60_000),
        put("ancestor_bits", (np.s_[:3], 0), 0b1111), extra={**_PENALTIES, "path": True}),
    row("b2_counts_without_penalty", "counts", extra=_COUNTS),
    row("b2_path_stray_bits_count_nothing", "frequency path stray_bits",
        both(put("draft_tokens", 3, 9), put("ancestor_bits", (np.s_[:3], 0), 0b1111),
             put("logits", (np.s_[:3], 9), 50.0)),
        heat=0.0, extra={"frequency_penalty": 100.0, "path": True}),
    row("b3_bias", "bias", shapes=_TREES[:3], extra={"logit_bias": True}),
    row("b2_bias_forces_a_token", "bias p_one", put("logit_bias", np.s_[:, 17], 1e6),
        extra={"logit_bias": True}),
    row("b4_floor", "floor", shapes=_TREES, extra={"floor": (0, 1, 2, 99), "n_stops": 64}),
    row("b4_floor_greedy", "floor greedy", shapes=_TREES, heat=0.0,
        extra={"floor": (0, 1, 2, 99), "n_stops": 64}),
    row("b2_floor_masks_the_best", "floor greedy p_one", put("logits", (..., 7), 40.0),
        put("stop_tokens", (..., 0), 7), heat=(0.0, 0.7), shapes=("chain5", "comb5"),
        extra={"floor": 3}),
    row("b2_floor_of_a_nan", "floor nan", put("logits", (..., 7), NAN),
        put("stop_tokens", (..., 0), 7), extra={"floor": 99}),
    row("b2_floor_over_a_bias", "floor bias", put("logit_bias", (..., 7), INF),
        put("stop_tokens", (..., 0), 7), extra={"floor": 99, "logit_bias": True}),
    row("b2_floor_ids_outside", "floor outside",
        put("stop_tokens", ..., [50, 51, -2, 2**40, -(2**63), 2**63 - 1, 2**32 + 3, -1]),
        extra={"floor": 99}),
    row("b4_floor_edges", "floor floor_edge position_edge", put("logits", (..., 7), 40.0),
        put("stop_tokens", (..., 0), 7),
        put("floor_position", ..., [2**63 - 1, 2**63 - 1, -(2**63), 0]),
        put("positions", ..., [2**63 - 1, 2**63 - 3, -(2**63), -1]), shapes=["chain1"], batch=4,
        extra={"floor": 0}),
    row("b2_floor_without_stops", "floor no_stops", extra={"floor": 9, "n_stops": 0}),
    row("b1_v1_floor_reached", "floor vocab_1", put("stop_tokens", ..., 0), shapes=["chain3"],
        vocab=1, extra={"floor": 0}),
    row("b4_everything", "everything", shapes=_TREES, extra=EVERYTHING),
    row("b4_everything_mixed_heat", "everything mixed_heat", shapes=_TREES, heat=(0, 0.7, 5, 1),
        extra=EVERYTHING),
    row("b128_everything", "everything batch_limit", shapes=("chain2", "star3"), batch=128,
        extra=EVERYTHING),
)  # fmt: skip

_BAD_OPTIONS = (
    ("heat_negative", "temperature", -0.5), ("heat_nan", "temperature", NAN),
    ("heat_infinite", "temperature", INF), ("top_k_negative", "top_k", -1),
    ("top_p_zero", "top_p", 0.0), ("top_p_above_one", "top_p", 1.5), ("top_p_nan", "top_p", NAN),
    ("min_p_negative", "min_p", -0.1), ("min_p_above_one", "min_p", 1.5),
    ("repetition_zero", "repetition_penalty", 0.0),
    ("repetition_infinite", "repetition_penalty", INF),
    ("presence_nan", "presence_penalty", NAN), ("frequency_infinite", "frequency_penalty", INF),
)  # fmt: skip

_REFUSED = (
    *(row(name, f"refused {name}", DATA, put(option, 1, value), extra=EVERYTHING)
      for name, option, value in _BAD_OPTIONS),
    row("seed_missing", "refused no_seed", DATA, heat=(0.0, 0.7), extra={"seed": None}),
    row("nan_logit", "refused nan", DATA, put("logits", (4, 9), NAN)),
    row("nan_logit_greedy", "refused nan greedy", DATA, put("logits", (4, 9), NAN), heat=0.0),
    row("infinite_logit", "refused inf", DATA, put("logits", (2, 0), INF)),
    row("quotient_overflows", "refused huge", DATA, kind="huge", heat=(1.0, 0.7)),
    row("all_masked_row", "refused masked", DATA, put("logits", 5, -INF)),
    row("all_masked_row_greedy", "refused masked greedy", DATA, put("logits", 5, -INF), heat=0.0),
    row("bias_masks_all", "refused masked bias", DATA, put("logit_bias", 1, -INF),
        extra={"logit_bias": True}),
    row("bias_nan", "refused nan bias", DATA, put("logit_bias", (0, 3), NAN),
        extra={"logit_bias": True}),
    row("floor_masks_all", "refused masked floor", DATA, put("stop_tokens", ..., 0), vocab=1,
        extra={"floor": (0, 99)}),
    row("path_token_past_vocabulary", "refused path", BOUNDS, put("draft_tokens", 5, 50),
        extra={"path": True}),
    row("path_token_negative", "refused path negative", BOUNDS, put("draft_tokens", 2, -1),
        extra={"path": True}),
    row("nan_above_bad_path", "refused path nan", BOUNDS, put("logits", (3, 1), NAN),
        put("draft_tokens", 6, 50), extra={"path": True}),
    row("masked_above_nan", "refused masked nan", DATA, put("logits", 3, -INF),
        put("logits", (5, 1), NAN)),
    row("layout_falls", "refused layout", DATA, put("qo_indptr", 1, 9),
        shapes=("chain3", "star4", "star3")),
    row("layout_past_rows", "refused layout past", DATA, put("qo_indptr", 2, 8)),
    row("rows_129", "refused rows", BOUNDS, shapes=("chain3", "random129"), vocab=7),
    row("b129", "beyond_batch", BOUNDS, shapes=["chain1"], batch=129, vocab=7),
    row("rows_16385", "beyond_rows", BOUNDS,
        blank("logits", 16_385, 1), blank("positions", 16_385), vocab=7),
    row("vocab_262145", "beyond_vocab", BOUNDS, blank("logits", 0, 2**18 + 1),
        shapes=("chain0", "chain0")),
    row("counts_of_another_vocabulary", "wrong_shape", BOUNDS, blank("prompt_counts", 2, 49),
        extra=_COUNTS),
    row("bits_of_two_words", "wrong_shape bits", BOUNDS, blank("ancestor_bits", 7, 2),
        extra={"path": True}),
    row("stops_65", "beyond_stops", BOUNDS, extra={"floor": 9, "n_stops": 65}),
    row("seed_uint64", "wrong_dtype", DTYPE, cast("seed", "uint64")),
    row("counts_int64", "wrong_dtype int64", DTYPE, cast("output_counts", "int64"), extra=_COUNTS),
)  # fmt: skip

SAMPLING_CASES = cases(KERNEL, sampling_inputs, (*_ROWS, *_REFUSED))
