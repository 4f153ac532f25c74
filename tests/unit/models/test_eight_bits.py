"""A draft head's products in eight bits: the card's, beside a dense weight that is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from aerie.assemble.numerics import head_numerics
from aerie.assemble.sizes import hot_bytes
from aerie.attention import pytorch
from aerie.config import EngineConfig, ModelConfig, SpeculationConfig
from aerie.kernels import load
from aerie.models.draft_vocabulary import head_ids, output_weight, slice_head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.eight_bits import (
    AT_A_TIME,
    MOST_ROWS,
    EightBitLinear,
    eight_bit_format,
    eight_bit_linear,
    round_weight,
)
from aerie.models.layer_ops import TORCH_OPS
from aerie.models.linear import (
    COLUMN_MAJOR,
    DENSE,
    DenseLinear,
    FusedProjections,
    LinearShape,
    join,
)
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models import pairs

FORMAT = eight_bit_format(DENSE)


def some(*size: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("n_rows", [0, 1, 17])
def test_products_are_those_of_the_card(n_rows: int, has_bias: bool, dtype: torch.dtype) -> None:
    bias = some(9, seed=2, dtype=dtype) if has_bias else None
    layer = FORMAT.make(some(9, 40, dtype=dtype), bias)
    assert isinstance(layer, EightBitLinear)
    x = some(n_rows, 40, seed=3, dtype=dtype)
    own = load("pytorch")["multiply_fp8_rows"]
    wanted = own(x=x, codes=layer.codes, scales=layer.scales, bias=bias).y
    assert layer(x).dtype == dtype and layer(x).equal(wanted)
    if n_rows:
        exact = functional.linear(x, layer.weight, bias).float()
        assert 0.001 < (wanted.float() - exact).norm() / exact.norm() < 0.06


def test_many_rows_take_the_dense_weight() -> None:
    layer = FORMAT.make(some(6, 16), some(6, seed=2))
    for n_rows, is_dense in ((MOST_ROWS, False), (MOST_ROWS + 1, True)):
        x = some(n_rows, 16, seed=3)
        assert layer(x).equal(functional.linear(x, some(6, 16), some(6, seed=2))) == is_dense


def test_a_weight_is_rounded_output_by_output() -> None:
    weight = torch.tensor([[448.0, 17.0, -19.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1e-6, 0, 0, -5e-7]])
    codes, scales = round_weight(weight)
    floats = codes.view(torch.float8_e4m3fn).float()
    assert floats.tolist() == [[448, 16, -20, 0], [0, 0, 0, 0], [448, 0, 0, -224]]
    assert scales[:2].tolist() == [1.0, 1.0]
    whole = some(AT_A_TIME + 3, 2)
    assert all(
        found.equal(torch.cat(parts))
        for found, parts in zip(
            round_weight(whole),
            zip(round_weight(whole[:7]), round_weight(whole[7:]), strict=True),
            strict=True,
        )
    )


def test_layers_are_joined_before_they_are_rounded() -> None:
    gate, up = FORMAT.make(some(5, 16), None), FORMAT.make(some(5, 16, seed=2), None)
    joined = join([gate, up], FORMAT.make, "gate_up")
    assert isinstance(joined, FusedProjections) and isinstance(joined.linear, EightBitLinear)
    x = some(3, 16, seed=3)
    assert [part.equal(one(x)) for part, one in zip(joined(x), (gate, up), strict=True)] == [1, 1]
    assert joined.gated(x, TORCH_OPS.gate).equal(TORCH_OPS.gate(gate(x), up(x)))


def test_codes_come_on_top_of_the_dense_weight() -> None:
    shape = LinearShape(6, 16, has_bias=True)
    assert FORMAT.n_bytes("any", shape, 2) == DENSE.n_bytes("any", shape, 2) + 6 * 16 + 6 * 4
    weight = some(6, 16)
    dense = DenseLinear(weight, None)
    layer = eight_bit_linear(dense)
    assert layer.dense is dense and layer.weight is weight and weight.equal(some(6, 16))
    assert eight_bit_format(COLUMN_MAJOR).make(weight, None)(some(2, 16)).equal(layer(some(2, 16)))


def test_a_head_never_rounds_what_is_the_targets(tmp_path: Path) -> None:
    """It shares the LM head: codes are its own, the target's products are as they were."""
    directory = pairs.write_target(tmp_path / "target")
    target = load_decoder(directory, pytorch.prepare, LoadOptions())
    pairs.write_head(tmp_path / "head", pairs.CASES["modelopt"])
    head = load_head(tmp_path / "head", target, pytorch.prepare, HeadOptions(dense=FORMAT))
    assert isinstance(target.head, DenseLinear) and head.embedding is target.embedding
    assert isinstance(head.output, EightBitLinear) and head.output.dense is target.head
    assert isinstance(head.mixer.fc, EightBitLinear)
    assert output_weight(head) is target.head.weight


def test_a_sliced_vocabulary_is_rounded_again(tmp_path: Path) -> None:
    directory = pairs.write_target(tmp_path / "target")
    target = load_decoder(directory, pytorch.prepare, LoadOptions())
    pairs.write_head(tmp_path / "head", pairs.CASES["official"])
    config = ModelConfig(device="cpu", dtype="float32", draft_products="fp8")
    dense = head_numerics(config).dense
    head = load_head(tmp_path / "head", target, pytorch.prepare, HeadOptions(dense=dense))
    small = slice_head(head, head_ids(head)[::2].contiguous(), dense)
    assert isinstance(small.output, EightBitLinear) and isinstance(head.output, EightBitLinear)
    x = some(3, pairs.HIDDEN)
    assert small.output(x).equal(head.output(x)[:, ::2])
    speculation = SpeculationConfig(hot_vocabulary=8, hot_counts="counts.json")
    engine = EngineConfig(model=config, speculation=speculation)
    plain = slice_head(head, head_ids(head), DENSE)
    assert hot_bytes(engine, head) == hot_bytes(engine, plain) + 8 * (pairs.HIDDEN + 4)
