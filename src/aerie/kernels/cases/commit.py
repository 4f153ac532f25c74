"""Cases of K7: accepted runs clipped, the batch compacted, KV moves and freed slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.kernels.cases.draws import cycle, in_table
from aerie.kernels.cases.spoils import BOUNDS, DATA, DTYPE, Spoil, blank, both, cast, put
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import Layout, lay_out

KERNEL = "update_verify_result"

_MIX = ("random12", "chain5", "star9", "binary15", "comb9", "ngram12")
_CHAINS = ("chain6",)


@dataclass(frozen=True)
class Batch:
    """The trees of a batch, their prefixes, and capacities beyond the need."""

    shapes: Sequence[str] = _MIX
    n_requests: int | None = None
    seq: Any = (40, 0, 1, 7)
    n_stops: int = 2
    n_spare: int = 0
    n_columns: int = 3
    depth: int | None = None


def _accept_depth(accept: Any, request: int, deepest: int) -> int:
    fixed = {"none": 0, "one": 1, "all": deepest, "mixed": request % (deepest + 1)}
    return fixed[accept] if isinstance(accept, str) else min(accept, deepest)


def _verdict(rng: Rng, batch: Batch, accept: Any = "mixed", left: Any = 10_000) -> Inputs:
    """K7 inputs: each request accepts a path of `accept` rows and may emit `left` more tokens."""
    n_requests = len(batch.shapes) if batch.n_requests is None else batch.n_requests
    layout = lay_out(rng, batch.shapes, n_spare=batch.n_spare, batch=n_requests)
    depth = int(layout.depths.max(initial=0)) if batch.depth is None else batch.depth
    index = np.full((n_requests, depth + 1), -1, np.int64)
    count = np.zeros(n_requests, np.int64)
    for request in range(n_requests):
        path = _path(rng, layout, request, accept)
        index[request, : len(path)] = path
        count[request] = max(len(path) - 1, 0)
    seq_len = cycle(batch.seq, n_requests, "int64")
    width = int((seq_len + layout.rows).max(initial=0)) + batch.n_columns
    return {
        "accept_index": index,
        "accept_count": count,
        "bonus_token": rng.integers(0, 32_000, n_requests),
        "draft_tokens": layout.tokens,
        "qo_indptr": layout.indptr,
        "seq_len": seq_len,
        "length_limit": seq_len + 1 + cycle(left, n_requests, "int64"),
        # Past the vocabulary: nothing stops unless a case says so. -1 is an unused entry.
        "stop_tokens": np.tile(cycle((90_000, -1), batch.n_stops, "int64"), (n_requests, 1)),
        **in_table(rng, n_requests, width),
    }


def _path(rng: Rng, layout: Layout, request: int, accept: Any) -> list[int]:
    depths = layout.depths[layout.span(request)]
    deepest = int(depths.max(initial=0))
    return layout.path(rng, request, _accept_depth(accept, request, deepest))


def _stop_at(place: Callable[[int], int]) -> Spoil:
    """Make the emitted token at `place(accept_count)` of every request a stop token."""

    def spoil(inputs: Inputs) -> None:
        for request, count in enumerate(inputs["accept_count"]):
            at = place(int(count))
            rows = inputs["qo_indptr"][request] + inputs["accept_index"][request]
            token = inputs["draft_tokens"][rows[at + 1]] if at < count else None
            stop = inputs["bonus_token"][request] if token is None else token
            inputs["stop_tokens"][request, -1] = stop

    return spoil


_FIRST, _MIDDLE = _stop_at(lambda count: 0), _stop_at(lambda count: count // 2)
_LAST, _BONUS = _stop_at(lambda count: max(count - 1, 0)), _stop_at(lambda count: count)


def _some_stop(inputs: Inputs) -> None:
    """The first token of every other request ends it; the rest go on."""
    stops = inputs["stop_tokens"].copy()
    _FIRST(inputs)
    inputs["stop_tokens"][1::2] = stops[1::2]


def _rows_twice(inputs: Inputs) -> None:
    """The first request claims every row, the second falls back: rows lie in two requests."""
    inputs["qo_indptr"][1] = inputs["qo_indptr"][-1]


_SMALL = Batch(("chain4", "star4", "random6"))

_ROWS = (
    row("b1_root_only", "root_only smallest", batch=Batch(["chain1"])),
    row("b1_chain5_all", "all_accepted chain", batch=Batch(["chain5"]), accept="all"),
    row("b1_star9_one", "one_accepted star", batch=Batch(["star9"]), accept="one"),
    row("b6_mixed", "mixed_lengths", batch=Batch()),
    row("b128_mixed", "mixed_lengths batch_limit", batch=Batch(n_requests=128)),
    row("b8_all_lengths", "mixed_lengths chain", batch=Batch(["chain8"], 8)),
    row("b6_none", "zero_accepted", batch=Batch(), accept="none"),
    row("b128_none", "zero_accepted batch_limit", batch=Batch(_CHAINS, 128), accept="none"),
    row("b6_one", "one_accepted", batch=Batch(), accept="one"),
    row("b6_all", "all_accepted", batch=Batch(), accept="all"),
    row("b6_chain_all_no_moves", "all_accepted no_moves", batch=Batch(_CHAINS, 6), accept="all"),
    row("b0", "empty_batch", batch=Batch((), depth=2)),
    row("b0_no_table", "empty_batch no_table", blank("req_to_token", 0, 0), batch=Batch(())),
    row("b3_some_without_rows", "no_rows", batch=Batch(("chain0", "random7", "chain0"))),
    row("b3_nobody_has_rows", "no_rows all_empty", batch=Batch(["chain0"], 3)),
    row("b2_spare_rows", "spare_rows", batch=Batch(("random9", "star4"), n_spare=5), accept="all"),
    row("b2_depth_room", "depth_room", batch=Batch(("chain3", "star4"), depth=12), accept="all"),
    row("b1_chain128", "rows_128 depth_127", batch=Batch(["chain128"]), accept="all"),
    row("b1_random128", "rows_128", batch=Batch(["random128"], n_stops=1), accept="all"),
    row("b128_rows_64", "rows_64 batch_limit", batch=Batch(["random64"], 128)),
    row("b3_no_stops", "no_stops", batch=Batch(_MIX[:3], n_stops=0)),
    row("b3_stops_64", "stops_64", batch=Batch(_MIX[:3], n_stops=64)),
    row("b3_stops_unused", "stops_unused",
        both(put("stop_tokens", ..., -1), put("bonus_token", ..., -1)), batch=_SMALL),
    row("b5_stop_first", "stop_first all_finished", _FIRST, batch=Batch(_CHAINS, 5), accept="all"),
    row("b5_stop_middle", "stop_middle all_finished", _MIDDLE, batch=Batch(_CHAINS, 5),
        accept="all"),
    row("b5_stop_last", "stop_last all_finished", _LAST, batch=Batch(_CHAINS, 5), accept="all"),
    row("b5_stop_bonus", "stop_bonus all_finished", _BONUS, batch=Batch(_MIX[:5])),
    row("b6_stop_first_of_tree", "stop_first moves", _FIRST, batch=Batch(), accept="all"),
    row("b6_stop_middle_of_tree", "stop_middle moves", _MIDDLE, batch=Batch(), accept="all"),
    row("b6_some_stop", "stop_some", _some_stop, batch=Batch(), accept="all"),
    row("b128_some_stop", "stop_some batch_limit", _some_stop, batch=Batch(n_requests=128)),
    row("b3_stop_is_token_zero", "stop_bonus stop_zero", put("stop_tokens", np.s_[:, 0], 0),
        put("bonus_token", ..., 0), batch=Batch(_MIX[:3])),
    row("b3_stop_is_the_root", "stop_root",
        lambda inputs: put("stop_tokens", (0, 0), inputs["draft_tokens"][0])(inputs),
        batch=Batch(_CHAINS, 3), accept="none"),
    # The same in a few rows, for interpreters and simulators.
    row("b3_stop_first", "stop_first few_rows", _FIRST, batch=_SMALL, accept="all"),
    row("b3_stop_last", "stop_last few_rows", _LAST, batch=_SMALL, accept="all"),
    row("b3_stop_bonus", "stop_bonus few_rows", _BONUS, batch=_SMALL),
    row("b3_limits_inside", "limit_inside few_rows", batch=_SMALL, accept="all", left=(1, 2, 3)),
    row("b6_limit_inside_run", "limit_inside", batch=Batch(_CHAINS, 6), accept="all",
        left=(1, 2, 3, 4)),
    row("b6_limit_inside_tree", "limit_inside moves", batch=Batch(), accept="all", left=(2, 1)),
    row("b4_limit_at_last_accepted", "limit_at_accepted", batch=Batch(_CHAINS, 4), accept="all",
        left=5),
    row("b4_limit_at_bonus", "limit_at_bonus", batch=Batch(_CHAINS, 4), accept="all", left=6),
    row("b4_limit_one_past_bonus", "limit_past_bonus", batch=Batch(_CHAINS, 4), accept="all",
        left=7),
    row("b3_limit_reached_before", "limit_reached", batch=Batch(_CHAINS, 3), left=0),
    row("b3_limit_passed_before", "limit_passed", batch=Batch(_CHAINS, 3), left=(-1, 9, -3)),
    row("b5_stop_before_limit", "stop_middle limit_inside", _MIDDLE, batch=Batch(_CHAINS, 5),
        accept="all", left=(3, 4, 9)),
    row("b5_limit_before_stop", "stop_last limit_inside", _LAST, batch=Batch(_CHAINS, 5),
        accept="all", left=2),
    row("b3_seq_0", "seq_0", batch=Batch(_MIX[:3], seq=0), accept="all"),
    row("b2_seq_65537", "long_context", batch=Batch(("random9", "chain4"), seq=65_537),
        accept="all"),
    row("b3_table_full", "capacity_exact", batch=Batch(["star4"], 3, seq=9, n_columns=0)),
    row("b3_index_tail_garbage", "index_tail", put("accept_index", np.s_[:, 1:], 77),
        batch=Batch(_CHAINS, 3), accept="none"),
    row("b3_limits_at_int64", "limit_edge",
        put("length_limit", ..., [-(2**63), 2**63 - 1, 1 - 2**63]), batch=Batch(_MIX[:3]),
        accept="all"),
    row("layout_falls", "refused layout", DATA, put("qo_indptr", 1, 9),
        batch=Batch(_SMALL.shapes, n_columns=20)),
    row("layout_rows_twice", "refused layout overlap", DATA, _rows_twice,
        batch=Batch(_SMALL.shapes, n_columns=20), accept="none"),
    row("layout_past_rows", "refused layout past", DATA, put("qo_indptr", 3, 15), batch=_SMALL),
    row("rows_129", "refused rows", BOUNDS, batch=Batch(("chain3", "random129"))),
    row("count_past_depth", "refused depth", BOUNDS, put("accept_count", 1, 9), batch=_SMALL),
    row("count_negative", "refused depth negative", BOUNDS, put("accept_count", 2, -1),
        batch=_SMALL),
    row("path_falls", "refused path", DATA, put("accept_index", (0, np.s_[:3]), [0, 2, 1]),
        batch=_SMALL, accept="all"),
    row("path_repeats", "refused path repeat", DATA, put("accept_index", (0, np.s_[:3]), [0, 1, 1]),
        batch=_SMALL, accept="all"),
    row("path_not_from_root", "refused path root", DATA, put("accept_index", (1, 0), 1),
        batch=_SMALL),
    row("path_past_rows", "refused path past", DATA, put("accept_index", (1, 1), 4), batch=_SMALL,
        accept="one"),
    row("sequence_past_table", "refused table", BOUNDS, put("seq_len", 1, 60), batch=_SMALL),
    row("sequence_negative", "refused table negative", BOUNDS, put("seq_len", 0, -1), batch=_SMALL),
    row("sequence_at_int64", "refused table int64", BOUNDS, put("seq_len", 1, 2**63 - 1),
        batch=_SMALL),
    row("pool_row_past_table", "refused pool", BOUNDS, put("req_pool_indices", 1, 5), batch=_SMALL),
    row("pool_row_negative", "refused pool negative", BOUNDS, put("req_pool_indices", 2, -1),
        batch=_SMALL),
    row("b129", "beyond_batch", BOUNDS, batch=Batch(["chain1"], 129)),
    row("depth_128", "beyond_depth", BOUNDS, batch=Batch(["chain2"], depth=128)),
    row("rows_16385", "beyond_rows", BOUNDS, blank("draft_tokens", 16_385), batch=_SMALL),
    row("stops_65", "beyond_stops", BOUNDS, batch=Batch(["chain2"], n_stops=65)),
    row("table_rows_65537", "beyond_table_rows", BOUNDS, blank("req_to_token", 65_537, 0),
        batch=_SMALL),
    row("table_columns_2097153", "beyond_table_columns", BOUNDS,
        blank("req_to_token", 0, 2**21 + 1), batch=_SMALL),
    row("bonus_of_another_batch", "wrong_shape", BOUNDS, blank("bonus_token", 2), batch=_SMALL),
    row("bonus_int32", "wrong_dtype", DTYPE, cast("bonus_token", "int32"), batch=_SMALL),
    row("table_int64", "wrong_dtype int64", DTYPE, cast("req_to_token", "int64"), batch=_SMALL),
)  # fmt: skip

COMMIT_CASES = cases(KERNEL, _verdict, _ROWS)
