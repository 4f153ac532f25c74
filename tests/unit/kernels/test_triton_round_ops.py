"""The small steps of a captured round in one launch are their PyTorch definitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.attention.bucket_rows import verify_arrays
from aerie.kernels import load
from aerie.kernels.triton_gpu import round_rows, round_verdict
from aerie.speculation import round_ops
from tests.unit.kernels.triton_device import DEVICE


def integers(values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def slot_table() -> Tensor:
    """Rows of slots that tell request and position apart; the last row is the inert one."""
    rows = torch.arange(5)[:, None] * 100 + torch.arange(64) + 1
    rows[4] = 0
    return rows.int().to(DEVICE)


def slot_lists(lengths: list[int], capacity: int) -> tuple[Tensor, Tensor]:
    kernels = load("pytorch", DEVICE, data_errors="status")
    found = kernels["compute_kv_indices"](
        req_to_token=slot_table(),
        req_pool_indices=integers([2, 0, 4, 1][: len(lengths)]),
        seq_len=integers(lengths),
        kv_capacity=capacity,
    )
    return found.kv_indptr, found.kv_indices


def test_rows_of_a_verification() -> None:
    seq_len, counts = [7, 20, 0], [3, 5, 1]
    tokens = torch.arange(16, device=DEVICE) + 30
    tokens[9:] = -1
    positions = torch.randint(0, 40, (16,), device=DEVICE)
    positions[9:] = 0
    kv_indptr, kv_indices = slot_lists([a + b for a, b in zip(seq_len, counts, strict=True)], 300)
    inputs = (tokens, positions, integers([0, 3, 8, 9], torch.int32), kv_indptr)
    expected = verify_arrays(*inputs, kv_indices.clone(), integers(seq_len))
    made = round_rows.verify_arrays(*inputs, kv_indices.clone(), integers(seq_len))
    used = int(expected["kv_indptr"][-1])
    for name, array in expected.items():
        # Columns behind the inert request's are nobody's.
        end = used if name == "column_positions" else None
        assert torch.equal(made[name][:end], array[:end]), name
        assert made[name].dtype == array.dtype, name


@pytest.mark.parametrize("widths", [(), (1, 1, 1), (4, 2, 3)])
def test_places_of_a_draft(widths: tuple[int, ...]) -> None:
    fed = sum(widths)
    seq_len, count = [9, 21, 0, 8], integers([3, 1, 0, 0])
    lists = slot_lists([n + max(fed, 1) for n in seq_len], 200)
    levels = integers([depth for depth, width in enumerate(widths) for _ in range(width)])
    before = integers([sum(widths[:depth]) for depth in range(len(widths) + 1)])
    place = slot_table(), integers([2, 0, 4, 1])
    shared = integers(seq_len), (count, 5), place
    expected = round_ops.draft_places(
        *shared, (lists[0], lists[1].clone()), (levels, before), widths
    )
    made = round_rows.draft_places(*shared, lists, (levels, before), widths)
    # Rows without a token do not draw attention back to the beginning of the text.
    stands = [6, 7, 8, 8, 8, *[20] * 5, *[0] * 5, *[7] * 5]
    assert expected.positions.tolist() == stands
    end = int(lists[0][-1])
    for name in ("positions", "kv_slots", "visible_prefix", "last", "kv_indices", "tree_start"):
        assert torch.equal(getattr(made, name), getattr(expected, name)), name
    assert torch.equal(made.column_positions[:end], expected.column_positions[:end])
    for own, other in zip(made.levels, expected.levels, strict=True):
        for name in ("positions", "kv_slots", "visible_prefix"):
            assert torch.equal(getattr(own, name), getattr(other, name)), name


def test_bits_of_the_next_level() -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (3, 4, 4), dtype=torch.int32, device=DEVICE)
    ids = integers([[20, 27, 24], [31, 20, 22], [0, 0, 0]])
    for fed in (0, 30, 61, 120):
        expected = round_ops.next_bits(bits, ids, (20, 3), fed)
        assert torch.equal(round_rows.next_bits(bits, ids, (20, 3), fed), expected)


def verified() -> round_ops.Verified:
    """Four requests: one goes on, one ends, one failed while sampling, one slot is empty."""
    return round_ops.Verified(
        layout=SimpleNamespace(
            status=integers([0, 0, 0, 0], torch.int32),
            qo_indptr=integers([0, 4, 5, 8, 9], torch.int32),
        ),
        sampled=SimpleNamespace(status=integers([0, 0, 10, 0], torch.int32)),
        walked=SimpleNamespace(
            status=integers([0, 0, 0, 0], torch.int32), accept_count=integers([2, 0, 1, 0])
        ),
        committed=SimpleNamespace(
            status=integers([0, 0, 12, 0], torch.int32),
            out_tokens=integers([5, 6, 7, 8, -1, 9, -1, -1, -1, -1, -1, -1]),
            out_indptr=integers([0, 3, 4, 5, 6], torch.int32),
            out_rows=integers([0, 2, 3, 5, 8, -1, -1, -1, -1, -1, -1, -1]),
            rows_indptr=integers([0, 3, 3, 4, 5], torch.int32),
            new_seq_len=integers([23, 9, 41, 1]),
            finished=torch.tensor([False, True, False, True], device=DEVICE),
        ),
    )


def standing() -> round_ops.Standing:
    return round_ops.Standing(
        is_live=torch.tensor([True, True, True, False], device=DEVICE),
        seq_len=integers([20, 8, 40, 0]),
        node_tokens=torch.arange(4 * 300, device=DEVICE).view(4, 300),
        node_scores=torch.ones((4, 300), device=DEVICE),
        tokens=integers([[1, 1, 1]] * 4),
        count=integers([7, 7, 7, 7]),
        report=torch.full((4, 10), -5, dtype=torch.int32, device=DEVICE),
    )


def test_what_a_verdict_changes() -> None:
    expected, made = standing(), standing()
    kept = round_ops.hand_over(verified(), expected)
    assert torch.equal(round_verdict.hand_over(verified(), made), kept)
    for name, array in vars(expected).items():
        assert torch.equal(getattr(made, name), array), name
    # Failed and empty slots stand where they stood.
    assert made.seq_len.tolist() == [23, 9, 40, 0]
    assert made.count.tolist() == [3, 0, 0, 0]


def test_moves_read_before_they_write() -> None:
    pools = [torch.randn(3, 50, 2, 24, device=DEVICE) for _ in range(2)]
    expected = [pool.clone() for pool in pools]
    source = integers([7, 8, 12, 30, -1, -1], torch.int32)
    destination = integers([6, 7, 8, 12, -1, -1], torch.int32)
    round_ops.move_slots(expected[0], expected[1], source, destination)
    round_verdict.move_slots(pools[0], pools[1], source, destination)
    for mine, other in zip(pools, expected, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("n_nodes", [1, 6, 64, 128])
def test_the_best_nodes(n_nodes: int) -> None:
    scores = (torch.rand(3, 150, device=DEVICE) * 20).round() / 20  # ties
    scores[1, 4:] = 0.0
    scores[:, 0] = 1.0
    made = torch.zeros_like(scores, dtype=torch.bool), integers([[9, 9]] * 3, torch.int32)[:, 0]
    expected = torch.zeros_like(made[0]), made[1].clone()
    round_ops.choose_best(scores, n_nodes, *expected)
    round_verdict.choose_best(scores, n_nodes, *made)
    assert torch.equal(made[0], expected[0])
    assert made[1].tolist() == expected[1].tolist()
