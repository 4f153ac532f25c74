"""Properties that must hold for any input: hypothesis chooses it, plain Python judges it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.oracles.slots import cut
from tests.oracles.subsets import best_masses, is_closed, planner_order
from tests.parity.backend import column, each_backend, run, starts

pytest.importorskip("hypothesis", reason="property tests need hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

few = settings(max_examples=40)

unit = st.floats(0, 1, width=32)
seeds = st.integers(0, 2**32 - 1)


def falling(values: list[float]) -> list[float]:
    return sorted(values, reverse=True)


@st.composite
def two_runs(draw: Any) -> tuple[np.ndarray, int, int]:
    """work_scores, node_top_k and verify_num."""
    top_k = draw(st.integers(1, 10))
    n_old = draw(st.integers(0, 20))
    batch = draw(st.integers(1, 4))
    verify_num = draw(st.integers(max(1, n_old), 30))
    rows = [
        falling(draw(st.lists(unit, min_size=n_old, max_size=n_old)))
        + falling(draw(st.lists(unit, min_size=top_k, max_size=top_k)))
        for _ in range(batch)
    ]
    return np.array(rows, dtype=np.float32).reshape(batch, n_old + top_k), top_k, verify_num


@each_backend
@few
@given(runs=two_runs())
def test_gain_rises_and_flattens(backend: str, runs: tuple[np.ndarray, int, int]) -> None:
    work_scores, top_k, verify_num = runs
    found = run(
        backend,
        "calculate_work_deltas",
        work_scores=work_scores,
        node_top_k=top_k,
        verify_num=verify_num,
    )
    gain = found.G.astype(float)
    steps = np.diff(gain)
    # Each entry is rounded once, so a step may be off by the spacing of the larger entry.
    slack = float(np.spacing(found.G.max()))
    assert gain[0] == 0 and (steps >= 0).all()
    assert (np.diff(steps) <= 2 * slack).all()
    n_old = work_scores.shape[1] - top_k
    for k in range(top_k + 1):
        kept = [falling([*row[:n_old], *row[n_old : n_old + k]]) for row in work_scores.tolist()]
        # One exact sum: the difference of two rounded ones loses gains far below the scores.
        lost = [-score for row in work_scores.tolist() for score in row[:n_old]]
        best = [score for row in kept for score in row[:verify_num]]
        mean = math.fsum([*best, *lost]) / len(work_scores)
        assert gain[k] == pytest.approx(mean, abs=2 * slack, rel=1e-6)


@each_backend
@few
@given(
    logits=arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 40)),
                  elements=st.floats(-50, 50, width=32)),
    temperature=st.floats(0.125, 8, width=32),
)  # fmt: skip
def test_probabilities_sum_to_one(backend: str, logits: np.ndarray, temperature: float) -> None:
    found = run(
        backend,
        "convert_logits_to_probas",
        logits=logits,
        temperature=column([temperature], "float32"),
        qo_indptr=starts([len(logits)]),
    ).target_probas
    assert found.sum(axis=1, dtype=np.float64) == pytest.approx(np.ones(len(logits)), abs=2e-6)
    for row, scores in zip(found, logits, strict=True):
        assert row[scores.argmax()] == row.max()
        assert (np.diff(row[np.argsort(scores)]) >= 0).all()


@st.composite
def fed_trees(draw: Any) -> dict[str, Any]:
    """Requests with fed nodes in a tree and a frontier whose slots hang on some of them."""
    batch, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    n_fed = draw(st.integers(1, 12))
    trees = [
        [-1, *(draw(st.integers(0, node - 1)) for node in range(1, n_fed))] for _ in range(batch)
    ]
    frontier = [[draw(st.integers(0, n_fed - 1)) for _ in range(width)] for _ in range(batch)]
    lengths = [draw(st.integers(0, 9)) for _ in range(batch)]
    return {"trees": trees, "frontier": frontier, "lengths": lengths, "n_fed": n_fed}


@each_backend
@few
@given(fed=fed_trees(), seed=seeds)
def test_draft_lists_hold_the_chain_alone(backend: str, fed: dict[str, Any], seed: int) -> None:
    generator = np.random.default_rng(seed)
    batch, width = len(fed["trees"]), len(fed["frontier"][0])
    slots = generator.permutation(1000).astype(np.int32)
    table, fed_slots = slots[: batch * 9].reshape(batch, 9), slots[500 : 500 + batch * fed["n_fed"]]
    fed_slots = fed_slots.reshape(batch, fed["n_fed"])
    mask = np.zeros((batch, width, fed["n_fed"]), dtype=bool)
    expected = []
    for b, tree in enumerate(fed["trees"]):
        for slot, node in enumerate(fed["frontier"][b]):
            chain = []
            while node >= 0:
                chain.append(node)
                mask[b, slot, node] = True
                node = tree[node]
            prefix = table[b, : fed["lengths"][b]].tolist()
            expected.append(prefix + [int(fed_slots[b, other]) for other in sorted(chain)])
    found = run(
        backend,
        "compute_kv_indices",
        req_to_token=table,
        req_pool_indices=column(range(batch)),
        seq_len=column(fed["lengths"]),
        tree_mask=mask,
        fed_slots=fed_slots,
        kv_capacity=sum(map(len, expected)) + 1,
    )
    bounds = found.kv_indptr.tolist()
    lists = [found.kv_indices[a:b].tolist() for a, b in pairwise(bounds)]
    assert lists == expected


counts = st.lists(st.tuples(st.integers(0, 128), st.integers(0, 100_000)), max_size=20)


@each_backend
@few
@given(sizes=counts)
def test_offsets_never_fall(backend: str, sizes: list[tuple[int, int]]) -> None:
    found = run(
        backend,
        "calculate_verify_kv_qo_ms",
        verify_count=column(rows for rows, _ in sizes),
        seq_len=column(prefix for _, prefix in sizes),
    )
    for name in ("qo_indptr", "kv_indptr", "mask_indptr"):
        offsets = getattr(found, name).astype(np.int64)
        assert offsets[0] == 0 and (np.diff(offsets) >= 0).all()
    for b, (rows, prefix) in enumerate(sizes):
        bits = rows * (prefix + rows)
        size = int(found.mask_indptr[b + 1]) - int(found.mask_indptr[b])
        assert 8 * size - 8 < bits <= 8 * size or bits == size == 0


slot_states = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.integers(0, 9), st.integers(0, 9)), max_size=40
)


@each_backend
@few
@given(states=slot_states)
def test_active_slots_and_their_inverse(
    backend: str, states: list[tuple[bool, bool, int, int]]
) -> None:
    alive = [not f and not e and n < limit for f, e, n, limit in states]
    accept_count = column(range(5, 5 + len(states)))
    draft_tokens = np.arange(2 * len(states), dtype=np.int64).reshape(-1, 2)
    ancestor_bits = np.full((len(states), 2, 4), 9, dtype=np.uint32)
    before = [accept_count.copy(), draft_tokens.copy(), ancestor_bits.copy()]
    found = run(
        backend,
        "build_active_slots",
        finished=column((state[0] for state in states), "bool"),
        eos_terminated=column((state[1] for state in states), "bool"),
        seq_len=column(state[2] for state in states),
        length_limit=column(state[3] for state in states),
        accept_count=accept_count,
        draft_tokens=draft_tokens,
        ancestor_bits=ancestor_bits,
    )
    slots = [slot for slot, lives in enumerate(alive) if lives]
    assert found.active_count.tolist() == [len(slots)]
    assert found.active_slots.tolist() == slots + [-1] * (len(states) - len(slots))
    for slot, lives in enumerate(alive):
        index = int(found.active_inverse[slot])
        assert (int(found.active_slots[index]) == slot) if lives else index == -1
    after = zip([accept_count, draft_tokens, ancestor_bits], before, [0, -1, 0], strict=True)
    for array, old, dead in after:
        for slot, lives in enumerate(alive):
            assert (array[slot] == (old[slot] if lives else dead)).all()


@each_backend
@few
@given(
    batch=st.integers(0, 5), width=st.integers(1, 4), spare=st.integers(0, 3), seed=seeds,
    fill=st.integers(0, 9),
)  # fmt: skip
def test_draft_padding_is_inert(
    backend: str, batch: int, width: int, spare: int, seed: int, fill: int
) -> None:
    generator = np.random.default_rng(seed)
    bucket = max(1, batch + spare)
    buckets = tuple(sorted({1, bucket, 7 + spare} if batch <= 1 else {bucket, 7 + spare}))
    chosen = next(size for size in buckets if size >= batch)
    capacity = buckets[-1] + 1
    fields = draft_fields(generator, batch, width)
    sizes = {name: 1 if name in ("seq_len", "req_pool_indices") else width for name in fields}
    static = {
        f"static_{name}": stale(generator, capacity * sizes[name], value)
        for name, value in fields.items()
    }
    before = {name: value.copy() for name, value in static.items()}
    found = run(
        backend,
        "draft_replay_input_operator",
        **fields,
        **static,
        tree_width=width,
        buckets=buckets,
        seq_len_fill=fill,
    )
    assert int(found.bucket) == chosen
    for name, value in fields.items():
        filled = chosen * sizes[name]
        real, padding, beyond = np.split(static[f"static_{name}"], [len(value), filled])
        np.testing.assert_array_equal(real, value)
        assert (padding == (fill if name == "seq_len" else 0)).all()
        np.testing.assert_array_equal(beyond, before[f"static_{name}"][filled:])


def stale(generator: np.random.Generator, n_entries: int, like: np.ndarray) -> np.ndarray:
    """What an earlier replay left in a static buffer."""
    return generator.integers(50, 99, (n_entries, *like.shape[1:])).astype(like.dtype)


def draft_fields(generator: np.random.Generator, batch: int, width: int) -> dict[str, np.ndarray]:
    rows = batch * width
    return {
        "input_ids": generator.integers(1, 99, rows),
        "positions": generator.integers(1, 99, rows),
        "out_cache_loc": generator.integers(1, 99, rows).astype(np.int32),
        "hidden": generator.random((rows, 3)).astype(np.float32),
        "seq_len": generator.integers(10, 99, batch),
        "req_pool_indices": generator.integers(1, 99, batch),
    }


lengths_of_rows = st.lists(st.integers(1, 6), max_size=5)


@each_backend
@few
@given(lengths=lengths_of_rows, spare=st.integers(0, 3), rows=st.integers(0, 4), seed=seeds)
def test_extend_padding_is_inert(
    backend: str, lengths: list[int], spare: int, rows: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    batch, n_rows = len(lengths), sum(lengths)
    bucket = max(1, batch + spare)
    row_bucket = max(1, n_rows + bucket - batch + rows)
    fields = draft_fields(generator, n_rows, 1)
    fields |= draft_fields(generator, batch, 1) | {
        name: fields[name] for name in ("input_ids", "positions", "out_cache_loc", "hidden")
    }
    fields["extend_len"] = column(lengths)
    of_requests = ("seq_len", "req_pool_indices", "extend_len")
    sizes = {name: bucket + 2 if name in of_requests else row_bucket + 2 for name in fields}
    static = {
        f"static_{name}": stale(generator, sizes[name], value) for name, value in fields.items()
    }
    static["static_qo_indptr"] = np.full(bucket + 3, 77, dtype=np.int32)
    before = {name: value.copy() for name, value in static.items()}
    found = run(
        backend,
        "extend_replay_input_operator",
        **fields,
        **static,
        batch_buckets=(bucket, bucket + 1),
        row_buckets=(row_bucket, row_bucket + 1),
        seq_len_fill=4,
    )
    assert (int(found.bucket), int(found.row_bucket)) == (bucket, row_bucket)
    fills = {"extend_len": 1, "seq_len": 4}
    for name, value in fields.items():
        filled = bucket if name in of_requests else row_bucket
        real, padding, beyond = np.split(static[f"static_{name}"], [len(value), filled])
        np.testing.assert_array_equal(real, value)
        assert (padding == fills.get(name, 0)).all()
        np.testing.assert_array_equal(beyond, before[f"static_{name}"][filled:])
    offsets = static["static_qo_indptr"].tolist()
    assert offsets == [*starts([*lengths, *[1] * (bucket - batch)]).tolist(), 77, 77]


@st.composite
def accepted_chains(draw: Any) -> list[tuple[list[int], int, int, list[int]]]:
    """Per request: accepted tokens of a chain, the bonus, the room left, the stop ids."""
    token = st.integers(0, 6)
    return draw(
        st.lists(
            st.tuples(
                st.lists(token, max_size=5),
                token,
                st.integers(0, 8),
                st.lists(token, min_size=2, max_size=2),
            ),
            min_size=1,
            max_size=6,
        )
    )


@each_backend
@few
@given(chains=accepted_chains())
def test_every_token_is_emitted_or_cut(
    backend: str, chains: list[tuple[list[int], int, int, list[int]]]
) -> None:
    depth = max(len(accepted) for accepted, *_ in chains)
    index = np.full((len(chains), depth + 1), -1, dtype=np.int64)
    for b, (accepted, *_) in enumerate(chains):
        index[b, : len(accepted) + 1] = range(len(accepted) + 1)
    found = run(
        backend,
        "update_verify_result",
        accept_index=index,
        accept_count=column(len(accepted) for accepted, *_ in chains),
        bonus_token=column(bonus for _, bonus, *_ in chains),
        draft_tokens=column(token for accepted, *_ in chains for token in [9, *accepted]),
        qo_indptr=starts(len(accepted) + 1 for accepted, *_ in chains),
        seq_len=column([3] * len(chains)),
        length_limit=column(4 + room for _, _, room, _ in chains),
        stop_tokens=np.array([stops for *_, stops in chains], dtype=np.int64),
        req_to_token=np.arange(len(chains) * 16, dtype=np.int32).reshape(-1, 16),
        req_pool_indices=column(range(len(chains))),
    )
    cuts = [cut(accepted, bonus, stops, room) for accepted, bonus, room, stops in chains]
    emitted = int(found.out_indptr[-1])
    assert found.out_tokens[:emitted].tolist() == [t for made in cuts for t in made.tokens]
    assert found.new_seq_len.tolist() == [3 + made.n_kept_rows for made in cuts]
    assert found.finished.tolist() == [made.is_finished for made in cuts]
    # A chain is already contiguous: nothing moves, and what is not kept is free.
    rows = sum(len(accepted) + 1 for accepted, *_ in chains)
    assert found.free_count.tolist() == [rows - sum(made.n_kept_rows for made in cuts)]
    assert found.kv_src[: found.move_count[0]].tolist() == (
        found.kv_dst[: found.move_count[0]].tolist()
    )


@st.composite
def scored_trees(draw: Any) -> tuple[list[int], list[float]]:
    """Parents, and float32 path scores that fall along every path."""
    n_nodes = draw(st.integers(1, 9))
    parents, scores = [-1], [1.0]
    for node in range(1, n_nodes):
        parent = draw(st.integers(0, node - 1))
        parents.append(parent)
        scores.append(float(np.float32(draw(unit)) * np.float32(scores[parent])))
    return parents, scores


@few
@given(tree=scored_trees())
def test_greedy_order_is_optimal_on_any_tree(tree: tuple[list[int], list[float]]) -> None:
    """The theorem the planner stands on, with merged nodes and ties of any kind."""
    parents, scores = tree
    order = planner_order(scores)
    best = best_masses(range(len(parents)), parents, scores)
    for m in range(1, len(order) + 1):
        assert is_closed(order[:m], parents)
        assert math.fsum(scores[node] for node in order[:m]) == best[m]
