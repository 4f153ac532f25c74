"""Kernels compiled by processes: left out at first, then found compiled; no GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

# Triton decides when it is imported whether it interprets, so this is a process of its own.
PLAY = """
import json, pathlib, time
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction
from aerie.kernels.triton_gpu import ahead, ahead_worker, replay

def launch():
    flags, numbers = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.int64)
    replay.build_active_slots(
        finished=flags, seq_len=numbers, length_limit=numbers, eos_terminated=flags
    )

run = JITFunction.run
JITFunction.run = lambda *given, warmup, **named: run(*given, warmup=True, **named)
triton.runtime.driver.set_active(ahead_worker.Absent(GPUTarget("cuda", 90, 32)))
said = []
for _ in range(2):
    replay._active_kernel.device_caches.clear()
    with ahead.Compilers() as compilers:
        launch()
        missed = frozenset(compilers.missed)
        while not compilers.has(missed):
            time.sleep(0.01)
        compilers.missed.clear()
        launch()
        said.append([len(missed), len(compilers.missed), compilers.n_asked, compilers.n_left])
    said.append(len(list(pathlib.Path(triton.knobs.cache.dir).rglob("*.cubin"))))
print(json.dumps(said))
"""


def test_a_kernel_is_compiled_once_by_a_process_and_then_found(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    played = subprocess.run(
        [sys.executable, "-c", PLAY], env=environment, capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stderr
    cold, n_cold, warm, n_warm = json.loads(played.stdout)
    assert cold == [1, 0, 1, 0]  # left out once, then found
    assert warm == [0, 0, 0, 0]  # an earlier process has compiled it
    assert n_cold == n_warm == 1  # what the process compiled is what the launch asked for
