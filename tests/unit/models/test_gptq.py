"""GPTQ layers against the weights they were packed from, for targets, heads and odd groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import ConfigFieldError, TensorMismatchError
from aerie.models.eagle3_load import load_head
from aerie.models.eagle3_resolve import HeadOptions
from aerie.models.gptq import dequantise
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import pairs

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}


def pack_words(codes: Tensor) -> Tensor:
    """[rows, columns] codes 0..15 to [rows, columns / 8] words, lowest bits first."""
    words = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for place in range(8):
        words |= codes[:, place::8].long() << 4 * place
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def quantise(
    weight: Tensor, group_size: int, version: int = 1, seed: int | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Pack [n_out, n_in]; returns the stored tensors and the weight they stand for.

    With a seed the inputs are dealt to the groups at random, as act-order leaves them.
    """
    n_in = weight.shape[1]
    size = n_in if group_size == -1 else group_size
    groups = torch.arange(n_in) // size
    if seed is not None:
        groups = groups[torch.randperm(n_in, generator=torch.Generator().manual_seed(seed))]
    n_groups = int(groups.max()) + 1
    scales, zeros = torch.zeros(n_groups, weight.shape[0]), torch.zeros(n_groups, weight.shape[0])
    for g in range(n_groups):
        part = weight[:, groups == g]
        low, high = part.min(1).values.clamp(max=0), part.max(1).values.clamp(min=0)
        scales[g] = ((high - low) / 15).half().float()
        zeros[g] = (-low / scales[g]).round().clamp(0, 15)
    codes = (weight.T / scales[groups] + zeros[groups]).round().clamp(0, 15)
    exact = ((codes - zeros[groups]) * scales[groups]).T
    stored = {
        "qweight": pack_words(codes.T).T.contiguous(),
        "qzeros": pack_words((zeros - int(version == 1)).int() & 15),
        "scales": scales.half(),
        "g_idx": groups.int(),
    }
    return stored, exact


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize(
    ("n_out", "n_in", "group"), [(16, 256, 128), (24, 48, 16), (8, 40, 16), (8, 64, -1)]
)
def test_unpacked_equals_packed(
    n_out: int, n_in: int, group: int, seed: int | None, version: int
) -> None:
    weight = torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(n_in))
    weight[0] = weight[0].abs() + 0.1  # zero point 0, which format v1 stores as 15
    stored, exact = quantise(weight, group, version, seed)
    got = dequantise(
        stored["qweight"],
        stored["qzeros"],
        stored["scales"].float(),
        stored["g_idx"],
        zero_offset=int(version == 1),
    )
    assert torch.equal(got, exact)
    assert float((got - weight).abs().max()) < 0.6 * float(stored["scales"].max())


def quantise_file(
    tensors: dict[str, Tensor], parts: tuple[str, ...], **options: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Pack every linear whose name has one of the parts: (packed file, dense equivalent)."""
    packed, dense = {}, {}
    for name, tensor in tensors.items():
        if any(part in name for part in parts) and name.endswith(".weight"):
            stored, exact = quantise(tensor, **options)
            prefix = name.removesuffix(".weight")
            packed |= {f"{prefix}.{key}": value for key, value in stored.items()}
            dense[name] = exact
        else:
            packed[name] = dense[name] = tensor
    return packed, dense


LINEARS = ("self_attn", "mlp")


def logits_of(directory: Path, **options: Any) -> Tensor:
    target = load_decoder(directory, pytorch.prepare, LoadOptions(**options))
    tokens = torch.arange(20) % pairs.VOCAB
    rows = causal_batch([tokens], packed_slots([20]))
    return target.forward(rows, target.allocate_pool(21), torch.arange(20)).logits


@pytest.mark.parametrize("version", [1, 2])
def test_target(tmp_path: Path, version: int) -> None:
    base = pairs.write_target(tmp_path / "base", num_hidden_layers=2)
    tensors = load_file(base / "model.safetensors")
    packed, dense = quantise_file(tensors, LINEARS, group_size=16, version=version)
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
    packed, dense = quantise_file(pairs.stored_tensors(case), LINEARS, group_size=16, seed=2)
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
        ({"quant_method": "awq"}, "quant_method 'awq' is not supported"),
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
    packed, _ = quantise_file(tensors, LINEARS, group_size=16)
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
