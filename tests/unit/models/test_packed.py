"""Packed layers against the weights they stand for: targets, heads, mixtures, rows, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import ConfigFieldError, TensorMismatchError, UsageError
from aerie.models.decoder import Decoder
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.feed_forward import GatedMLP
from aerie.models.fields import read_config
from aerie.models.footprint import weight_bytes
from aerie.models.linear import FusedProjections, SeparateProjections
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.packed import MixedFormat, PackedLinear, PackedProducts
from aerie.models.packed_formats import read_packed
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import pairs
from tests.unit.models.quantisers import SCHEMES, config_of, quantise_file

each_scheme = pytest.mark.parametrize("name", SCHEMES)
LEFT_OUT = ("model.layers.0.self_attn.o_proj", "layers.1.mlp.up_proj")


def write(directory: Path, name: str, left_out: tuple[str, ...] = (), **fields: Any) -> Path:
    """A tiny target in a scheme beside its dense equivalent: `directory`/packed and /dense."""
    base = pairs.write_target(directory / "base", num_hidden_layers=2, **fields)
    scheme = SCHEMES[name]
    tensors = load_file(base / "model.safetensors")
    packed, dense = quantise_file(tensors, scheme.quantise, left_out=left_out)
    config = config_of(scheme, num_hidden_layers=2, **fields)
    config["quantization_config"] = scheme.config | (
        {"modules_to_not_convert": [*left_out, "lm_head"]} if left_out else {}
    )
    pairs.save(directory / "packed", config, packed)
    pairs.save(directory / "dense", pairs.target_config(num_hidden_layers=2, **fields), dense)
    return directory


def loaded(directory: Path, **options: Any) -> Decoder:
    return load_decoder(directory, pytorch.prepare, LoadOptions(**options))


def logits_of(target: Decoder) -> Tensor:
    tokens = torch.arange(20) % pairs.VOCAB
    rows = causal_batch([tokens], packed_slots([20]))
    return target.forward(rows, target.allocate_pool(21), torch.arange(20)).logits


def layers_of(target: Decoder) -> list[PackedLinear]:
    """Packed layers, joined or not."""
    found: list[Any] = []
    for layer in target.layers:
        assert isinstance(layer.feed_forward, GatedMLP)
        found += [layer.attention.output, layer.feed_forward.down]
        for part in (layer.attention.qkv, layer.feed_forward.gate_up):
            found += [part.linear] if isinstance(part, FusedProjections) else [*part.linears]
    return [linear for linear in found if isinstance(linear, PackedLinear)]


@each_scheme
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_target_computes_what_its_weights_say(tmp_path: Path, name: str, is_fused: bool) -> None:
    write(tmp_path, name)
    want = logits_of(loaded(tmp_path / "dense"))
    packed = loaded(tmp_path / "packed", is_fused=is_fused)
    assert len(layers_of(packed)) == (2 * 4 if is_fused else 2 * 7)
    assert float((logits_of(packed) - want).abs().max()) <= 1e-5


@each_scheme
def test_a_head_computes_what_its_weights_say(tmp_path: Path, name: str) -> None:
    target = loaded(pairs.write_target(tmp_path / "t"))
    case, scheme = pairs.CASES["official"], SCHEMES[name]
    packed, dense = quantise_file(pairs.stored_tensors(case), scheme.quantise)
    pairs.save(tmp_path / "dense", case.config, dense)
    quantised = case.config | {"quantization_config": scheme.config}
    pairs.save(tmp_path / "packed", quantised, packed)
    heads = [
        load_head(tmp_path / kind, target, pytorch.prepare, HeadOptions(is_fused=is_fused))
        for kind, is_fused in (("dense", False), ("packed", False), ("packed", True))
    ]
    assert isinstance(heads[1].first.attention.output, PackedLinear)
    rows = causal_batch([torch.arange(12)], packed_slots([12]))
    taps = torch.randn(12, 3, pairs.HIDDEN, generator=torch.Generator().manual_seed(1))
    want, *got = (head.extend(rows, taps, head.allocate_pool(13)).logits for head in heads)
    for logits in got:
        assert float((want - logits).abs().max()) <= 1e-5


@each_scheme
def test_layers_that_were_left_out_are_dense(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, LEFT_OUT)
    want = logits_of(loaded(tmp_path / "dense"))
    packed = loaded(tmp_path / "packed", is_fused=True)
    assert float((logits_of(packed) - want).abs().max()) <= 1e-5
    mlp = packed.layers[1].feed_forward
    assert isinstance(mlp, GatedMLP) and isinstance(mlp.gate_up, SeparateProjections)
    assert isinstance(packed.layers[0].attention.qkv, FusedProjections)


@each_scheme
def test_a_row_has_the_bits_it_has_alone(tmp_path: Path, name: str) -> None:
    for layer in layers_of(loaded(write(tmp_path, name) / "packed", is_fused=True)):
        n_in = pairs.HIDDEN if layer.n_out != pairs.HIDDEN else None
        x = torch.randn(70, n_in or _inputs(layer), generator=torch.Generator().manual_seed(3))
        together = layer(x)
        for first, end in ((0, 1), (3, 19), (20, 69)):
            assert torch.equal(layer(x[first:end]), together[first:end])
        assert layer(x[:0]).shape == (0, layer.n_out)


def _inputs(layer: PackedLinear) -> int:
    codes = layer.weights["codes"]
    return codes.shape[1] * (2 if layer.kernel.card.name == "multiply_int4" else 1)


@each_scheme
def test_memory_is_that_of_the_packed_tensors(tmp_path: Path, name: str) -> None:
    directory = write(tmp_path, name) / "packed"
    target = loaded(directory)
    packed = read_packed(read_config(directory))
    assert packed is not None
    counted = weight_bytes(target.geometry, torch.float32, MixedFormat(packed))
    orders = sum(o.nbytes for layer in layers_of(target) if (o := layer.order) is not None)
    beside = sum(
        t.nbytes
        for n, t in load_file(directory / "model.safetensors").items()
        if "norm" in n or n in ("model.embed_tokens.weight", "lm_head.weight")
    )
    assert sum(layer.n_bytes for layer in layers_of(target)) - orders + beside == counted
    assert counted < weight_bytes(target.geometry, torch.float32)


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_what_has_no_fast_product_is_refused_by_name(tmp_path: Path, name: str) -> None:
    pytest.importorskip("triton")
    products = PackedProducts("pytorch", demanded_by="perf_mode")
    with pytest.raises(UsageError, match=r"perf_mode: model\.layers\.0\..* has no fast product"):
        loaded(write(tmp_path, name) / "packed", packed=products)


@each_scheme
def test_a_packed_target_is_not_split_over_ranks(tmp_path: Path, name: str) -> None:
    from aerie.models.partition import Partition

    part = Partition(0, 2, lambda x: x, lambda x: x)
    with pytest.raises(UsageError, match=r"these are packed \("):
        loaded(write(tmp_path, name) / "packed", partition=part)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 8}, "8-bit AWQ is not supported"),
        ({"version": "gemv"}, "version 'gemv' of AWQ is not supported"),
        ({"zero_point": False}, "AWQ without zero points"),
        ({"group_size": 12}, "group_size 12"),
    ],
)
def test_other_kinds_of_awq_are_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    quantisation = {"quantization_config": SCHEMES["awq"].config | fields}
    pairs.write_target(tmp_path / "t", num_hidden_layers=1, **quantisation)
    with pytest.raises(ConfigFieldError, match=message):
        loaded(tmp_path / "t")


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_wrong_tensors_are_named(tmp_path: Path, name: str) -> None:
    directory = write(tmp_path, name) / "packed"
    tensors = load_file(directory / "model.safetensors")
    layer = "model.layers.0.self_attn.q_proj"
    tensors[f"{layer}.qweight"] = tensors[f"{layer}.qweight"].long()
    tensors[f"{layer}.qzeros"] = tensors[f"{layer}.qzeros"][:1]
    tensors[f"{layer}.perm"] = torch.zeros(3)
    del tensors["model.layers.1.mlp.up_proj.scales"]
    pairs.save(directory, config_of(SCHEMES[name], num_hidden_layers=2), tensors)
    with pytest.raises(TensorMismatchError) as caught:
        loaded(directory)
    said = str(caught.value)
    for fragment in (
        f"{layer}.qweight I64, must be I32", "qzeros [1, 4], must be [2, 4]",
        "unknown (1):", "up_proj.scales [2, 48]",
    ):  # fmt: skip
        assert fragment in said, said


@pytest.mark.parametrize(
    ("scheme", "fields", "message"),
    [
        ("fp8_layer", {"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        ("fp8_blocks", {"weight_block_size": [128]}, "not the two sides of a block"),
        ("fp8_outputs", {"config_groups": {}}, "0 groups, must be one"),
        ("fp8_outputs", {"format": "pack-quantized"}, "format 'pack-quantized'"),
    ],
)
def test_other_kinds_of_fp8_are_refused(
    tmp_path: Path, scheme: str, fields: dict[str, Any], message: str
) -> None:
    quantisation = {"quantization_config": SCHEMES[scheme].config | fields}
    pairs.write_target(tmp_path / "t", num_hidden_layers=1, **quantisation)
    with pytest.raises(ConfigFieldError, match=message):
        loaded(tmp_path / "t")


def test_floats_that_are_none_are_named(tmp_path: Path) -> None:
    directory = write(tmp_path, "fp8_blocks") / "packed"
    tensors = load_file(directory / "model.safetensors")
    layer = "model.layers.0.self_attn.q_proj"
    tensors[f"{layer}.weight"].view(torch.uint8)[3, 4] = 255
    pairs.save(directory, config_of(SCHEMES["fp8_blocks"], num_hidden_layers=2), tensors)
    with pytest.raises(TensorMismatchError, match=rf"{layer}\.weight in torch\.float8_e4m3fn"):
        loaded(directory)
    tensors[f"{layer}.weight_scale_inv"] = tensors[f"{layer}.weight_scale_inv"][:1]
    pairs.save(directory, config_of(SCHEMES["fp8_blocks"], num_hidden_layers=2), tensors)
    with pytest.raises(TensorMismatchError, match=r"weight_scale_inv \[1, 1\], must be \[2, 1\]"):
        loaded(directory)


def test_groups_that_do_not_divide_the_inputs_are_named(tmp_path: Path) -> None:
    directory = write(tmp_path, "gptq", intermediate_size=40) / "packed"
    with pytest.raises(TensorMismatchError, match=r"down_proj has 40 inputs, which groups of 16"):
        loaded(directory)
