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
