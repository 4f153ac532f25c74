"""Cases of what a verdict changes: R11 moves in pools of every dtype, R12 requests of every end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aerie.kernels.cases.draws import bounds_of, rows_of_hidden
from aerie.kernels.cases.spoils import BOUNDS, DTYPE, Spoil, blank, both, cast, put
from aerie.kernels.cases.table import Array, Inputs, Rng, cases, row
from aerie.kernels.report import REPORT

MOVED, HANDED = "move_kv_slots", "hand_over_verdict"


def _moves(
    rng: Rng,
    paths: Sequence[Sequence[int]] = ((0, 2, 3), (0, 1, 4), (0,)),
    pool: tuple[int, int, int, int] = (3, 50, 1, 4),
    dtype: str = "float32",
    room: int = 3,
) -> Inputs:
    """R11 inputs: `paths[b]` are the rows a request keeps; row k moves to the slot of place k."""
    n_layers, n_slots, n_heads, size = pool
    slots = rng.permutation(n_slots - 1) + 1 if n_slots > 1 else np.zeros(0, np.int64)
    moves, first = [], 0
    for path in paths:
        own = slots[first : first + max(path, default=0) + 1]
        moves += [(own[kept], own[place]) for place, kept in enumerate(path) if kept != place]
        first += len(own)
    listed = np.full((len(moves) + room, 2), -1, np.int32)
    listed[: len(moves)] = np.array(moves, np.int32).reshape(-1, 2)
    return {
        "keys": rows_of_hidden(rng, (n_layers, n_slots, n_heads, size), dtype),
        "values": rows_of_hidden(rng, (n_layers, n_slots, n_heads, size), dtype),
        "kv_src": listed[:, 0].copy(),
        "kv_dst": listed[:, 1].copy(),
    }


def _pool(*shape: int) -> Spoil:
    return both(blank("keys", *shape), blank("values", *shape))


_CHAIN = ((0, *range(2, 40)),)
_MOVED_ROWS = (
    row("three_requests", "mixed"),
    row("one_move", "smallest", paths=((0, 2),), pool=(1, 5, 1, 1), room=0),
    row("nothing_moves", "none", paths=((0, 1, 2), (0,))),
    row("no_entries", "empty", paths=(), room=0),
    row("no_entries_in_a_pool_of_one_slot", "empty edge", paths=(), room=0, pool=(1, 1, 1, 1)),
    row("unused_entries", "padding", paths=(), room=9),
    row("one_of_many_entries", "padding one", paths=((0, 3),), room=40),
    row("a_chain_of_moves", "chain", paths=_CHAIN),
    row("two_chains", "chain mixed", paths=(*_CHAIN, (0, 2, 3, 4)), pool=(2, 90, 1, 4)),
    row("every_second_row", "sparse", paths=((0, 2, 4, 6, 8, 10, 12),)),
    row("fp16", "fp16", dtype="float16"),
    row("bf16", "bf16", dtype="bfloat16"),
    row("fp16_chain", "fp16 chain", paths=_CHAIN, dtype="float16"),
    row("bf16_chain", "bf16 chain", paths=_CHAIN, dtype="bfloat16"),
    row("heads_of_one", "size_1", pool=(3, 50, 1, 1)),
    row("heads_of_80", "size_80", pool=(2, 60, 3, 80)),
    row("prime_sizes", "prime", pool=(5, 61, 7, 13)),
    row("one_layer", "layers_1", pool=(1, 60, 2, 8)),
    row("layers_33", "layers_33", pool=(33, 60, 1, 8)),
    row("no_layers", "layers_0 empty", pool=(0, 60, 2, 4)),
    row("heads_8_of_128", "wide", pool=(2, 20, 8, 128)),
    row("requests_130", "batch_limit", paths=((0, 2),) * 130, pool=(1, 500, 1, 2), room=0),
    row("requests_128_of_3", "batch_limit mixed", paths=((0, 1, 3),) * 128, pool=(1, 600, 1, 2),
        room=128),
    row("moves_16384", "rows_limit", paths=((0, 2),), room=16_383),
    row("moves_16385", "beyond_moves", BOUNDS, paths=((0, 2),), room=16_384),
    row("layers_1025", "beyond_layers", BOUNDS, _pool(1025, 1, 1, 1), paths=()),
    row("slots_past_the_limit", "beyond_slots", BOUNDS, _pool(0, (1 << 28) + 1, 1, 1), paths=()),
    row("heads_1025", "beyond_heads", BOUNDS, _pool(1, 1, 1025, 1), paths=()),
    row("size_1025", "beyond_size", BOUNDS, _pool(1, 1, 1, 1025), paths=()),
    row("values_of_other_layers", "wrong_shape", BOUNDS, blank("values", 2, 50, 1, 4)),
    row("sources_of_other_moves", "wrong_shape moves", BOUNDS, blank("kv_src", 4)),
    row("pool_float64", "wrong_dtype", DTYPE, cast("keys", "float64"), cast("values", "float64")),
    row("slots_int64", "wrong_dtype int64", DTYPE, cast("kv_src", "int64")),
)  # fmt: skip

# What became of a request: rows, accepted, emitted, finished, the four words, whether it lives.
_ENDS: dict[str, tuple[int, int, int, bool, tuple[int, int, int, int], bool]] = {
    "goes_on": (4, 2, 3, False, (0, 0, 0, 0), True),
    "rejected": (5, 0, 1, False, (0, 0, 0, 0), True),
    "accepted": (4, 3, 4, False, (0, 0, 0, 0), True),
    "ended": (3, 1, 2, True, (0, 0, 0, 0), True),
    "cut": (4, 3, 1, True, (0, 0, 0, 0), True),
    "no_tree": (0, 0, 0, False, (12, 0, 0, 0), True),
    "bad_logits": (3, 1, 2, False, (0, 10, 0, 12), True),
    "bad_walk": (3, 0, 1, False, (0, 0, 8, 0), True),
    "no_room": (3, 2, 0, False, (0, 0, 0, 1), True),
    "every_word": (2, 1, 0, False, (8, 10, 7, 1), True),
    "empty_seat": (1, 0, 1, False, (0, 0, 0, 0), False),
    "empty_failed": (1, 0, 0, True, (0, 11, 0, 0), False),
}


def _ascending(rng: Rng, n_seats: int, run: int) -> Array:
    """Accepted rows of each request: from row 0 on, ascending."""
    steps = rng.integers(1, 4, (n_seats, run))
    steps[:, :1] = 0
    return steps.cumsum(axis=1)


def _verdict(
    rng: Rng,
    ends: Sequence[str] = tuple(_ENDS),
    batch: int | None = None,
    run: int = 4,
    nodes: int = 9,
) -> Inputs:
    """R12 inputs: requests that ended as named, in turn."""
    n_seats = len(ends) if batch is None else batch
    found = [_ENDS[ends[index % len(ends)]] for index in range(n_seats)]
    n_rows, accepted, emitted, finished = (
        np.array([entry[part] for entry in found], np.int64).reshape(-1) for part in range(4)
    )
    emitted = np.minimum(emitted, run)
    words = np.array([entry[4] for entry in found], np.int32).reshape(-1, 4)
    old = rng.integers(5, 60, n_seats)

    def flat(counts: Array, low: int) -> Array:
        made = np.full(n_seats * run, -1, np.int64)
        made[: counts.sum()] = rng.integers(low, 999, counts.sum())
        return made

    names = ("layout_status", "sample_status", "walk_status", "commit_status")
    return {
        **{name: words[:, place].copy() for place, name in enumerate(names)},
        "out_tokens": flat(emitted, 1),
        "out_indptr": bounds_of(emitted),
        "new_seq_len": old + emitted,
        "finished": finished == 1,
        "qo_indptr": bounds_of(n_rows),
        "accept_index": _ascending(rng, n_seats, run),
        "accept_count": accepted,
        "is_live": np.array([entry[5] for entry in found], bool),
        "seq_len": old,
        "cumu_tokens": rng.integers(0, 999, (n_seats, nodes)),
        "cumu_scores": rng.random((n_seats, nodes), dtype=np.float32),
        "accepted_tokens": rng.integers(0, 999, (n_seats, run)),
        "accepted_count": rng.integers(0, 9, n_seats),
        "report": rng.integers(-9, 99, (n_seats, len(REPORT) + run)).astype(np.int32),
    }


_HANDED_ROWS = (
    row("every_end", "mixed"),
    *(row(f"b1_{end}", f"one {end}", ends=(end,)) for end in _ENDS),
    row("b1_smallest", "smallest", ends=("rejected",), run=1, nodes=1),
    row("b3_run_1", "run_1", ends=("rejected", "ended", "bad_logits"), run=1),
    row("b12_run_7", "prime", run=7, nodes=31),
    row("b12_run_128", "run_limit", run=128),
    row("b12_one_node", "nodes_1", nodes=1),
    row("b2_nodes_4096", "capacity_limit", ends=("goes_on", "ended"), nodes=4096),
    row("b4_nodes_257", "not_a_power_of_two", ends=("goes_on", "ended"), batch=4, nodes=257),
    row("b0", "empty_batch", batch=0),
    row("b128", "batch_limit", batch=128),
    row("b128_go_on", "batch_limit full", ends=("goes_on",), batch=128),
    row("b5_all_empty", "inert", ends=("empty_seat",), batch=5),
    row("b3_large_tokens", "tokens_edge", put("out_tokens", 2, 2**31 - 1),
        ends=("goes_on", "ended", "accepted")),
    row("b3_long", "long_context", put("seq_len", ..., [70_000, 2**21 - 9, 0]),
        ends=("no_room", "empty_seat", "goes_on")),
    row("b129", "beyond_batch", BOUNDS, batch=129),
    row("nodes_4097", "beyond_nodes", BOUNDS, ends=("ended",), nodes=4097),
    row("run_129", "beyond_run", BOUNDS, ends=("ended",), run=129),
    row("report_without_tokens", "wrong_shape", BOUNDS, blank("report", 12, len(REPORT) + 3)),
    row("words_of_another_batch", "wrong_shape batch", BOUNDS, blank("walk_status", 11)),
    row("scores_of_other_nodes", "wrong_shape nodes", BOUNDS, blank("cumu_scores", 12, 8)),
    row("report_int64", "wrong_dtype", DTYPE, cast("report", "int64")),
    row("words_int64", "wrong_dtype int64", DTYPE, cast("layout_status", "int64")),
    row("lives_uint8", "wrong_dtype uint8", DTYPE, cast("is_live", "uint8")),
)  # fmt: skip

VERDICT_STATE_CASES = (
    *cases(MOVED, _moves, _MOVED_ROWS),
    *cases(HANDED, _verdict, _HANDED_ROWS),
)
