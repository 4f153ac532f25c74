"""Cases of previews, R24: runs of every length before trees of every shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aerie.kernels.cases.draws import cycle
from aerie.kernels.cases.forests import plant
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, blank, cast, setting
from aerie.kernels.cases.table import Inputs, Rng, cases, row
from aerie.kernels.cases.trees import size_of


def _splicing(
    rng: Rng,
    batch: int = 4,
    shape: str = "random12",
    longest: int = 5,
    counts: int | Sequence[int] = (5, 0, 2, 1),
    spare: int = 3,
) -> Inputs:
    """R24 inputs: a tree, some of it selected, and a run to go before it."""
    count = size_of(shape)
    forest = plant(rng, [shape] * batch, "usual", size=count + longest + spare)
    selected = np.zeros(forest.tokens.shape, np.bool_)
    selected[:, :count] = rng.random((batch, count)) < 0.6
    selected[:, :1] = True
    return {
        "cumu_tokens": forest.tokens,
        "cumu_scores": forest.scores,
        "cumu_deltas": forest.depths,
        "prev_indexs": forest.parents,
        "selected": selected,
        "n_chosen": selected.sum(axis=1).astype(np.int32),
        "root_tokens": rng.integers(0, 999, batch),
        "run_tokens": rng.integers(0, 999, (batch, longest)),
        "run_count": cycle(counts, batch, "int64"),
        "node_count": count,
    }


_SPLICED_ROWS = (
    row("b4", "mixed"),
    row("b1_smallest", "smallest", batch=1, shape="chain1", longest=1, counts=1, spare=0),
    row("b4_roots_only", "root_only", shape="chain1"),
    row("b4_chain", "chain", shape="chain8"),
    row("b4_star", "star", shape="star8"),
    row("b4_no_run", "none", counts=0),
    row("b4_whole_run", "whole", counts=5),
    row("b4_exact_room", "edge", spare=0),
    row("b2_run_120", "long", batch=2, longest=120, counts=(120, 77)),
    row("b0", "empty_batch", batch=0),
    row("b128", "batch_limit", batch=128),
    row("b3_prime", "prime", batch=3, shape="random31", longest=11, counts=(11, 7, 0)),
    *(
        row(f"b2_run_{n}_of_4", f"small n{n}", batch=2, longest=4, counts=(n, 4 - n), spare=n)
        for n in range(5)
    ),
    row("b2_wide_room", "room", batch=2, spare=40),
    row("b1_nodes_4096", "capacity_limit", batch=1, shape="random4000", longest=96, counts=96,
        spare=0),
    row("b4_run_1", "run_1", longest=1, counts=(1, 0)),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("nodes_4097", "beyond_nodes", BOUNDS, batch=1, shape="chain4090", longest=7, counts=7,
        spare=0),
    row("run_129", "beyond_run", BOUNDS, batch=1, longest=129, counts=1),
    row("no_room", "beyond_room", BOUNDS, setting(node_count=16)),
    row("count_0", "below_count", BOUNDS, setting(node_count=0)),
    row("count_4097", "beyond_count", BOUNDS, setting(node_count=4097)),
    row("run_of_another_batch", "wrong_shape", BOUNDS, blank("run_tokens", 3, 5)),
    row("run_int32", "wrong_dtype", DTYPE, cast("run_tokens", "int32")),
)  # fmt: skip

SPLICED_CASES = cases("splice_drafted_run", _splicing, _SPLICED_ROWS)
