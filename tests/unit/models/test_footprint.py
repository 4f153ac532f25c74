"""Memory: what the weights take, and sizes that are refused before anything is allocated."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.attention import pytorch
from aerie.errors import ConfigFieldError, TensorMismatchError, UsageError
from aerie.models import footprint
from aerie.models.fields import Fields
from aerie.models.footprint import weight_bytes
from aerie.models.geometry import parse_geometry
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models.handmade import CONFIG, EXPERTS, random_tensors, write_checkpoint


@pytest.mark.parametrize(
    "fields", [{}, {"tie_word_embeddings": True}, EXPERTS | {"quantization_config": None}]
)
def test_bytes_are_those_of_the_tensors(fields: dict[str, Any]) -> None:
    config = CONFIG | fields
    want = sum(tensor.numel() for tensor in random_tensors(config).values())
    geometry = parse_geometry(Fields(config, "test"))
    assert weight_bytes(geometry, torch.float32) == 4 * want
    assert weight_bytes(geometry, torch.bfloat16) == 2 * want


def test_packed_experts_count_as_they_run() -> None:
    packed = parse_geometry(Fields(CONFIG | EXPERTS, "test"))
    tensors = random_tensors(CONFIG | EXPERTS, torch.bfloat16)
    assert weight_bytes(packed, torch.bfloat16) == sum(t.nbytes for t in tensors.values())


def test_weights_that_cannot_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, CONFIG, dtype=torch.bfloat16)
    monkeypatch.setattr(footprint, "device_bytes", lambda device: 1000)
    with pytest.raises(UsageError, match=r"GB in float32, cpu has 0\.0 GB; use a smaller model"):
        load_decoder(tmp_path, pytorch.prepare, LoadOptions(dtype=torch.float32))
    load_decoder(tmp_path, pytorch.prepare, LoadOptions())  # the mapped file takes none


def test_absurd_sizes_allocate_nothing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim")
    largest: dict[str, Any] = dict.fromkeys(sizes, 1 << 24)
    for fields in (largest, largest | {"num_key_value_heads": 1 << 24, "num_hidden_layers": 4096}):
        with pytest.raises(TensorMismatchError, match="wrong shape"):
            load_decoder(_rewritten(tmp_path, fields), pytorch.prepare, LoadOptions())
    for name in (*sizes, "num_hidden_layers"):
        with pytest.raises(ConfigFieldError, match=f"{name}: {1 << 40} is outside"):
            load_decoder(_rewritten(tmp_path, {name: 1 << 40}), pytorch.prepare, LoadOptions())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def _rewritten(directory: Path, fields: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(CONFIG | fields))
    return directory
