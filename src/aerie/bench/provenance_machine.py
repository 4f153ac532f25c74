"""What a machine compiles with, and what its GPU runs at under load: lines of the manifest."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from aerie.bench.provenance import MEMORY_CLOCK, SM_CLOCK, open_meter

SIZE, N_PRODUCTS = 8192, 600  # about a second of an H200
SETTLED = 0.5  # seconds into it when clocks and power are read


def compilers() -> dict[str, str]:
    """What compiled torch, and what compiles kernels here; only what is there is named."""
    shown = torch.__config__.show()
    gcc = [line.strip(" -") for line in shown.splitlines() if "GCC" in line or "clang" in line]
    found = {"compiler of torch": gcc[0]} if gcc else {}
    nvcc, spec = shutil.which("nvcc"), importlib.util.find_spec("triton")
    tools = {"nvcc": Path(nvcc)} if nvcc else {}
    if spec is not None and spec.origin:
        tools["ptxas"] = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    return found | {name: _release(path) for name, path in tools.items() if path.is_file()}


def _release(tool: Path) -> str:
    """The line of a CUDA tool's `--version` that has its release."""
    asked = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60)
    lines = [line.strip() for line in asked.stdout.splitlines() if "release" in line]
    return lines[0] if lines else f"did not say (status {asked.returncode})"


def under_load(device: str) -> dict[str, Any]:
    """Clocks and board power in the middle of large products; nothing where no meter is."""
    meter = open_meter(device)
    if meter is None:
        return {}
    a, b = (torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(N_PRODUCTS):
        torch.mm(a, b)
    time.sleep(SETTLED)
    found = {
        "sm_mhz under load": meter.megahertz(SM_CLOCK),
        "memory_mhz under load": meter.megahertz(MEMORY_CLOCK),
        "watts under load": meter.watts(),
    }
    torch.cuda.synchronize(device)
    return found
