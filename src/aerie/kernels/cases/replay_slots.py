"""Cases of K13: slots that still decode, and what the dead ones hold."""

from __future__ import annotations

import numpy as np

from aerie.kernels.cases.spoils import BOUNDS, DTYPE, blank, cast, put
from aerie.kernels.cases.table import Array, Inputs, Rng, cases, row

KERNEL = "build_active_slots"

_EVERY = ("accept_count", "draft_tokens", "ancestor_bits")


def _slots(
    rng: Rng,
    n_slots: int,
    dead: float = 0.4,
    given: tuple[str, ...] = _EVERY,
    n_rows: int = 4,
) -> Inputs:
    """K13 inputs: about `dead` of the slots ended, for each of the three reasons."""
    reason = np.where(rng.random(n_slots) < dead, rng.integers(1, 4, n_slots), 0)
    limit = rng.integers(1, 5000, n_slots)
    optional: dict[str, Array] = {
        "accept_count": rng.integers(0, 9, n_slots),
        "draft_tokens": rng.integers(0, 32_000, (n_slots, n_rows)),
        "ancestor_bits": rng.integers(0, 2**32, (n_slots, n_rows, 4), dtype=np.uint32),
    }
    return {
        "finished": reason == 1,
        "seq_len": np.where(reason == 2, limit, rng.integers(0, limit)),
        "length_limit": limit,
        "eos_terminated": reason == 3,
        **{name: optional[name] for name in given},
    }


_ROWS = (
    row("s1_alive", "all_alive smallest", n_slots=1, dead=0.0),
    row("s1_dead", "all_dead smallest", n_slots=1, dead=1.0),
    row("s8_mixed", "mixed", n_slots=8),
    row("s128_mixed", "mixed batch_limit", n_slots=128),
    row("s128_alive", "all_alive batch_limit", n_slots=128, dead=0.0),
    row("s128_dead", "all_dead batch_limit", n_slots=128, dead=1.0),
    row("s1024_mixed", "mixed slot_limit", n_slots=1024, n_rows=2),
    row("s1000_mixed_no_arrays", "mixed odd_slots bare", n_slots=1000, given=()),
    row("s0", "empty", n_slots=0),
    row("s0_bare", "empty bare", n_slots=0, given=()),
    row("s9_bare", "mixed bare", n_slots=9, given=()),
    row("s9_counts", "mixed counts", n_slots=9, given=_EVERY[:1]),
    row("s9_tokens", "mixed tokens", n_slots=9, given=_EVERY[1:2]),
    row("s9_bits", "mixed bits", n_slots=9, given=_EVERY[2:]),
    row("s9_counts_tokens", "mixed counts tokens", n_slots=9, given=_EVERY[:2]),
    row("s9_tokens_bits", "mixed tokens bits", n_slots=9, given=_EVERY[1:]),
    row("s9_counts_bits", "mixed counts bits", n_slots=9, given=_EVERY[::2]),
    row("s9_alive_bare", "all_alive bare", n_slots=9, dead=0.0, given=()),
    row("s9_dead_bare", "all_dead bare", n_slots=9, dead=1.0, given=()),
    row("s5_rows_1", "rows_1", n_slots=5, n_rows=1),
    row("s5_rows_128", "rows_128", n_slots=5, n_rows=128),
    row("s7_rows_33", "rows_33", n_slots=7, n_rows=33),
    row("s6_finished_only", "finished", put("finished", [0, 3], True), n_slots=6, dead=0.0),
    row("s6_eos_only", "eos", put("eos_terminated", [1, 5], True), n_slots=6, dead=0.0),
    row("s6_at_limit", "limit_exact",
        lambda inputs: put("seq_len", [2, 4], inputs["length_limit"][[2, 4]])(inputs), n_slots=6,
        dead=0.0),
    row("s6_one_below_limit", "limit_below",
        lambda inputs: put("seq_len", ..., inputs["length_limit"] - 1)(inputs), n_slots=6,
        dead=0.0),
    row("s6_past_limit", "limit_past",
        lambda inputs: put("seq_len", 3, inputs["length_limit"][3] + 70_000)(inputs), n_slots=6,
        dead=0.0),
    row("s6_limit_0", "limit_0", put("length_limit", [0, 5], 0), n_slots=6, dead=0.0),
    row("s6_seq_0", "seq_0", put("seq_len", ..., 0), n_slots=6, dead=0.0),
    row("s4_seq_65537", "long_context",
        lambda inputs: inputs.update(seq_len=np.array([65_537, 70_000, 0, 2**40]),
                                     length_limit=np.array([65_538, 70_000, 1, 2**41])),
        n_slots=4, dead=0.0),
    row("s4_lengths_at_int64", "limit_edge",
        lambda inputs: inputs.update(seq_len=np.array([2**63 - 1, -(2**63), -(2**63), 2**63 - 1]),
                                     length_limit=np.array([2**63 - 1, -(2**63), 2**63 - 1, 0])),
        n_slots=4, dead=0.0),
    row("s6_every_reason_at_once", "finished eos limit_exact",
        lambda inputs: inputs.update(finished=np.arange(6) == 2, eos_terminated=np.arange(6) == 2,
                                     seq_len=inputs["length_limit"] - (np.arange(6) != 2)),
        n_slots=6, dead=0.0),
    row("s7_first_alive", "one_alive first", put("finished", np.s_[1:], True), n_slots=7, dead=0.0),
    row("s7_last_alive", "one_alive last", put("finished", np.s_[:6], True), n_slots=7, dead=0.0),
    row("s8_every_other", "alternating", put("finished", np.s_[::2], True), n_slots=8, dead=0.0),
    row("s1025", "beyond_slots", BOUNDS, n_slots=1025, given=()),
    row("rows_129", "beyond_rows", BOUNDS, n_slots=3, n_rows=129),
    row("rows_0", "below_rows", BOUNDS, n_slots=3, n_rows=0),
    row("limit_of_other_slots", "wrong_shape", BOUNDS, blank("length_limit", 5), n_slots=4),
    row("bits_of_two_words", "wrong_shape bits", BOUNDS, blank("ancestor_bits", 4, 4, 2),
        n_slots=4),
    row("finished_uint8", "wrong_dtype", DTYPE, cast("finished", "uint8"), n_slots=4),
    row("sequence_int32", "wrong_dtype int32", DTYPE, cast("seq_len", "int32"), n_slots=4),
)  # fmt: skip

SLOT_CASES = cases(KERNEL, _slots, _ROWS)
