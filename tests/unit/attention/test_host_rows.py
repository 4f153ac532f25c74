"""Rows built on the host are those built on any device."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from aerie.attention import host_rows
from aerie.attention.rows import Bounds, Rows, causal_rows, tree_rows


@pytest.mark.parametrize(
    ("prefixes", "counts"),
    [((5,), (1,)), ((0,), (4,)), ((7, 0, 3), (2, 1, 6)), ((4, 9), (0, 3)), ((), ())],
)
def test_trees(prefixes: tuple[int, ...], counts: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(sum(prefixes) + len(counts))
    n_rows, n_columns = sum(counts), sum(prefixes) + sum(counts)
    starts = [p for p, n in zip(prefixes, counts, strict=True) for _ in range(n)]
    depths = torch.randint(0, 4, (n_rows,), generator=generator)
    lengths = [p + n for p, n in zip(prefixes, counts, strict=True)]
    call = (
        torch.randint(0, 99, (n_rows,), generator=generator),
        torch.tensor(starts, dtype=torch.int64) + depths,
        torch.randint(-(2**31), 2**31, (n_rows, 4), generator=generator).int(),
        torch.tensor([0, *counts]).cumsum(0).int(),
        torch.tensor([0, *lengths]).cumsum(0).int(),
        torch.randperm(500, generator=generator)[:n_columns].int(),
        Bounds(max(counts, default=0), max(lengths, default=0), max(counts, default=0)),
    )
    assert_equal(host_rows.tree_rows(*call), tree_rows(*call))
    lists = (call[0], *call[3:6], call[6])
    assert_equal(host_rows.causal_rows(*lists), causal_rows(*lists))


def assert_equal(found: Rows, wanted: Rows) -> None:
    for name in (field.name for field in fields(Rows)):
        one, other = getattr(found, name), getattr(wanted, name)
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype, name
            assert torch.equal(one, other), name
        else:
            assert one == other


@pytest.mark.parametrize("widths", [(1,), (1, 1, 1), (3, 2), (8, 8, 8, 8)])
@pytest.mark.parametrize("seq_lens", [(0,), (7,), (5, 1, 9)])
def test_levels_of_a_draft(widths: tuple[int, ...], seq_lens: tuple[int, ...]) -> None:
    """Against the definition of a level: prefix, then fed nodes, each with its level's position."""
    generator = torch.Generator().manual_seed(len(widths))
    batch, fed, width = len(seq_lens), sum(widths), widths[-1]
    slots = [torch.randperm(99, generator=generator).int() for _ in seq_lens]
    tokens = torch.randint(0, 99, (batch, width), generator=generator)
    mask = torch.rand(batch, width, fed + 3, generator=generator) < 0.5
    mask[..., fed:] = False
    rows = host_rows.level_rows(slots, seq_lens, tokens, mask, widths)
    assert rows.bounds == Bounds(width, max(seq_lens) + fed, fed)
    assert rows.tokens.tolist() == tokens.flatten().tolist()
    levels = [level for level, n in enumerate(widths) for _ in range(n)]
    for b, n in enumerate(seq_lens):
        columns = slice(rows.kv_indptr[b], rows.kv_indptr[b + 1])
        own = slice(rows.qo_indptr[b], rows.qo_indptr[b + 1])
        assert rows.kv_indices[columns].tolist() == slots[b][: n + fed].tolist()
        positions = [*range(n), *(n + level for level in levels)]
        assert rows.column_positions[columns].tolist() == positions
        assert rows.kv_slots[own].tolist() == slots[b][n + fed - width : n + fed].tolist()
        assert rows.positions[own].tolist() == [n + len(widths) - 1] * width
        assert rows.visible_prefix[own].tolist() == [n] * width
        assert rows.tree_start[b] == n
        for row, seen in zip(rows.ancestor_bits[own].tolist(), mask[b].tolist(), strict=True):
            bits = [(row[j // 32] >> (j % 32)) & 1 for j in range(fed)]
            assert bits == [int(is_seen) for is_seen in seen[:fed]]
