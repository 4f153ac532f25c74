"""The oracles themselves, on examples worked out by hand."""

from __future__ import annotations

import math
import random

import pytest

from tests.oracles.chi_square import fit, pooled, survival
from tests.oracles.growth import GrownTree, as_probability, ranked
from tests.oracles.packing import ancestor_words, pack, pack_batch, unpack, visibility
from tests.oracles.philox import gumbel, noise_word, philox
from tests.oracles.sampling import Request, filtered, penalised, probabilities, target_token
from tests.oracles.slots import Memory, cut, fresh_run, is_conserved
from tests.oracles.subsets import best_masses, closed_subsets, gains, is_closed, planner_order
from tests.oracles.walk import (
    by_row,
    first_child,
    next_siblings,
    random_tree,
    walk_coins,
    walk_match,
)

#  0 ── 1 ── 3
#    └─ 2      (scores 1, .5, .25, .375)
PARENTS, SCORES = [-1, 0, 0, 1], [1.0, 0.5, 0.25, 0.375]


def test_subsets_of_a_small_tree() -> None:
    found = {frozenset(chosen) for chosen in closed_subsets(range(4), PARENTS)}
    assert found == {
        frozenset(chosen) for chosen in [(0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 3), (0, 1, 2, 3)]
    }
    assert not is_closed([0, 3], PARENTS)
    assert best_masses(range(4), PARENTS, SCORES) == [0.0, 1.0, 1.5, 1.875, 2.125]
    assert planner_order(SCORES) == [0, 1, 3, 2]


@pytest.mark.parametrize(
    ("most", "expected"),
    [(2, [0.0, 0.0]), (3, [0.0, 0.125]), (4, [0.0, 0.375])],
)
def test_gains_by_hand(most: int, expected: list[float]) -> None:
    assert gains([0, 1, 2], [3], PARENTS, SCORES, most) == expected


def test_growth_by_hand() -> None:
    tree = GrownTree.with_root(7)
    best = tree.grow([0.5, 0.5, 0.25], [10, 11, 12])
    assert best == [1, 2, 3]
    tree.frontier = [2, 1]
    assert tree.grow([0.5, 0.25, 0.0, 1.0, 0.125, 0.0], range(20, 26)) == [7, 4, 5, 8, 6, 9]
    assert tree.parents == [-1, 0, 0, 0, 2, 2, 2, 1, 1, 1]
    assert tree.chain(7) == [0, 1, 7]
    assert tree.links()[:5] == [(-1, 1, -1), (0, 7, 2), (0, 4, 3), (0, -1, -1), (2, -1, 5)]
    assert ranked([0.25, 0.5, 0.25, 0.5]) == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("value", "read"), [(math.nan, 0.0), (-0.5, 0.0), (2.0, 1.0), (math.inf, 1.0), (0.25, 0.25)]
)
def test_draft_probability_is_clamped(value: float, read: float) -> None:
    assert as_probability(value) == read


def tree_by_hand() -> dict:
    leaf = {"row": 3, "probas": [0.5, 0.5, 0.0, 0.0], "target": 1, "children": {}}
    left = {"row": 1, "probas": [0.25, 0.25, 0.25, 0.25], "target": 3, "children": {3: leaf}}
    right = {"row": 2, "probas": [0.0, 0.0, 0.0, 1.0], "target": 2, "children": {}}
    return {
        "row": 0,
        "probas": [0.25, 0.25, 0.5, 0.0],
        "target": 2,
        "children": {2: left, 0: right},
    }


@pytest.mark.parametrize(
    ("coins", "bonus_coin", "rows", "emitted"),
    [
        ([0.499, 0.249, 0.9], 0.6, [0, 1, 3], [2, 3, 1]),
        ([0.499, 0.25, 0.0], 0.34, [0, 1], [2, 1]),
        ([0.5, 0.0, 0.0], 0.9, [0, 2], [0, 3]),
        ([0.75, 0.0, 0.0], 0.0, [0], [1]),
    ],
)
def test_coin_walk_by_hand(
    coins: list[float], bonus_coin: float, rows: list[int], emitted: list[int]
) -> None:
    walked = walk_coins(tree_by_hand(), coins, bonus_coin)
    assert (walked.rows, walked.emitted) == (rows, emitted)


def test_exhausted_node_says_its_argmax() -> None:
    child = {"row": 1, "probas": [1.0, 0.0], "children": {}}
    root = {"row": 0, "probas": [0.0, 0.5], "children": {1: child}}
    assert walk_coins(root, [0.75, 0.0], 0.0).emitted == [1]


def test_match_walk_by_hand() -> None:
    walked = walk_match(tree_by_hand())
    assert (walked.rows, walked.emitted) == ([0, 1, 3], [2, 3, 1])


def test_links_of_a_tree_by_hand() -> None:
    tree = tree_by_hand()
    assert [first_child(node) for node in by_row(tree)] == [1, 3, -1, -1]
    assert next_siblings(tree) == {0: -1, 1: 2, 2: -1, 3: -1}


def test_random_tree_is_a_tree() -> None:
    nodes = by_row(random_tree(random.Random(1), 30, 6, 4))
    assert [node["row"] for node in nodes] == list(range(30))
    assert max(node["depth"] for node in nodes) <= 4
    assert all(child["row"] > node["row"] for node in nodes for child in node["children"].values())


# Upper 5 % and 0.1 % points of printed chi-square tables.
@pytest.mark.parametrize(
    ("statistic", "freedom", "share"),
    [(3.841459, 1, 0.05), (5.991465, 2, 0.05), (18.307038, 10, 0.05), (29.588298, 10, 0.001)],
)
def test_survival_matches_the_tables(statistic: float, freedom: int, share: float) -> None:
    assert survival(statistic, freedom) == pytest.approx(share, rel=1e-5)


