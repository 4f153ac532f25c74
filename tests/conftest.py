"""Settings shared by every test: threads, hypothesis, and the reason a GPU test is skipped."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

# Before anything imports torch or NumPy, which read these once: with one process per core, more
# threads only take turns, and the order of a parallel reduction would vary.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# GPU machines are often bare: tests that need hypothesis are skipped there by their own import.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("aerie", derandomize=True, deadline=None, database=None)
    settings.load_profile("aerie")


def _why_no_gpu() -> str | None:
    """Say why GPU tests cannot run here, or None when they can."""
    # Asked first, because torch takes seconds to import, in every worker and in their master.
    if not any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/dxg")):
        return "gpu test: no NVIDIA device here"
    if not importlib.util.find_spec("torch"):
        return "gpu test: torch is not installed"
    import torch  # late: a run without GPU tests should not pay for it

    if not torch.cuda.is_available():
        return f"gpu test: torch {torch.__version__} finds no CUDA device"
    return None


# Read when the first Triton kernel is imported, by whichever test of a worker comes first: set
# later, helpers of other kernels are compiled already and cannot be interpreted.
if _why_no_gpu():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and (reason := _why_no_gpu()):
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def rows_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted products whose entries do not depend on each other, as a matrix unit makes them.

    A CPU's library looks at where an entry stands among others: on some chips its last bits follow.
    Sums in float64 are the same in any order once they are rounded.
    """
    import numpy as np
    import triton.runtime.interpreter as interpreter

    def create_dot(self: object, a: Any, b: Any, d: Any, *_: object) -> Any:
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
        return interpreter.TensorHandle(product.astype(d.data.dtype) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
