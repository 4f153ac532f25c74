"""The head's padded path reads no value on the host: it runs on tensors that have none."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from aerie.attention import pytorch
from aerie.attention.contract import PrepareAttention
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import pairs


def as_fake(value: Any) -> Any:
    """The same structure with tensors that have a shape and no values."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if isinstance(value, tuple):
        return tuple(as_fake(entry) for entry in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: as_fake(getattr(value, f.name)) for f in fields(value)})
    return value


def load(parent: Path, case: str, prepare: PrepareAttention) -> Eagle3Head:
    target = load_decoder(pairs.write_target(parent / "t"), prepare, LoadOptions())
    directory = pairs.write_head(parent / "h", pairs.CASES[case])
    return load_head(directory, target, prepare, HeadOptions(window=5, sinks=2))


def check_draft_without_values(head: Eagle3Head) -> None:
    rows = causal_batch([torch.arange(9), torch.arange(2)], packed_slots([9, 2]))
    with FakeTensorMode():
        shell, fake_rows, pool = as_fake(head), as_fake(rows), as_fake(head.allocate_pool(16))
        taps = torch.empty(11, len(head.taps), pairs.HIDDEN)
        out = shell.extend(fake_rows, taps, pool, torch.empty(2, dtype=torch.int64))
        assert out.hidden.shape[0] == 2
        out = shell.step(fake_rows, torch.empty(11, head.embedding.shape[1]), pool)
        assert shell.to_target(out.logits.argmax(-1)).shape == (11,)


@pytest.mark.parametrize("case", sorted(pairs.CASES))
def test_padded_draft_reads_no_value(tmp_path: Path, case: str) -> None:
    check_draft_without_values(load(tmp_path, case, pytorch.prepare_padded))


def test_the_check_notices_a_reader(tmp_path: Path) -> None:
    with pytest.raises(DataDependentOutputException):
        check_draft_without_values(load(tmp_path, "official", pytorch.prepare_blocks))


def test_nothing_asked_and_nothing_to_run(tmp_path: Path) -> None:
    head = load(tmp_path, "official", pytorch.prepare)
    rows = causal_batch([torch.arange(5)], packed_slots([5]))
    none = torch.zeros(0, dtype=torch.int64)
    out = head.extend(rows, torch.zeros(5, 3, pairs.HIDDEN), head.allocate_pool(6), none)
    assert out.logits.shape == (0, pairs.DRAFT_VOCAB)
    assert out.hidden.shape == (0, pairs.HIDDEN)
    empty = causal_batch([], [])
    out = head.step(empty, torch.zeros(0, pairs.HIDDEN), head.allocate_pool(2))
    assert out.logits.shape == (0, pairs.DRAFT_VOCAB)
