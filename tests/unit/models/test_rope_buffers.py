"""Rotary tables in a file: left out when they are the config's, refused when they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import TensorMismatchError
from aerie.models.decoder import Decoder
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models.handmade import CONFIG, random_tensors, write_directory

HEAD_DIM, THETA = 8, 10000.0
NAMES = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(2)]
LINEAR = {"rope_scaling": {"type": "linear", "factor": 4.0}}


def frequencies(theta: float = THETA, scale: float = 1.0) -> Tensor:
    """As the versions of transformers that saved them computed them."""
    return 1.0 / (theta ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)) / scale


def table(n_positions: int, theta: float = THETA) -> Tensor:
    """Angles of a cached table, with the leading axes it was saved with."""
    angles = torch.outer(torch.arange(n_positions).float(), frequencies(theta))
    return torch.cat((angles, angles), dim=-1)[None, None]


def load(directory: Path, fields: dict[str, Any], extra: dict[str, Tensor]) -> Decoder:
    config = CONFIG | fields
    write_directory(directory, config, random_tensors(config) | extra)
    return load_decoder(directory, pytorch.prepare, LoadOptions())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("theta", [THETA, 500000.0])
def test_the_configs_own_are_left_out(tmp_path: Path, dtype: torch.dtype, theta: float) -> None:
    saved = {name: frequencies(theta) for name in (*NAMES, "model.rotary_emb.inv_freq")}
    saved["model.layers.0.self_attn.rotary_emb.cos_cached"] = table(256, theta).cos()
    saved["model.layers.0.self_attn.rotary_emb.sin_cached"] = table(256, theta).sin()
    extra = {name: tensor.to(dtype) for name, tensor in saved.items()}
    decoder = load(tmp_path, {"rope_theta": theta}, extra)
    assert torch.equal(decoder.rotary.frequencies, frequencies(theta))


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_linear_scaling_of_either_age(tmp_path: Path, scale: float) -> None:
    decoder = load(tmp_path, LINEAR, {NAMES[0]: frequencies(scale=scale)})
    assert torch.equal(decoder.rotary.frequencies, frequencies() / 4.0)


OTHER: dict[str, tuple[dict[str, Any], Tensor, str]] = {
    "another base": ({}, frequencies(500000.0), r".*implies \(rule default, theta 10000\)"),
    "another scale": (LINEAR, frequencies(scale=2.0), r".*implies \(rule linear"),
    "one element": ({}, frequencies() * torch.tensor([1, 1, 1.001, 1]), "is not what"),
    "another length": ({}, frequencies()[:3], "is not what"),
    "nothing": ({}, torch.zeros(0), "is not what"),
    "not a number": ({}, torch.full((4,), torch.nan), "is not what"),
    "whole numbers": ({}, torch.ones(4, dtype=torch.int64), "I64, must be F32"),
}


@pytest.mark.parametrize("case", OTHER)
def test_others_are_refused(tmp_path: Path, case: str) -> None:
    fields, tensor, message = OTHER[case]
    with pytest.raises(TensorMismatchError, match=f"{NAMES[1]} {message}"):
        load(tmp_path, fields, {NAMES[0]: frequencies(), NAMES[1]: tensor})


def test_other_cached_tables_are_refused(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.cos_cached"
    for number, spoilt in enumerate((table(64, 500000.0).cos(), table(64).sin(), torch.zeros(5))):
        with pytest.raises(TensorMismatchError, match=f"{name} is not what config.json implies"):
            load(tmp_path / str(number), {}, {name: spoilt})
