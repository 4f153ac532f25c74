"""Exact attention in Triton's interpreter: the definition's values, and bits of the row alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.attention import reference
from aerie.attention.contract import LayerAttention, Reach
from aerie.attention.rows import Rows
from aerie.attention.triton import Tile
from aerie.attention.triton.backend import geometry_of
from aerie.attention.triton.exact import ExactAttention, make_exact_plan, spans_of
from aerie.attention.triton.exact_plan_kernels import ITEM_ROWS
from aerie.errors import UsageError
from tests.unit.attention.trees import (
    causal_batch,
    depths,
    join_rows,
    pad_rows,
    random_parents,
    root_path,
    scattered_slots,
    tree_batch,
)

pytestmark = [
    pytest.mark.skipif(
        torch.cuda.is_available(),
        reason="interpreted; a GPU runs tests/gpu/test_triton_attention.py",
    ),
    pytest.mark.usefixtures("rows_for_themselves"),
]

N_SLOTS = 3000
HEADS, KV_HEADS, DIM = 4, 2, 16
SMALL = Tile(16, 32, 4, 1, 2)
LAYER = LayerAttention(DIM**-0.5, Reach())
TREE = [-1, 0, 0, 1, 1, 2, 3, 5, 6]  # nine nodes, three paths


# So many programs at once that spans are always split, and so few that they never are.
SPLIT, WHOLE = replace(SMALL, per_processor=1 << 20), replace(SMALL, per_processor=0)


def _backend(tile: Tile = SMALL) -> ExactAttention:
    return ExactAttention(tile, tile, tile)


def _memory(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(2, N_SLOTS, KV_HEADS, DIM, generator=generator)
    return made[0], made[1]


def _queries(n_rows: int, seed: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_rows, HEADS, DIM, generator=generator)


def _tokens(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int64)


def _tree(parents: list[int], slots: torch.Tensor) -> Rows:
    return tree_batch([_tokens(len(parents))], [parents], [slots])


def _batches() -> dict[str, Rows]:
    generator = torch.Generator().manual_seed(3)
    long, short, third = scattered_slots([600, 41, 300], N_SLOTS, 4)
    trees = tree_batch(
        [_tokens(12), _tokens(5)],
        [random_parents(12, generator), random_parents(5, generator)],
        [long[:270], short],
    )
    chunk = causal_batch([_tokens(40), _tokens(3)], [third, short])
    return {
        "trees": trees,
        "chunks": chunk,
        "decoding": causal_batch([_tokens(1), _tokens(1)], [long, short[:1]]),
        "both_and_padding": pad_rows(join_rows([_tree(TREE, long), chunk]), 4),
    }


@pytest.mark.parametrize("name", _batches())
@pytest.mark.parametrize("block_m", [16, 64])
def test_equals_the_definition(name: str, block_m: int) -> None:
    rows, (keys, values) = _batches()[name], _memory()
    queries = _queries(rows.n_rows)
    got = _backend(replace(SMALL, block_m=block_m))(rows, [Reach()])(queries, keys, values, LAYER)
    want = reference.prepare(rows, [Reach()])(queries, keys, values, LAYER)
    torch.testing.assert_close(got, want, rtol=0, atol=5e-6)


@pytest.mark.parametrize("tile", [SPLIT, WHOLE], ids=["split", "whole"])
@pytest.mark.parametrize("prefix", [0, 200, 250, 511, 700])
def test_a_node_of_a_tree_has_the_bits_of_plain_decoding(prefix: int, tile: Tile) -> None:
    """Its path in the cache, one row: the very same numbers, at any edge of blocks and spans."""
    slots = scattered_slots([prefix + len(TREE)], N_SLOTS, 5)[0]
    keys, values = _memory()
    queries = _queries(len(TREE))
    together = _backend(tile)(_tree(TREE, slots), [Reach()])(queries, keys, values, LAYER)
    for node in range(len(TREE)):
        path = [prefix + step for step in root_path(TREE, node)]
        own = torch.cat((slots[:prefix], slots[path]))
        alone = causal_batch([_tokens(1)], [own])
        got = _backend()(alone, [Reach()])(queries[node : node + 1], keys, values, LAYER)
        assert torch.equal(got[0], together[node]), f"node {node} at depth {depths(TREE)[node]}"


@pytest.mark.parametrize(
    ("parents", "n_paths"),
    [
        ([-1, 0, 0, 1, 1, 3, 3, 5, 5], 5),  # a chain, each node of which has a sibling
        ([-1, 0, 0, 0, 0], 4),
        (TREE, 3),
    ],
)
def test_rows_on_one_path_are_one_item_of_work(parents: list[int], n_paths: int) -> None:
    slots = scattered_slots([200 + len(parents)], N_SLOTS, 5)[0]
    keys, _ = _memory()
    geometry = geometry_of(_queries(len(parents)), keys, keys)
    plan = make_exact_plan(_tree(parents, slots), geometry, replace(SPLIT, block_m=64))
    assert int(plan.n_items) == n_paths, "all of them behind the root, in one span"
    items = plan.items[:n_paths]
    assert int(items[:, ITEM_ROWS.value].sum()) == len(parents), "every row once"


def test_a_chunk_has_the_bits_of_its_rows_alone_and_of_a_tall_tile() -> None:
    slots = scattered_slots([300], N_SLOTS, 6)[0]
    keys, values = _memory()
    queries = _queries(40)
    chunk = causal_batch([_tokens(40)], [slots])
    together = _backend(WHOLE)(chunk, [Reach()])(queries, keys, values, LAYER)
    split = _backend(SPLIT)(chunk, [Reach()])(queries, keys, values, LAYER)
    assert torch.equal(together, split)
    for row in (0, 7, 39):
        alone = causal_batch([_tokens(1)], [slots[: 261 + row]])
        got = _backend()(alone, [Reach()])(queries[row : row + 1], keys, values, LAYER)
        assert torch.equal(got[0], together[row])


def test_a_block_of_another_length_is_caught() -> None:
    """The control: were blocks cut otherwise in a batch, bits would differ and tests would see."""
    slots = scattered_slots([300], N_SLOTS, 6)[0]
    keys, values = _memory()
    rows, queries = causal_batch([_tokens(8)], [slots]), _queries(8)
    one = _backend()(rows, [Reach()])(queries, keys, values, LAYER)
    other = _backend(replace(SMALL, block_n=16))(rows, [Reach()])(queries, keys, values, LAYER)
    torch.testing.assert_close(one, other, rtol=0, atol=5e-6)
    assert not torch.equal(one, other)


def test_windows_and_sinks_are_refused() -> None:
    rows = _batches()["decoding"]
    with pytest.raises(UsageError, match="no sliding windows"):
        _backend()(rows, [Reach(window=8)])
    sinks = LayerAttention(1.0, Reach(), torch.zeros(HEADS))
    with pytest.raises(UsageError, match="no attention sinks"):
        _backend()(rows, [Reach()])(_queries(2), *_memory(), sinks)


def test_spans_of_a_text() -> None:
    assert [spans_of(n) for n in (1, 256, 257, 4096, 4097, 33792)] == [1, 1, 2, 16, 17, 45]
