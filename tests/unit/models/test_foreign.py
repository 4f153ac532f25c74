"""Formats that are not read: each is recognised, and the error says what to use instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.attention import pytorch
from aerie.errors import CheckpointError, ConfigFieldError, TensorMismatchError, WeightFileError
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.fields import Fields
from aerie.models.foreign import METHODS
from aerie.models.geometry import parse_geometry
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.quantisation import READ
from aerie.models.weights import SINGLE
from tests.unit.models import pairs
from tests.unit.models.handmade import CONFIG, EXPERTS, random_tensors, write_directory

QUERY = "model.layers.0.self_attn.q_proj"


def load(directory: Path) -> None:
    load_decoder(directory, pytorch.prepare, LoadOptions())


def refusal(**fields: Any) -> str:
    with pytest.raises(ConfigFieldError) as caught:
        parse_geometry(Fields(CONFIG | fields, "config.json"))
    return str(caught.value)


@pytest.mark.parametrize("method", sorted(METHODS.keys() - READ.keys()))
def test_every_known_method_is_explained(method: str) -> None:
    message = refusal(quantization_config={"quant_method": method})
    assert f"quant_method '{method}' is not supported: it is {METHODS[method]}; " in message
    assert "Supported for this architecture: awq (4-bit), compressed-tensors (float-" in message
    assert "use the" in message or "download the model" in message


def test_no_method_of_transformers_is_missing() -> None:
    pytest.importorskip("transformers")
    from transformers.utils.quantization_config import QuantizationMethod

    assert {method.value for method in QuantizationMethod} <= METHODS.keys()


# As public configs write them.
@pytest.mark.parametrize(
    ("fields", "fragments"),
    [
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack"}},
            ["'compressed-tensors'", "format 'nvfp4-pack'"],
        ),
        ({"quantization_config": {"quant_algo": "NVFP4"}}, ["ModelOpt", "quant_algo 'NVFP4'"]),
        ({"quantization_config": {"load_in_8bit": True}}, ["bitsandbytes"]),
        ({"compression_config": {"format": "dense"}}, ["compressed-tensors"]),
        (
            {
                "quantization": {"group_size": 64, "bits": 4},
                "quantization_config": {"group_size": 64, "bits": 4},
            },
            ["MLX", "bits 4", "download the model it was made from"],
        ),
        ({"quantization_config": {"bits": 4}}, ["quant_method: missing, must be a string"]),
        ({"quantization_config": {"quant_method": 4}}, ["quant_method: 4 is not a string"]),
        ({"quantization_config": {"quant_method": "q9"}}, ["a quantisation aerie does not know"]),
        (
            EXPERTS | {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            ["GPTQ, which is not read for models with experts", "Supported", "mxfp4 (experts)"],
        ),
    ],
)
def test_methods_in_every_public_spelling(fields: dict[str, Any], fragments: list[str]) -> None:
    message = refusal(**fields)
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_eight_bit_floats_without_a_config(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = random_tensors(CONFIG)
    tensors[f"{QUERY}.weight"] = tensors[f"{QUERY}.weight"].to(dtype)
    tensors[f"{QUERY}.weight_scale"] = torch.ones(1)
    tensors["model.norm.weight"][0] = torch.nan  # still found beside it
    with pytest.raises(TensorMismatchError) as caught:
        load(write_directory(tmp_path, CONFIG, tensors))
    message = str(caught.value)
    assert "wrong dtype (1):" in message and "must be F32 or BF16 or F16" in message
    assert "FP8 weights are read" in message and "use the unquantised model" in message
    assert "not finite (1):" in message and "unknown (1):" in message


def test_eight_bit_floats_in_a_head(tmp_path: Path) -> None:
    target = load_decoder(pairs.write_target(tmp_path / "t"), pytorch.prepare, LoadOptions())
    case = pairs.CASES["official"]
    tensors = pairs.stored_tensors(case)
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.float8_e4m3fn)
    pairs.save(tmp_path / "h", case.config, tensors)
    with pytest.raises(
        TensorMismatchError, match=r"(?s)fc\.weight F8_E4M3.*FP8 weights are read where"
    ):
        load_head(tmp_path / "h", target, pytorch.prepare, HeadOptions())


# An unknown tensor, and what it must tell; said once, however many there are.
@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("qweight", "GPTQ or AWQ weights in layers that config.json declares plain"),
        ("weight_packed", "compressed-tensors"),
        ("weight_scale_inv", "FP8 or NVFP4"),
        ("weight.absmax", "bitsandbytes"),
        ("weight.quant_state.bitsandbytes__nf4", "bitsandbytes (int8"),
        ("q_invperm", "ExLlamaV2"),
        ("trellis", "ExLlamaV3"),
        ("W_q", "HQQ"),
        ("biases", "MLX"),
        ("lora_A.weight", "LoRA adapter"),
        ("unheard_of", "come from the same model"),
    ],
)
def test_tensors_of_other_formats_are_recognised(tmp_path: Path, ending: str, told: str) -> None:
    extra = {f"model.layers.{i}.mlp.up_proj.{ending}": torch.zeros(1) for i in range(3)}
    with pytest.raises(TensorMismatchError) as caught:
        load(write_directory(tmp_path, CONFIG, random_tensors(CONFIG) | extra))
    assert str(caught.value).count(told) == 1


def test_a_head_in_the_place_of_its_target(tmp_path: Path) -> None:
    pairs.write_head(tmp_path, pairs.CASES["official"])
    with pytest.raises(TensorMismatchError, match="It is an EAGLE-3 head: give it as the draft"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tiny-Q4_K_M.gguf", "GGUF is llama.cpp's format and is not read; download the model"),
        ("adapter_config.json", "it is a LoRA adapter; merge it"),
        ("params.json", "its makers' own format"),
        ("model.onnx", "ONNX is not read"),
    ],
)
@pytest.mark.parametrize("has_config", [False, True])
def test_directories_of_other_formats(
    tmp_path: Path, name: str, told: str, has_config: bool
) -> None:
    write_directory(tmp_path, CONFIG, {"x": torch.zeros(1)})
    (tmp_path / SINGLE).unlink()
    (tmp_path / name).write_text("{}")
    if not has_config:
        (tmp_path / "config.json").unlink()
    kind: type[CheckpointError] = WeightFileError if has_config else ConfigFieldError
    with pytest.raises(kind) as caught:
        load(tmp_path)
    assert f"it holds {name}: " in str(caught.value) and told in str(caught.value)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigFieldError, match=r"has no config\.json; a model directory needs"):
        load(tmp_path)
