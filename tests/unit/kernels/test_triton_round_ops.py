"""The round's Triton kernels on examples worked by hand, and on views of larger buffers.

Parity compares them with the reference on every case; this is what parity does not see.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.kernels import load
from aerie.kernels.cases import cases_for
from aerie.kernels.report import N_CHOSEN, REPORT
from tests.unit.kernels.triton_device import DEVICE, on_device


def integers(values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def words(values: Any) -> Tensor:
    return integers(values, torch.int32)


def call(name: str, **inputs: Any) -> Any:
    return load("triton", DEVICE, data_errors="status")[name](**inputs)


def test_rows_of_a_verification() -> None:
    """Two trees, of two rows behind a prefix of three and of one row behind nothing."""
    kv_indices = words([31, 32, 33, 34, 35, 41, -1, -1])
    placed = call(
        "place_verify_rows",
        draft_tokens=integers([7, 8, 9, -1, -1]),
        positions=integers([3, 4, 0, 0, 0]),
        qo_indptr=words([0, 2, 3]),
        kv_indptr=words([0, 5, 6]),
        kv_indices=kv_indices,
        seq_len=integers([3, 0]),
    )
    assert placed.tokens.tolist() == [7, 8, 9, 0, 0]
    assert placed.kv_slots.tolist() == [34, 35, 41, 0, 0]
    assert placed.visible_prefix.tolist() == [3, 3, 0, 1, 1]
    assert placed.row_indptr.tolist() == [0, 2, 3, 5]
    assert placed.column_indptr.tolist() == [0, 5, 6, 7]
    assert placed.column_positions.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert placed.tree_start.tolist() == [3, 0, 0]
    assert kv_indices.tolist() == [31, 32, 33, 34, 35, 41, 0, 0]


def test_a_choice_is_written_into_columns_of_larger_buffers() -> None:
    """Nodes of a larger store, and a count that is one column of the report."""
    scores = torch.tensor([[1.0, 0.5, 0.4, 0.9], [1.0, 0.2, 0.3, 0.9]], device=DEVICE)
    chosen = torch.ones((2, 4), dtype=torch.bool, device=DEVICE)
    report = torch.full((2, len(REPORT) + 2), 9, dtype=torch.int32, device=DEVICE)
    call(
        "choose_best_nodes",
        cumu_scores=scores[:, :3],
        selected=chosen[:, :3],
        n_chosen=report[:, N_CHOSEN],
        verify_num=2,
    )
    assert chosen.int().tolist() == [[1, 1, 0, 1], [1, 0, 1, 1]]
    assert report[:, N_CHOSEN].tolist() == [2, 2]
    assert int((report == 9).sum()) == report.numel() - 2


STORE = (
    "cumu_tokens", "cumu_scores", "cumu_deltas", "prev_indexs", "next_indexs", "side_indexs",
    "sort_scores", "selected", "noted_scores", "noted_depths", "noted_tokens", "noted_parents",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        ("grow_draft_layer", "b3_verify_exact"),
        ("choose_planned_nodes", "b3_one_depth"),
        ("note_chosen_nodes", "b3_exactly_noted"),
        ("hand_over_verdict", "b3_run_1"),
        ("merge_text_path", "b1_leaves"),
    ],
)
def test_arrays_may_be_views_of_wider_ones(kernel: str, case: str) -> None:
    built = next(entry for entry in cases_for(kernel) if entry.name == case)
    packed, spread = (
        {name: on_device(value) for name, value in built.build().items()} for _ in range(2)
    )
    around = {}
    for name in STORE:
        if name in packed:
            array = packed[name]
            around[name] = array.new_zeros((array.shape[0] + 1, array.shape[1] + 3))
            spread[name] = around[name][:-1, :-3]
            spread[name].copy_(array)
    apart, together = call(kernel, **spread), call(kernel, **packed)
    for name, value in together._asdict().items():
        assert torch.equal(getattr(apart, name), value), name
    for name in around:
        assert torch.equal(spread[name], packed[name]), name
        assert not around[name][-1].any() and not around[name][:, -3:].any(), name
