"""The round's kernels against brute force, string search, dictionaries and recomputation."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import numpy as np
import pytest

from aerie.kernels.report import REPORT
from tests.oracles.round import Offer, Seat, acceptance, best_value, by_path, continuation, merged
from tests.parity.backend import column, run, runnable, starts

each_backend = pytest.mark.parametrize(
    "backend", [runnable(name) for name in ("reference", "numpy", "pytorch")]
)
KNOTS = 17


def random_trees(rng: random.Random, batch: int, n_nodes: int) -> tuple[Any, list[list[int]], Any]:
    """Scores [B, N], parents and depths of trees in which ids of a layer need not be neighbours."""
    scores = np.zeros((batch, n_nodes), np.float32)
    depths = np.zeros((batch, n_nodes), np.int64)
    parents = []
    for b in range(batch):
        scores[b, 0], links = 1, [-1]
        for node in range(1, n_nodes):
            parent = rng.randrange(node)
            links.append(parent)
            depths[b, node] = depths[b, parent] + 1
            # Ties on purpose, children as likely as their parents, and nodes without a score.
            scores[b, node] = scores[b, parent] * rng.choice([1.0, 0.5, 1 / 3, 0.0])
        parents.append(links)
    return scores, parents, depths


@each_backend
@pytest.mark.parametrize("seed", range(10))
def test_no_forest_on_offer_is_worth_more(backend: str, seed: int) -> None:
    rng = random.Random(seed)
    batch, n_nodes = rng.choice([(1, 7), (2, 5), (3, 4)])
    scores, parents, depths = random_trees(rng, batch, n_nodes)
    n_depths = rng.choice([1, 3])
    knots = [sorted(rng.uniform(-0.3, 0.3) for _ in range(KNOTS)) for _ in range(n_depths)]
    verify = rng.choice([2, 4, 9])
    # A staircase that even falls: no assumption of monotone cost survives it.
    sizes = range(batch, batch * n_nodes + 1)
    offer = Offer({n: rng.choice([1.0, 1.2, 2.0]) for n in sizes}, rng.choice([0.1, 2.0]), verify)
    selected, n_chosen = np.ones(scores.shape, bool), np.zeros(batch, np.int32)
    run(
        backend,
        "choose_planned_nodes",
        cumu_scores=scores,
        cumu_deltas=depths,
        prev_indexs=np.array(parents),
        row_sizes=column(sizes),
        numbers=np.array([offer.rate, *offer.seconds.values(), *chain(*knots)]),
        selected=selected,
        n_chosen=n_chosen,
        deepest=max(int(depths.max()), 1),
        verify_num=verify,
    )
    weights = [acceptance(scores[b].tolist(), parents[b], knots) for b in range(batch)]
    for b, links in enumerate(parents):
        kept = set(np.nonzero(selected[b])[0].tolist())
        assert 0 in kept and all(links[node] in kept for node in kept - {0})
        assert len(kept) == n_chosen[b] <= verify
    n_rows = int(selected.sum())
    # What nothing weighs is left out of the size that was taken: then that size is its cost.
    n_usable = sum(weight > 0 for row in weights for weight in sorted(row)[-verify:])
    taken = [n for n in sizes if min(n, n_usable) == n_rows]
    mass = sum(weights[b][node] for b, node in zip(*np.nonzero(selected), strict=True))
    mine = max(mass - offer.rate * offer.seconds[n] for n in taken)
    assert mine == pytest.approx(best_value(weights, parents, offer), abs=1e-6)


@each_backend
def test_the_best_nodes_are_closed_and_no_others_are_better(backend: str) -> None:
    scores, parents, _ = random_trees(random.Random(3), 6, 40)
    for verify in (1, 2, 7, 40, 128):
        selected, n_chosen = np.zeros(scores.shape, bool), np.zeros(6, np.int32)
        run(backend, "choose_best_nodes", cumu_scores=scores, selected=selected,
            n_chosen=n_chosen, verify_num=verify)  # fmt: skip
        for b, links in enumerate(parents):
            ranked = sorted(range(40), key=lambda node: (-scores[b, node], node))
            expected = {node for node in ranked[:verify] if scores[b, node] > 0}
            assert set(np.nonzero(selected[b])[0]) == expected
            assert all(links[node] in expected for node in expected - {0})
            assert n_chosen[b] == len(expected)


@each_backend
def test_a_path_is_what_followed_the_same_ending(backend: str) -> None:
    rng = random.Random(4)
    for _ in range(60):
        lengths = [rng.randrange(60) for _ in range(5)]
        texts = [[rng.randrange(1, rng.choice([2, 3, 9])) for _ in range(60)] for _ in range(6)]
        rows = rng.sample(range(6), 5)
        longest, length, searched = rng.randint(1, 8), rng.randint(1, 20), rng.randint(1, 70)
        found = run(
            backend,
            "find_text_path",
            text=np.array(texts, np.int32),
            req_pool_indices=column(rows),
            text_len=column(lengths),
            longest=longest,
            path_length=length,
            searched=searched,
        )
        for b, row in enumerate(rows):
            size, path = continuation(texts[row][: lengths[b]], longest, length, searched)
            assert found.match_len[b] == size and found.path_len[b] == len(path)
            assert found.path_tokens[b].tolist() == path + [-1] * (length - len(path))


@each_backend
def test_a_merged_path_is_a_path_of_the_tree(backend: str) -> None:
    rng = random.Random(5)
    for _ in range(25):
        batch, count, longest = 4, rng.randint(1, 25), rng.randint(1, 9)
        scores, parents, depths = random_trees(rng, batch, count)
        room = ((0, 0), (0, longest))
        # A token is its node's place among its siblings, so that siblings differ.
        tokens = np.array([[links[:n].count(links[n]) for n in range(count)] for links in parents])
        links = np.pad(np.array(parents), room, constant_values=2)
        store = {
            "cumu_tokens": np.pad(tokens, room, constant_values=1),
            "cumu_scores": np.pad(scores, room, constant_values=1),
            "cumu_deltas": np.pad(depths, room, constant_values=1),
            "prev_indexs": links,
        }
        paths = [[rng.randrange(3) for _ in range(rng.randint(0, longest))] for _ in range(batch)]
        confidence = np.array([rng.choice([0.6, 1.0, 0.3]) for _ in range(batch)], np.float32)
        before = [by_path(tokens[b].tolist(), parents[b], scores[b].tolist()) for b in range(batch)]
        found = run(
            backend,
            "merge_text_path",
            **store,
            path_tokens=np.array([path + [-1] * (longest - len(path)) for path in paths]),
            path_len=column(map(len, paths)),
            confidence=confidence,
            node_count=count,
        )
        for b, path in enumerate(paths):
            used = count + int(found.n_added[b])
            made = {name: array[b, :used].tolist() for name, array in store.items()}
            after = by_path(made["cumu_tokens"], made["prev_indexs"], made["cumu_scores"])
            assert after == merged(before[b], path, float(confidence[b]))
            assert all(parent < node for node, parent in enumerate(made["prev_indexs"]))
            assert store["cumu_scores"][b, used:].tolist() == [0.0] * (count + longest - used)


def seats(rng: random.Random, batch: int, run_length: int) -> list[Seat]:
    made = []
    for _ in range(batch):
        first, second, third, fourth = (rng.choice([0, 0, 0, 0, 0, 7, 12]) for _ in range(4))
        emitted = [rng.randrange(500) for _ in range(rng.randint(0, run_length))]
        is_live, is_finished = rng.random() < 0.8, rng.random() < 0.3
        words = (first, second, third, fourth)
        made.append(Seat(words, is_live, emitted, is_finished, rng.randrange(99), 700))
    return made


@each_backend
@pytest.mark.parametrize("seed", range(3))
def test_a_verdict_is_handed_over_as_recomputed(backend: str, seed: int) -> None:
    rng = random.Random(seed)
    batch, n, nodes = 9, 5, 6
    before = seats(rng, batch, n)

    def packed(runs: list[list[int]]) -> np.ndarray:
        flat = list(chain(*runs))
        return column(flat + [-1] * (batch * n - len(flat)))

    emitted = [seat.emitted for seat in before]
    n_rows = [rng.randint(1, 4) for _ in before]
    paths = [sorted(rng.sample(range(90), n)) for _ in before]
    words = np.array([seat.words for seat in before], np.int32)
    state = {
        "is_live": np.array([seat.is_live for seat in before]),
        "seq_len": column(seat.length for seat in before),
        "cumu_tokens": np.full((batch, nodes), 700),
        "cumu_scores": np.ones((batch, nodes), np.float32),
        "accepted_tokens": np.full((batch, n), 3),
        "accepted_count": column([9] * batch),
        "report": np.full((batch, len(REPORT) + n), -5, np.int32),
    }
    found = run(
        backend,
        "hand_over_verdict",
        layout_status=words[:, 0].copy(),
        sample_status=words[:, 1].copy(),
        walk_status=words[:, 2].copy(),
        commit_status=words[:, 3].copy(),
        out_tokens=packed(emitted),
        out_indptr=starts(map(len, emitted)),
        new_seq_len=column(seat.length + len(seat.emitted) for seat in before),
        finished=np.array([seat.is_finished for seat in before]),
        qo_indptr=starts(n_rows),
        accept_index=np.array(paths),
        accept_count=column(range(batch)),
        **state,
    )
    for b, seat in enumerate(before):
        is_live, length, root, n_taken = seat.after()
        assert state["is_live"][b] == is_live and state["seq_len"][b] == length
        assert state["cumu_tokens"][b].tolist() == [root] + [700] * 5
        assert state["accepted_count"][b] == n_taken
        assert state["cumu_scores"][b].tolist() == [1.0] + [0.0] * 5
        shown = seat.emitted + [0] * (n - len(seat.emitted))
        assert state["accepted_tokens"][b].tolist() == shown
        kept = [sum(n_rows[:b]) + row for row in paths[b][:n_taken]]
        assert found.kept_rows[b].tolist() == kept + [0] * (n - n_taken)
        n_emitted = len(seat.emitted) if seat.is_live and not seat.status else 0
        assert found.deciding_rows[b].tolist() == kept[:n_emitted] + [-1] * (n - n_emitted)
        line = dict(zip(REPORT, state["report"][b].tolist(), strict=False))
        assert line == {
            "n_emitted": n_emitted, "is_finished": seat.is_finished, "status": seat.status,
            "n_rows": n_rows[b], "n_accepted": b, "seq_len": length, "n_chosen": 1,
        }  # fmt: skip
        assert state["report"][b, len(REPORT) :].tolist() == shown
