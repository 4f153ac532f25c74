"""Peak memory of loading: at most 1.2 times the weights, mapped as stored or cast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aerie
from tests.unit.models.handmade import CONFIG, write_checkpoint

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


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("dtype", "widening"), [("bfloat16", 1), ("float32", 2)])
def test_peak_is_the_weights(
    checkpoints: tuple[Path, Path, int], dtype: str, widening: int
) -> None:
    small, large, stored = checkpoints
    weights = stored * widening
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(large), dtype],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(aerie.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )
    found = json.loads(done.stdout)
    print(f"{dtype}: weights {weights / 1e6:.0f} MB, peak {found['peak'] / weights:.3f} times that")
    assert 0.95 * weights <= found["held"]  # the measurement sees the weights at all
    assert found["peak"] <= 1.2 * weights, f"{found['peak'] / weights:.2f} times the weights"
