"""R20 to R24 against decimals, enumeration, and a memory whose every slot tells what it holds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.oracles import partial_kv as oracle
from tests.parity.backend import column, run, runnable

each_backend = pytest.mark.parametrize(
    "backend", [runnable(name) for name in ("reference", "numpy", "pytorch")]
)
LENGTHS, SIZE = [13, 1, 8], 4


def texts(rng: np.random.Generator) -> dict[str, Any]:
    table = 1 + rng.permutation(4 * 20).reshape(4, 20)
    return {
        "req_to_token": table.astype(np.int32),
        "req_pool_indices": column([2, 0, 3]),
        "seq_len": column(LENGTHS),
    }


@each_backend
@pytest.mark.parametrize(
    ("kernel", "judge"),
    [("weigh_kv_blocks", oracle.masses), ("bound_kv_blocks", oracle.bounds)],
)
def test_scores_of_blocks(backend: str, kernel: str, judge: Any) -> None:
    rng = np.random.default_rng(3)
    where = texts(rng)
    queries = rng.standard_normal((2, 3, 2, 3, 5)).astype(np.float32)
    keys = rng.standard_normal((2, 81, 2, 5)).astype(np.float32)
    heads = queries.reshape(2, 3, 6, 5)
    found = run(backend, kernel, queries=heads, keys=keys, **where, block_size=SIZE, n_blocks=5)
    for y, b, g in np.ndindex(2, 3, 2):
        slots = where["req_to_token"][where["req_pool_indices"][b], : LENGTHS[b]]
        wanted = judge(queries[y, b, g].tolist(), keys[y, slots, g].tolist(), SIZE)
        own = found.block_scores[y, b, g]
        assert np.allclose(own[: len(wanted)], wanted, rtol=1e-5, atol=1e-6)
        assert (own[len(wanted) :] <= 0).all(), "nothing behind the text"


@each_backend
@pytest.mark.parametrize("kept", [(1, 2, 1), (0, 3, 2), (2, 0, 1), (1, 9, 1)])
@pytest.mark.parametrize("is_tied", [False, True])
def test_chosen_blocks(backend: str, kept: tuple[int, int, int], is_tied: bool) -> None:
    rng = np.random.default_rng(5)
    scores = rng.permutation(2 * 3 * 1 * 9).reshape(2, 3, 1, 9).astype(np.float32)
    scores = np.floor(scores / 30) if is_tied else scores
    lengths = [36, 17, 30]
    n_sink, n_retrieval, n_window = kept
    found = run(
        backend, "choose_kv_blocks", block_scores=scores, seq_len=column(lengths), block_size=4,
        n_sink=n_sink, n_retrieval=n_retrieval, n_window=n_window,
    )  # fmt: skip
    for y, b in np.ndindex(2, 3):
        n_own = -(-lengths[b] // 4)
        wanted = oracle.best_blocks(scores[y, b, 0, :n_own].tolist(), kept)
        own = found.blocks[y, b, 0].tolist()
        assert own == wanted + [-1] * (sum(kept) - len(wanted))
        positions = [p for j in wanted for p in range(4 * j, min(4 * j + 4, lengths[b]))]
        assert found.near_len[b] == len(positions)


@each_backend
def test_copies_of_blocks(backend: str) -> None:
    """Every key says its layer, slot and head; the copy of a text is read back in order."""
    rng = np.random.default_rng(7)
    where = texts(rng)
    said = np.stack(np.meshgrid(*(np.arange(n) for n in (2, 81, 2)), indexing="ij"), axis=-1)
    keys, values = said.astype(np.float32), -said.astype(np.float32)
    near_keys, near_values = (np.full((2, 40, 2, 3), 99, np.float32) for _ in range(2))
    blocks = np.array([[[[1, 3], [0, 3]], [[0, -1], [0, -1]], [[0, 1], [0, 1]]]] * 2, np.int32)
    near_table = 1 + rng.permutation(39).reshape(3, 13)
    run(
        backend, "gather_kv_blocks", near_keys=near_keys, near_values=near_values, keys=keys,
        values=values, blocks=blocks, **where, near_table=near_table.astype(np.int32),
        block_size=SIZE,
    )  # fmt: skip
    touched = np.zeros(40, bool)
    for y, b, g in np.ndindex(2, 3, 2):
        listed = [j for j in blocks[y, b, g] if j >= 0]
        positions = [p for j in listed for p in range(4 * j, min(4 * j + 4, LENGTHS[b]))]
        slots = where["req_to_token"][where["req_pool_indices"][b], positions]
        own = near_table[b, : len(positions)]
        touched[own] = True
        assert near_keys[y, own, g].tolist() == [[y, slot, g] for slot in slots]
        assert (near_values[y, own, g] == -near_keys[y, own, g]).all()
    assert (near_keys[:, ~touched] == 99).all(), "nothing else is written"


@each_backend
@pytest.mark.parametrize("n_run", [0, 1, 3])
def test_a_run_before_a_tree(backend: str, n_run: int) -> None:
    """Whatever path led to a node leads to it now, through the run."""
    chooser, n_nodes, longest = random.Random(n_run), 9, 3
    parents = [-1, *(chooser.randrange(node) for node in range(1, n_nodes))]
    depths = [0, *oracle.spliced(parents, 0)]
    room = [0] * longest
    state: dict[str, Any] = {
        "cumu_tokens": column([[*range(50, 50 + n_nodes), *room]]),
        "cumu_scores": np.array([[1 / (1 + d) for d in depths] + [0.0] * longest], np.float32),
        "cumu_deltas": column([[*depths, *room]]),
        "prev_indexs": column([[*parents, *room]]),
        "selected": np.array([[node % 2 == 0 for node in range(n_nodes)] + [False] * longest]),
        "n_chosen": np.array([5], np.int32),
    }
    before = {name: array.copy() for name, array in state.items()}
    found = run(
        backend, "splice_drafted_run", **state, root_tokens=column([7]),
        run_tokens=column([[11, 12, 13]]), run_count=column([n_run]), node_count=n_nodes,
    )  # fmt: skip
    new = np.arange(1, n_nodes) + longest
    assert state["cumu_tokens"][0, : 1 + n_run].tolist() == [7, 11, 12, 13][: 1 + n_run]
    assert state["cumu_deltas"][0, new].tolist() == oracle.spliced(parents, n_run)
    for old, now in zip(range(1, n_nodes), new, strict=True):
        parent = parents[old]
        assert state["prev_indexs"][0, now] == (n_run if parent == 0 else parent + longest)
        for name in ("cumu_tokens", "cumu_scores", "selected"):
            assert state[name][0, now] == before[name][0, old]
    assert state["selected"][0, 1 : 1 + longest].tolist() == [i < n_run for i in range(longest)]
    assert state["n_chosen"][0] == 5 + n_run
    assert found.noted_depths[0, new].tolist() == depths[1:]
    assert (found.noted_depths[0, : 1 + longest] == 0).all()