def test_survival_matches_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 7, 24, 63):
        for statistic in (0.1, 1.0, 10.0, 63.0, 150.0):
            expected = stats.chi2.sf(statistic, freedom)
            assert survival(statistic, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_rare_cells_are_pooled() -> None:
    cells = pooled({"a": 90, "b": 4, "c": 6}, {"a": 90.0, "b": 3.0, "c": 7.0})
    assert cells == [(10.0, 10.0), (90.0, 90.0)]
    with pytest.raises(AssertionError, match="impossible"):
        pooled({"d": 1}, {"a": 10.0})
    assert fit({"a": 60, "b": 40}, {"a": 0.5, "b": 0.5}).statistic == pytest.approx(4.0)


# The known answers that Random123 publishes for philox4x32 with ten rounds (kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_known_answers(counter: str, key: str, answer: str) -> None:
    def words(text: str) -> tuple[int, ...]:
        return tuple(int(word, 16) for word in text.split())

    assert philox(words(counter), words(key)) == words(answer)


def test_noise_by_hand() -> None:
    # counter (0, 0, 0, 0) is position -1; word id mod 4 of the first known answer.
    assert [noise_word(0, -1, 0, token) for token in (1, 3)] == [0xE169C58D, 0x9B00DBD8]
    assert gumbel(0x7FFFFFFF) == pytest.approx(-math.log(math.log(2)), abs=1e-6)
    assert math.isfinite(gumbel(0)) and math.isfinite(gumbel(0xFFFFFFFF))


def test_penalties_by_hand() -> None:
    request = Request(
        repetition=2.0, frequency=0.25, presence=0.5, prompt=[0], output=[1, 1], bias={3: 4.0}
    )
    values = penalised(request, [2.0, -1.0, 1.0, 0.0], [2])
    assert values == [1.0, -2.0 - 0.5 - 0.5, 0.5 - 0.25 - 0.5, 4.0]


EIGHTHS = [math.log(share / 8) for share in (1, 4, 2, 1)]


@pytest.mark.parametrize(
    ("request_", "values", "kept"),
    [
        (Request(), EIGHTHS, [1, 2, 0, 3]),
        (Request(top_k=3), EIGHTHS, [1, 2, 0]),
        (Request(top_p=0.4), EIGHTHS, [1]),
        (Request(top_p=0.7), EIGHTHS, [1, 2]),
        (Request(min_p=0.3), EIGHTHS, [1, 2]),
        (Request(top_k=2, top_p=0.6), EIGHTHS, [1]),  # 4/6 of what top-k leaves
        (Request(top_p=0.5), [0.0] * 4, [0, 1]),  # the mass before the third is not below 1/2
        (Request(top_k=3), [0.0, -math.inf, 0.0], [0, 2]),
    ],
)
def test_filters_by_hand(request_: Request, values: list[float], kept: list[int]) -> None:
    assert filtered(request_, values) == kept


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert target_token(Request(temperature=0.0), [1.0, 3.0, 3.0], [], 5) == 1
    assert probabilities([1.0, 3.0, 3.0], 0.0) == [0.0, 1.0, 0.0]
    assert probabilities([0.0, math.log(3.0)], 1.0) == pytest.approx([0.25, 0.75])


def test_packing_by_hand() -> None:
    matrix = visibility([-1, 0, 0], prefix=2)
    assert matrix == [
        [True, True, True, False, False],
        [True, True, True, True, False],
        [True, True, True, False, True],
    ]
    # 11100 111 | 10 11101 0: bit 0 of a byte is the first of its eight
    assert pack(matrix) == [0b11100111, 0b01011101]
    assert unpack(pack(matrix), 3, 5) == matrix
    assert pack_batch([[[True]], [[True, True, True]]]) == ([0, 1, 2], [1, 7])
    with pytest.raises(AssertionError, match="pad"):
        unpack([0b10], 1, 1)


def test_ancestor_words_by_hand() -> None:
    chain = list(range(-1, 99))
    assert ancestor_words([-1, 0, 0, 2], 3) == [0b1101, 0, 0, 0]
    assert ancestor_words(chain, 40) == [2**32 - 1, 2**9 - 1, 0, 0]


def test_memory_moves_read_before_they_write() -> None:
    memory = Memory(5)
    assert memory.take(4) == [1, 2, 3, 4]
    for slot, content in enumerate(fresh_run([7, 8, 9, 5]), 1):
        memory.write(slot, content)
    memory.move([2, 1], [1, 2])
    assert memory.sequence([1, 2]) == [(7, 8), (7,)]
    memory.give_back([4])
    assert memory.free == [4]
    assert is_conserved([1, 2, 3], [1, 3], [2]) and not is_conserved([1, 2], [1], [2, 2])


@pytest.mark.parametrize(
    ("stops", "room", "tokens", "kept", "is_finished"),
    [
        ([], 9, [4, 5, 6, 7], 4, False),
        ([5], 9, [4, 5], 3, True),
        ([7], 9, [4, 5, 6, 7], 4, True),
        ([], 4, [4, 5, 6, 7], 4, True),
        ([], 2, [4, 5], 3, True),
        ([], 0, [], 1, True),
    ],
)
def test_cut_by_hand(
    stops: list[int], room: int, tokens: list[int], kept: int, is_finished: bool
) -> None:
    found = cut([4, 5, 6], 7, stops, room)
    assert (found.tokens, found.n_kept_rows, found.is_finished) == (tokens, kept, is_finished)
