"""GPTQ layers against the weights they were packed from, for targets, heads and odd groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import ConfigFieldError, TensorMismatchError
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.gptq import GPTQFormat
from aerie.models.linear import LinearShape
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import pairs
from tests.unit.models.quantisers import gptq, quantise_file

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize(
    ("n_out", "n_in", "group"), [(16, 256, 128), (24, 48, 16), (8, 40, 8), (8, 64, -1)]
)
def test_unpacked_equals_packed(
    n_out: int, n_in: int, group: int, seed: int | None, version: int
) -> None:
    weight = torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(n_in))
    weight[0] = weight[0].abs() + 0.1  # zero point 0, which format v1 stores as 15
    stored, exact = gptq(weight, group, version, seed)
    layer = GPTQFormat(group, zero_offset=int(version == 1)).build(
        source_of({f"layer.{name}": tensor for name, tensor in stored.items()}),
        "layer",
        LinearShape(n_out, n_in),
    )
    got = layer(torch.eye(n_in)).T  # sums of one weight each
    assert torch.equal(got, exact)
    assert float((got - weight).abs().max()) < 0.6 * float(stored["scales"].max())


def source_of(tensors: dict[str, Tensor]) -> Any:
    """Stands for a loader: tensors in memory."""
    return SimpleNamespace(
        take=lambda name, dtype=None: tensors[name].to(dtype or tensors[name].dtype),
        has=lambda name: name in tensors,
        release=lambda name: None,
        device=torch.device("cpu"),
    )


def logits_of(directory: Path, **options: Any) -> Tensor:
    target = load_decoder(directory, pytorch.prepare, LoadOptions(**options))
    tokens = torch.arange(20) % pairs.VOCAB
    rows = causal_batch([tokens], packed_slots([20]))
    return target.forward(rows, target.allocate_pool(21), torch.arange(20)).logits


@pytest.mark.parametrize("version", [1, 2])
def test_target(tmp_path: Path, version: int) -> None:
    base = pairs.write_target(tmp_path / "base", num_hidden_layers=2)
    tensors = load_file(base / "model.safetensors")
    packed, dense = quantise_file(tensors, partial(gptq, version=version))
    # What older quantisers write for a layer without bias.
    packed["model.layers.0.mlp.up_proj.bias"] = torch.zeros(pairs.WIDTH)
    layout = {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    config = pairs.target_config(num_hidden_layers=2)
    pairs.save(tmp_path / "dense", config, dense)
    pairs.save(tmp_path / "packed", config | {"quantization_config": GPTQ | layout}, packed)
    # The name AutoGPTQ gives its file.
    single = tmp_path / "packed" / "model.safetensors"
    single.rename(single.with_name("gptq_model-4bit-16g.safetensors"))
    want = logits_of(tmp_path / "dense")
    assert float((logits_of(tmp_path / "packed") - want).abs().max()) <= 1e-5
    fused = logits_of(tmp_path / "packed", is_fused=True)
    assert float((fused - want).abs().max()) <= 1e-5


def test_head_keeps_fc_and_output_dense(tmp_path: Path) -> None:
    target = load_decoder(pairs.write_target(tmp_path / "t"), pytorch.prepare, LoadOptions())
    case = pairs.CASES["official"]
    packed, dense = quantise_file(pairs.stored_tensors(case), partial(gptq, seed=2))
    quantised = case.config | {"quantization_config": GPTQ | {"desc_act": True}}
    pairs.save(tmp_path / "dense", case.config, dense)
    pairs.save(tmp_path / "packed", quantised, packed)
    heads = [
        load_head(tmp_path / name, target, pytorch.prepare, HeadOptions())
        for name in ("dense", "packed")
    ]
    tokens = torch.arange(12)
    rows = causal_batch([tokens], packed_slots([12]))
    taps = torch.randn(12, 3, pairs.HIDDEN, generator=torch.Generator().manual_seed(1))
    want, got = (head.extend(rows, taps, head.allocate_pool(13)).logits for head in heads)
    assert float((want - got).abs().max()) <= 1e-5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 3}, "3-bit GPTQ is not supported"),
        ({"bits": 8}, "8-bit GPTQ is not supported"),
        ({"quant_method": "hqq"}, "quant_method 'hqq' is not supported"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"group_size": 12}, "group_size 12"),
    ],
)
@pytest.mark.parametrize("kind", ["target", "head"])
def test_other_formats_are_refused(
    tmp_path: Path, kind: str, fields: dict[str, Any], message: str
) -> None:
    quantisation = {"quantization_config": GPTQ | fields}
    if kind == "target":
        pairs.write_target(tmp_path / "t", num_hidden_layers=1, **quantisation)
        with pytest.raises(ConfigFieldError, match=message):
            load_decoder(tmp_path / "t", pytorch.prepare, LoadOptions())
        return
    target = load_decoder(pairs.write_target(tmp_path / "t"), pytorch.prepare, LoadOptions())
    case = pairs.CASES["official"]
    pairs.save(tmp_path / "h", case.config | quantisation, pairs.stored_tensors(case))
    with pytest.raises(ConfigFieldError, match=message):
        load_head(tmp_path / "h", target, pytorch.prepare, HeadOptions())


def test_bad_groups_are_listed(tmp_path: Path) -> None:
    base = pairs.write_target(tmp_path / "base", num_hidden_layers=1)
    tensors = load_file(base / "model.safetensors")
    packed, _ = quantise_file(tensors, gptq)
    packed["model.layers.0.self_attn.q_proj.g_idx"][3] = 9
    packed["model.layers.0.self_attn.k_proj.scales"][0, 0] = torch.nan
    packed["model.layers.0.mlp.down_proj.bias"] = torch.ones(pairs.HIDDEN)
    del packed["model.layers.0.mlp.up_proj.g_idx"]  # optional: groups in order
    config = pairs.target_config(num_hidden_layers=1, quantization_config=GPTQ)
    pairs.save(tmp_path / "bad", config, packed)
    with pytest.raises(TensorMismatchError) as error:
        load_decoder(tmp_path / "bad", pytorch.prepare, LoadOptions())
    assert "out of range (1)" in str(error.value)
    assert "q_proj.g_idx must be group numbers below 2" in str(error.value)
    assert "k_proj.scales" in str(error.value)
    assert "down_proj.bias but this layer has no bias" in str(error.value)
