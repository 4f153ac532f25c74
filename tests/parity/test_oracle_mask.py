"""K10c, K4 and K9 against parents walked upwards and masks packed bit by bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.oracles.packing import ancestor_words, pack_batch, unpack, visibility
from tests.parity.backend import column, each_backend, run, starts

N_COLUMNS = 300

# (rows, prefix) of every request: prefix lengths and row counts that are no multiples of eight.
BATCHES: dict[str, list[tuple[int, int]]] = {
    "one row, no prefix": [(1, 0)],
    "one byte": [(2, 2)],
    "pads of every size": [(rows, 1) for rows in range(1, 12)],
    "ragged": [(5, 3), (1, 200), (13, 0), (31, 7), (33, 64)],
    "some empty": [(0, 5), (3, 4), (0, 0), (2, 9)],
    "all empty": [(0, 0), (0, 3)],
    "largest": [(128, 172), (128, 0)],
    "many": [(1 + b % 7, b % 5) for b in range(128)],
    "nobody": [],
}


def random_parents(chooser: random.Random, n_rows: int) -> list[int]:
    return [-1, *(chooser.randrange(row) for row in range(1, n_rows))][:n_rows]


class Layout:
    """Random trees over a table of slots that no two requests share."""

    def __init__(self, sizes: Sequence[tuple[int, int]], seed: int) -> None:
        chooser = random.Random(seed)
        self.sizes = sizes
        self.parents = [random_parents(chooser, rows) for rows, _ in sizes]
        generator = np.random.default_rng(seed)
        n_table_rows = len(sizes) + 3
        slots = generator.permutation(n_table_rows * N_COLUMNS).astype(np.int32)
        self.table = slots.reshape(n_table_rows, N_COLUMNS)
        self.pool_rows = generator.permutation(n_table_rows)[: len(sizes)]

    def bits(self) -> np.ndarray:
        words = [ancestor_words(tree, row) for tree in self.parents for row in range(len(tree))]
        return np.array(words, dtype=np.uint32).reshape(-1, 4)

    def slot_lists(self) -> list[list[int]]:
        return [
            self.table[pool_row, : rows + prefix].tolist()
            for pool_row, (rows, prefix) in zip(self.pool_rows, self.sizes, strict=True)
        ]

    def matrices(self) -> list[list[list[bool]]]:
        pairs = zip(self.parents, self.sizes, strict=True)
        return [visibility(tree, prefix) for tree, (_, prefix) in pairs]

    def mask_inputs(self, spare: int) -> dict[str, Any]:
        mask_starts, _ = pack_batch(self.matrices())
        return {
            "req_to_token": self.table,
            "req_pool_indices": self.pool_rows.astype(np.int64),
            "seq_len": column(prefix for _, prefix in self.sizes),
            "qo_indptr": starts(rows for rows, _ in self.sizes),
            "ancestor_bits": self.bits(),
            "kv_capacity": sum(map(len, self.slot_lists())) + spare,
            "mask_capacity": mask_starts[-1] + spare,
        }


@each_backend
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("spare", [0, 5])
def test_packed_mask_bit_by_bit(backend: str, name: str, spare: int) -> None:
    layout = Layout(BATCHES[name], seed=len(name))
    found = run(backend, "fused_tree_mask_operator", **layout.mask_inputs(spare))
    mask_starts, packed = pack_batch(layout.matrices())
    lists = layout.slot_lists()
    assert found.mask_indptr.tolist() == mask_starts
    assert found.packed_mask.tolist() == packed + [0] * spare
    assert found.kv_indptr.tolist() == starts(map(len, lists)).tolist()
    assert found.kv_indices.tolist() == [s for slots in lists for s in slots] + [-1] * spare


@each_backend
@pytest.mark.parametrize("name", BATCHES)
def test_unpacked_mask_is_the_visibility(backend: str, name: str) -> None:
    layout = Layout(BATCHES[name], seed=1 + len(name))
    found = run(backend, "fused_tree_mask_operator", **layout.mask_inputs(0))
    for b, (rows, prefix) in enumerate(layout.sizes):
        first, last = found.mask_indptr[b : b + 2].tolist()
        segment = found.packed_mask[first:last].tolist()
        assert unpack(segment, rows, prefix + rows) == layout.matrices()[b]


@each_backend
@pytest.mark.parametrize("name", BATCHES)
def test_offsets_are_those_of_the_mask(backend: str, name: str) -> None:
    layout = Layout(BATCHES[name], seed=2 + len(name))
    found = run(
        backend,
        "calculate_verify_kv_qo_ms",
        verify_count=column(rows for rows, _ in layout.sizes),
        seq_len=column(prefix for _, prefix in layout.sizes),
    )
    assert found.qo_indptr.tolist() == starts(rows for rows, _ in layout.sizes).tolist()
    assert found.kv_indptr.tolist() == starts(map(len, layout.slot_lists())).tolist()
    assert found.mask_indptr.tolist() == pack_batch(layout.matrices())[0]


@each_backend
def test_offsets_of_long_contexts(backend: str) -> None:
    """128 requests of 128 rows over 65,537 tokens: 134,479,872 mask bytes, still an int32."""
    found = run(
        backend,
        "calculate_verify_kv_qo_ms",
        verify_count=column([128] * 128),
        seq_len=column([65_537] * 128),
    )
    assert int(found.qo_indptr[-1]) == 128 * 128
    assert int(found.kv_indptr[-1]) == 128 * (65_537 + 128)
    assert int(found.mask_indptr[-1]) == 128 * 128 * (65_537 + 128) // 8


class Stored:
    """A random node store and an ancestor-closed choice in it."""

    def __init__(self, counts: Sequence[int], share: float, seed: int) -> None:
        chooser = random.Random(seed)
        self.n_nodes = max(counts, default=1) + 2
        self.parents = [random_parents(chooser, count) for count in counts]
        self.chosen = [self._choose(chooser, tree, share) for tree in self.parents]
        self.seq_len = [chooser.randrange(70_000) for _ in counts]
        self.tokens = [[7 * node + 3 for node in range(count)] for count in counts]

    def _choose(self, chooser: random.Random, tree: list[int], share: float) -> list[int]:
        inside = [0]
        for node in range(1, len(tree)):
            if tree[node] in inside and chooser.random() < share and len(inside) < 128:
                inside.append(node)
        return inside

    def _table(self, rows: Sequence[Sequence[Any]], fill: Any, dtype: str) -> np.ndarray:
        table = np.full((len(rows), self.n_nodes), fill, dtype=dtype)
        for b, row in enumerate(rows):
            table[b, : len(row)] = row
        return table

    def depth(self, b: int, node: int) -> int:
        return 0 if node == 0 else 1 + self.depth(b, self.parents[b][node])

    def inputs(self, spare: int) -> dict[str, Any]:
        flags = [
            [node in set(inside) for node in range(len(tree))]
            for tree, inside in zip(self.parents, self.chosen, strict=True)
        ]
        depths = [[self.depth(b, n) for n in range(len(t))] for b, t in enumerate(self.parents)]
        return {
            "cumu_tokens": self._table(self.tokens, -9, "int64"),
            "cumu_deltas": self._table(depths, 55, "int64"),
            "prev_indexs": self._table(self.parents, 99, "int64"),
            "node_count": column(map(len, self.parents)),
            "selected": self._table(flags, False, "bool"),
            "seq_len": column(self.seq_len),
            "row_capacity": sum(map(len, self.chosen)) + spare,
        }


def expected_rows(stored: Stored) -> dict[str, list[Any]]:
    """The flat rows, by a dictionary from node to row."""
    rows: dict[str, list[Any]] = {
        name: []
        for name in ("draft_tokens", "positions", "parent_row", "first_child_row")
        + ("next_sibling_row", "ancestor_bits")
    }
    for b, inside in enumerate(stored.chosen):
        row_of = {node: row for row, node in enumerate(inside)}
        tree = stored.parents[b]
        above = [-1] + [row_of[tree[node]] for node in inside[1:]]
        for row, node in enumerate(inside):
            below = [other for other in range(len(inside)) if above[other] == row]
            beside = [r for r in range(row + 1, len(inside)) if row and above[r] == above[row]]
            rows["draft_tokens"].append(stored.tokens[b][node])
            rows["positions"].append(stored.seq_len[b] + stored.depth(b, node))
            rows["parent_row"].append(above[row])
            rows["first_child_row"].append(min(below, default=-1))
            rows["next_sibling_row"].append(min(beside, default=-1))
            rows["ancestor_bits"].append(ancestor_words(above, row))
    return rows


@each_backend
@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([1], 1.0),
        ([9, 1, 30], 0.5),
        ([128, 128], 1.0),
        ([229], 0.7),
        ([3 + b % 11 for b in range(128)], 0.6),
        ([12, 12], 0.0),
        ([], 1.0),
    ],
)
def test_rows_of_a_choice(backend: str, counts: list[int], share: float, spare: int) -> None:
    stored = Stored(counts, share, seed=len(counts) + 7)
    found = run(backend, "update_node_data", **stored.inputs(spare))
    assert found.qo_indptr.tolist() == starts(map(len, stored.chosen)).tolist()
    fills = {"positions": 0, "ancestor_bits": [0, 0, 0, 0]}
    for name, expected in expected_rows(stored).items():
        assert getattr(found, name).tolist() == expected + [fills.get(name, -1)] * spare, name


@each_backend
def test_rows_feed_the_mask(backend: str) -> None:
    """K10c then K4 gives the mask of the chosen nodes."""
    stored = Stored([20, 6, 40], 0.6, seed=3)
    stored.seq_len = [5, 0, 11]
    rows = run(backend, "update_node_data", **stored.inputs(2))
    expected = expected_rows(stored)
    sizes = list(zip(map(len, stored.chosen), stored.seq_len, strict=True))
    layout = Layout(sizes, seed=4)
    first = 0
    for b, (n_rows, _) in enumerate(sizes):
        layout.parents[b] = expected["parent_row"][first : first + n_rows]
        first += n_rows
    inputs = layout.mask_inputs(0) | {
        "ancestor_bits": rows.ancestor_bits,
        "qo_indptr": rows.qo_indptr,
    }
    found = run(backend, "fused_tree_mask_operator", **inputs)
    assert found.packed_mask.tolist() == pack_batch(layout.matrices())[1]
