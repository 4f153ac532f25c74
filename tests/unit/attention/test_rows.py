"""Rows constructors: positions, slots and visibility of prefill, decode, trees and mixtures."""

from __future__ import annotations

import torch

from aerie.attention.contract import Reach
from aerie.attention.reference import sees
from aerie.attention.rows import ragged
from tests.unit.attention.trees import causal_batch, join_rows, packed_slots, root_path, tree_batch

PARENTS = [-1, 0, 0, 1, 1, 2]


def test_causal_rows_continue_their_prefix() -> None:
    rows = causal_batch([torch.tensor([5, 6, 7]), torch.tensor([8])], packed_slots([3, 5]))
    assert rows.positions.tolist() == [0, 1, 2, 4]
    assert rows.kv_slots.tolist() == [1, 2, 3, 8]
    assert rows.visible_prefix.tolist() == [1, 2, 3, 5]
    assert rows.column_positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert (rows.bounds.rows, rows.bounds.columns, rows.bounds.tree) == (3, 5, 0)


def test_tree_rows_see_prefix_and_ancestors_only() -> None:
    rows = tree_batch([torch.arange(6)], [PARENTS], packed_slots([10]))
    assert rows.positions.tolist() == [4, 5, 5, 6, 6, 6]
    assert rows.column_positions.tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6, 6]
    for row in range(6):
        seen = [c for c in range(10) if sees(rows, row, 0, c, Reach())]
        assert seen == [0, 1, 2, 3] + [4 + r for r in root_path(PARENTS, row)]


def test_the_widest_tree_uses_every_word() -> None:
    chain = list(range(-1, 127))
    rows = tree_batch([torch.zeros(128, dtype=torch.int64)], [chain], packed_slots([128]))
    assert [c for c in range(128) if sees(rows, 127, 0, c, Reach())] == list(range(128))
    assert rows.ancestor_bits[127].tolist() == [-1, -1, -1, -1]


def test_window_is_cut_by_position_not_by_column() -> None:
    rows = tree_batch([torch.arange(6)], [PARENTS], packed_slots([10]))
    # Row 5 is at position 6: a window of 3 keeps positions 4, 5, 6 = root, row 2, itself.
    assert [c for c in range(10) if sees(rows, 5, 0, c, Reach(window=3))] == [4, 6, 9]
    kept = [c for c in range(10) if sees(rows, 5, 0, c, Reach(window=3, n_sink_tokens=1))]
    assert kept == [0, 4, 6, 9]


def test_join_keeps_requests_apart() -> None:
    tree = tree_batch([torch.arange(6)], [PARENTS], packed_slots([10]))
    plain = causal_batch([torch.tensor([1, 2])], [torch.tensor([20, 21, 22], dtype=torch.int32)])
    both = join_rows([tree, plain])
    assert both.qo_indptr.tolist() == [0, 6, 8]
    assert both.kv_indptr.tolist() == [0, 10, 13]
    assert both.kv_slots.tolist()[-2:] == [21, 22]
    assert [c for c in range(3) if sees(both, 6, 1, c, Reach())] == [0, 1]
    assert (both.bounds.rows, both.bounds.columns, both.bounds.tree) == (6, 10, 6)


def test_empty_batch() -> None:
    flat, indptr = ragged([])
    assert flat.shape == (0,) and indptr.tolist() == [0]
    rows = causal_batch([], [])
    assert rows.n_rows == 0 and rows.n_requests == 0
