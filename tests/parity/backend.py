"""The backends under test: one call that takes and gives NumPy arrays, whatever runs inside."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aerie.kernels import load
from aerie.kernels.arrays import as_numpy
from aerie.kernels.registry import Kernels, backend_info, why_unavailable

BACKENDS = ("reference", "numpy", "pytorch", "hls")


def runnable(name: str) -> Any:
    """A backend as a parameter, skipped with the reason where it cannot run."""
    reason = why_unavailable(backend_info(name))
    return pytest.param(name, marks=pytest.mark.skipif(bool(reason), reason=f"{name}: {reason}"))


each_backend = pytest.mark.parametrize("backend", [runnable(name) for name in BACKENDS])


@cache
def kernels_of(backend: str, data_errors: str = "raise") -> Kernels:
    """A loaded backend; loading it once is enough for the whole run."""
    return load(backend, data_errors=data_errors)


def run(backend: str, kernel: str, /, **inputs: Any) -> SimpleNamespace:
    """Call a kernel that must accept its inputs."""
    return _named(kernels_of(backend)[kernel](**inputs))


def run_with_status(backend: str, kernel: str, /, **inputs: Any) -> SimpleNamespace:
    """Call a kernel that says in its status words which requests it refused."""
    return _named(kernels_of(backend, "status")[kernel](**inputs))


def _named(result: Any) -> SimpleNamespace:
    return SimpleNamespace(**{name: as_numpy(value) for name, value in result._asdict().items()})


def column(values: Any, dtype: str = "int64") -> np.ndarray:
    """One value per request."""
    return np.asarray(list(values), dtype=dtype)


def starts(counts: Any) -> np.ndarray:
    """Exclusive running sum as int32, one entry more than there are counts."""
    return np.asarray([0, *np.cumsum(list(counts), dtype=np.int64)], dtype=np.int32)
