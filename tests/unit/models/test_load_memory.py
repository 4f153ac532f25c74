"""Peak memory of loading: at most 1.2 times plain weights, packed ones and two shards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import aerie
from aerie.models.blueprint import expected_tensors
from aerie.models.fields import Fields
from aerie.models.geometry import parse_geometry
from aerie.models.packed import MixedFormat
from aerie.models.packed_formats import read_packed
from tests.unit.models.handmade import CONFIG, write_checkpoint, write_directory

# 103 M weights: 206 MB stored as bf16, 412 MB as fp32.
WIDE = CONFIG | {
    "vocab_size": 1000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}

MEASURE = """
import json, sys
from pathlib import Path
import torch
from aerie.attention import pytorch
from aerie.models.load import LoadOptions, load_decoder

def kilobytes(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])

small, large, dtype = Path(sys.argv[1]), Path(sys.argv[2]), getattr(torch, sys.argv[3])
options = LoadOptions(dtype=dtype)
load_decoder(small, pytorch.prepare, options)  # whatever is allocated once is not the weights'
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
decoder = load_decoder(large, pytorch.prepare, options)
peak = kilobytes("VmHWM") - before
print(json.dumps({"peak": peak * 1024, "held": (kilobytes("VmRSS") - before) * 1024}))
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    parent = tmp_path_factory.mktemp("memory")
    small = write_checkpoint(parent / "small", CONFIG, torch.bfloat16)
    large = write_checkpoint(parent / "large", WIDE, torch.bfloat16, n_shards=2)
    stored = sum(path.stat().st_size for path in large.glob("*.safetensors"))
    return small, large, stored


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")


def measured(small: Path, large: Path, dtype: str) -> dict[str, int]:
    """Bytes at the peak of loading and after it, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(large), dtype],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(aerie.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


@linux
@pytest.mark.parametrize(("dtype", "widening"), [("bfloat16", 1), ("float32", 2)])
def test_peak_is_the_weights(
    checkpoints: tuple[Path, Path, int], dtype: str, widening: int
) -> None:
    small, large, stored = checkpoints
    weights = stored * widening
    found = measured(small, large, dtype)
    print(f"{dtype}: weights {weights / 1e6:.0f} MB, peak {found['peak'] / weights:.3f} times that")
    assert 0.95 * weights <= found["held"]  # the measurement sees the weights at all
    assert found["peak"] <= 1.2 * weights, f"{found['peak'] / weights:.2f} times the weights"


PACKED = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def write_packed(directory: Path, config: dict[str, Any], n_shards: int) -> Path:
    """Random codes in the shapes that a packed checkpoint has."""
    fields = Fields(config, "test")
    packed = read_packed(fields)
    assert packed is not None
    tensors = {}
    for spec in expected_tensors(parse_geometry(fields), MixedFormat(packed)):
        if spec.is_optional:
            continue
        if spec.dtypes == ("I32",):
            held = torch.randint(0, 256, (*spec.shape, 4), dtype=torch.uint8)
            tensors[spec.name] = held.view(torch.int32).squeeze(-1)
        elif spec.dtypes == ("F8_E4M3",):
            codes = torch.randint(0, 120, spec.shape, dtype=torch.uint8)
            tensors[spec.name] = codes.view(torch.float8_e4m3fn)
        else:
            tensors[spec.name] = torch.rand(spec.shape).to(torch.bfloat16)
    return write_directory(directory, config, tensors, n_shards)


@linux
@pytest.mark.parametrize(
    "name", ["gptq", *(pytest.param(name, marks=pytest.mark.slow) for name in ("awq", "fp8"))]
)
def test_packed_weights_take_two_shards_more_than_they_hold(tmp_path: Path, name: str) -> None:
    quantised = {"quantization_config": PACKED[name]}
    small = write_packed(tmp_path / "small", WIDE | quantised | {"num_hidden_layers": 1}, 1)
    large = write_packed(tmp_path / "large", WIDE | quantised, 4)
    shards = [path.stat().st_size for path in large.glob("*.safetensors")]
    found = measured(small, large, "bfloat16")
    print(f"{name}: {sum(shards) / 1e6:.0f} MB in files, {found} in memory")
    # Scales are wider than they are stored.
    assert found["peak"] <= 1.05 * sum(shards) + 2 * max(shards)
