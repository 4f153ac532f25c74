"""K1, K2 and K3 against plain Python and against brute force over every ancestor-closed subset."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aerie.errors import KernelBoundsError
from tests.oracles.growth import child_score, ranked
from tests.oracles.subsets import best_masses, gains, is_closed, planner_order
from tests.parity.backend import each_backend, run
from tests.parity.drafting import Drafted, Proposal, Shape, draft

# Every tree has at most 12 nodes, so that brute force is possible.
SMALL = [
    Shape(1, (1,) * 11, 12),
    Shape(1, (1,) * 11, 5, batch=3),
    Shape(2, (1, 2, 2), 11, batch=2),
    Shape(2, (1, 1, 2, 1), 6, batch=2),
    Shape(2, (1, 2, 1, 1), 1),
    Shape(3, (1, 2), 4, batch=4),
    Shape(3, (1, 1, 1), 9),
    Shape(5, (1, 1), 7, batch=3),
    Shape(10, (1,), 8, batch=2),
    Shape(10, (1,), 128, batch=1),
]
GRAINS = [None, 4, 1]  # 4: ties everywhere; 1: every probability is 0 or 1


def label(shape: Shape) -> str:
    widths = "".join(map(str, shape.widths))
    return f"K{shape.top_k}-W{widths}-m{shape.verify_num}-B{shape.batch}"


small_trees = pytest.mark.parametrize("shape", SMALL, ids=label)
with_ties = pytest.mark.parametrize("grain", GRAINS)


@each_backend
@small_trees
@with_ties
def test_sort_scores_are_the_best_masses(backend: str, shape: Shape, grain: int | None) -> None:
    drafted, _ = draft(backend, shape, seed=1, grain=grain)
    for b, tree in enumerate(drafted.trees):
        best = best_masses(range(len(tree.nodes)), tree.parents, tree.scores)
        for m in range(1, min(shape.verify_num, len(tree.nodes)) + 1):
            prefix = drafted.store["sort_scores"][b, :m].astype(float)
            assert math.fsum(prefix) == best[m]


@each_backend
@small_trees
@with_ties
def test_order_gives_the_best_closed_tree(backend: str, shape: Shape, grain: int | None) -> None:
    drafted, _ = draft(backend, shape, seed=2, grain=grain)
    for b, tree in enumerate(drafted.trees):
        stored = drafted.store["cumu_scores"][b].astype(float).tolist()
        parents = drafted.store["prev_indexs"][b].tolist()
        best = best_masses(range(len(tree.nodes)), tree.parents, tree.scores)
        order = planner_order(stored)
        for m in range(1, len(order) + 1):
            assert is_closed(order[:m], parents)
            assert math.fsum(stored[node] for node in order[:m]) == best[m]


@each_backend
@small_trees
@with_ties
def test_gain_is_the_mass_that_more_nodes_bring(
    backend: str, shape: Shape, grain: int | None
) -> None:
    drafted, layers = draft(backend, shape, seed=3, grain=grain)
    n_old = 1
    for width, layer in zip(shape.widths, layers, strict=True):
        per_request = [
            gains(range(n_old), ids, tree.parents, tree.scores, shape.verify_num)
            for tree, ids in zip(drafted.trees, layer.best, strict=True)
        ]
        mean = [math.fsum(entries) / shape.batch for entries in zip(*per_request, strict=True)]
        np.testing.assert_array_max_ulp(layer.G, np.array(mean, np.float32), maxulp=1)
        n_old += width * shape.top_k


@each_backend
@small_trees
def test_store_and_links_are_the_grown_tree(backend: str, shape: Shape) -> None:
    drafted, layers = draft(backend, shape, seed=4, grain=8)
    check_store(drafted)
    for layer in layers:
        for b, ids in enumerate(layer.best):
            assert layer.scored.cache_topk_indices[b].tolist() == ids
            tree = drafted.trees[b]
            assert layer.stored.output_tokens[b].tolist() == [tree.nodes[i].token for i in ids]
            assert layer.stored.output_scores[b].tolist() == [tree.nodes[i].score for i in ids]


def check_store(drafted: Drafted) -> None:
    store = drafted.store
    for b, tree in enumerate(drafted.trees):
        assert store["cumu_tokens"][b].tolist() == [node.token for node in tree.nodes]
        assert store["cumu_scores"][b].tolist() == tree.scores
        assert store["cumu_deltas"][b].tolist() == [node.depth for node in tree.nodes]
        links = zip(
            store["prev_indexs"][b].tolist(),
            store["next_indexs"][b].tolist(),
            store["side_indexs"][b].tolist(),
            strict=True,
        )
        assert list(links) == tree.links()


DEEP = Shape(4, (1, *[4] * 14), 64, batch=2)


@each_backend
@with_ties
def test_fifteen_layers_of_four(backend: str, grain: int | None) -> None:
    drafted, layers = draft(backend, DEEP, seed=5, grain=grain)
    assert drafted.count == DEEP.n_nodes == 229
    check_store(drafted)
    for b, tree in enumerate(drafted.trees):
        stored = drafted.store["cumu_scores"][b].tolist()
        order = planner_order(stored)
        assert all(is_closed(order[:m], tree.parents) for m in range(1, 230))
        assert drafted.store["sort_scores"][b].tolist() == [stored[node] for node in order[:64]]
    for layer in layers:
        steps = np.diff(layer.G.astype(float))
        assert layer.G[0] == 0 and (steps >= 0).all()


@each_backend
@pytest.mark.parametrize("shape", [DEEP, Shape(3, (1, 3, 2, 1, 3), 10, batch=2)], ids=label)
def test_links_visit_every_node_once(backend: str, shape: Shape) -> None:
    drafted, _ = draft(backend, shape, seed=6)
    for b in range(shape.batch):
        first, side = drafted.store["next_indexs"][b], drafted.store["side_indexs"][b]
        visited, waiting = [], [0]
        while waiting:
            node = int(waiting.pop())
            visited.append(node)
            waiting += [link for link in (side[node], first[node]) if link >= 0]
        assert sorted(visited) == list(range(shape.n_nodes))


@each_backend
@pytest.mark.parametrize(
    "shape",
    [
        DEEP,
        Shape(3, (1, 3, 2, 1, 3), 10, batch=2),
        Shape(5, (1, 2, 5), 10, batch=3, fed_root=False),
    ],
    ids=label,
)
def test_mask_rows_are_the_chains_of_fed_nodes(backend: str, shape: Shape) -> None:
    drafted, layers = draft(backend, shape, seed=7)
    n_fed = int(shape.fed_root)
    for following, layer in zip([*shape.widths[1:], 1], layers, strict=True):
        for b, tree in enumerate(drafted.trees):
            fed = drafted.fed[b][: n_fed + following]
            for row, node in enumerate(layer.best[b][:following]):
                chain = tree.chain(node)
                expected = [column for column, other in enumerate(fed) if other in chain]
                seen = layer.stored.output_tree_mask[b, row].nonzero()[0].tolist()
                assert seen == expected
        n_fed += following


@each_backend
@pytest.mark.parametrize("layout", [(1, 4, 4, 4), (1, 2, 4, 1)])
def test_compat_reproduces_the_captured_constants(backend: str, layout: tuple[int, ...]) -> None:
    shape = Shape(4, layout, 30, batch=2, compat=True)
    drafted, layers = draft(backend, shape, seed=8)
    plain, plain_layers = draft(backend, Shape(4, layout, 30, batch=2), seed=8)
    root = np.float32(1.001)
    for b, tree in enumerate(drafted.trees):
        assert drafted.store["cumu_scores"][b].tolist() == tree.captured_scores()
        assert drafted.store["sort_scores"][b, 0] == root
        # Only the root's entry differs: carried scores and their order are undiscounted.
        np.testing.assert_array_equal(
            drafted.store["sort_scores"][b, 1:], plain.store["sort_scores"][b, 1:]
        )
    for layer, other in zip(layers, plain_layers, strict=True):
        np.testing.assert_array_equal(layer.stored.output_scores, other.stored.output_scores)
        assert (layer.stored.work_scores[:, 0] == root).all()
        np.testing.assert_array_equal(
            layer.stored.work_scores[:, 1:], other.stored.work_scores[:, 1:]
        )


@each_backend
def test_compat_stores_what_was_captured(backend: str) -> None:
    """The constants as numbers: depth 1 as is, depth 2 and 3 discounted once, never twice."""
    shape = Shape(1, (1, 1, 1), 4, compat=True)
    drafted = Drafted(backend, shape)
    for token in range(3):
        proposal = Proposal(np.full((1, 1), 0.5, np.float32), np.array([[token]], np.int64))
        drafted.layer(proposal, 1)
    scores = drafted.store["cumu_scores"][0].tolist()
    expected = [1.001, 0.5, np.float32(0.25) * np.float32(0.9999), np.float32(0.125 * 0.9999)]
    assert scores == [float(np.float32(score)) for score in expected]
    assert drafted.store["sort_scores"][0].tolist() == [float(np.float32(1.001)), 0.5, 0.25, 0.125]


Fill = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
MOST_CANDIDATES = {"hls": 64}  # a wider layer is refused

FILLS: dict[str, Fill] = {
    "random": lambda generator, size: generator.random(size),
    "ties": lambda generator, size: generator.integers(0, 4, size) / 4,
    "equal": lambda generator, size: np.full(size, 0.5),
    "zeros": lambda generator, size: np.zeros(size),
    "odd": lambda generator, size: generator.choice([np.nan, -1.0, 0.0, 0.5, 1.0, 2.0], size),
}


@each_backend
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("top_k", range(1, 11))
def test_layer_scores_of_every_width(backend: str, fill: str, top_k: int) -> None:
    for width in range(1, 11):
        if width * top_k <= MOST_CANDIDATES.get(backend, 100):
            check_layer(backend, FILLS[fill], width, top_k)
            continue
        with pytest.raises(KernelBoundsError, match="candidates"):
            check_layer(backend, FILLS[fill], width, top_k)


def check_layer(backend: str, fill: Fill, width: int, top_k: int) -> None:
    generator = np.random.default_rng([width, top_k])
    batch, count = 3, 1 + 10 * width
    probas = fill(generator, (batch, width * top_k)).astype(np.float32)
    last = generator.choice([0.25, 0.5, 1.0], (batch, width)).astype(np.float32)
    hidden = generator.random((batch * width, 3)).astype(np.float32)
    tokens = generator.integers(0, 200, probas.shape)
    hot = generator.permutation(1000)[:200]
    found = run(
        backend,
        "draft_tree_layer_score_index_gen_op",
        topk_probas=probas,
        topk_tokens=tokens,
        last_layer_scores=last,
        input_hidden=hidden,
        hot_token_id=hot,
        cumu_count=count,
    )
    for b in range(batch):
        scores = [
            child_score(float(p), float(last[b, column // top_k]))
            for column, p in enumerate(probas[b])
        ]
        order = ranked(scores)
        best = order[:top_k]
        assert found.curr_layer_scores[b].tolist() == scores
        assert found.sort_layer_indices[b].tolist() == order
        assert found.sort_layer_scores[b].tolist() == [scores[column] for column in order]
        assert found.cache_topk_indices[b].tolist() == [count + column for column in best]
        slots = [column // top_k for column in best]
        assert found.parent_indices_in_layer[b].tolist() == slots
        rows = [hidden[b * width + slot].tolist() for slot in slots]
        assert found.output_hidden[b].tolist() == rows
        assert found.mapped_tokens[b].tolist() == [int(hot[token]) for token in tokens[b]]
