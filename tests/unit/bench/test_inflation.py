"""The check of an inflated pair: passes a right one, and sees tokens and drafts that differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aerie.attention import pytorch
from aerie.bench.round.inflation import CheckSettings, InflationCheck, overturned
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.inflate.embed import LargePair
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models.inflating import BINARY, write_pair

PROMPTS = [torch.tensor([1, 2, 3]), torch.tensor([7])]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> InflationCheck:
    folder: Path = tmp_path_factory.mktemp("pair")
    pair = write_pair(folder, BINARY)

    def load_small(dtype: torch.dtype) -> LargePair:
        target = load_decoder(folder / "target", pytorch.prepare, LoadOptions(dtype=dtype))
        head = load_head(folder / "head", target, pytorch.prepare, HeadOptions())
        return LargePair(target, head)

    # float32 for both: half precision is not on every CPU.
    settings = CheckSettings("cpu", 20, torch.float32, torch.float32, prefix=8)
    return InflationCheck(pair, BINARY.geometry, load_small, pytorch.prepare, settings)


def test_right_pair_passes(check: InflationCheck) -> None:
    found = check.run(PROMPTS)
    assert found["exact"]["equal_texts"] == found["exact"]["texts"] == 2
    assert found["exact"]["tokens"] == 40
    assert (found["fast"]["other_tokens"], found["fast"]["other_drafts"]) == (0, 0)
    assert found["fast"]["choices"] == 44
    assert [row["rows"] for row in found["control"]] == [1, 16]
    assert all(row["inflated_ms"] > 0 and row["random_ms"] > 0 for row in found["control"])


def test_another_pair_does_not(check: InflationCheck) -> None:
    tensors = dict(check.pair.tensors)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0).clone()
    wrong = replace(check, pair=replace(check.pair, tensors=tensors))
    assert wrong.same_text(PROMPTS)["equal_texts"] == 0
    assert wrong.same_choices(PROMPTS)["other_tokens"] > 30


def test_overturned_choices() -> None:
    own = torch.tensor([[4.0, 3.0, 0.0], [1.0, 2.0, 0.0]])
    assert overturned(own, own) == []
    assert overturned(own, own[:, [1, 0, 2]]) == [0.25, 0.5]
