"""Power, clocks and driver of a GPU from NVML, read through ctypes; nothing where it is absent."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
SM_CLOCK, MEMORY_CLOCK = 1, 2  # nvmlClockType_t
TEXT = 96  # bytes of NVML's longest version string and more


@dataclass(frozen=True, eq=False)
class Meter:
    """One GPU's counters."""

    library: Any
    handle: ctypes.c_void_p

    def joules(self) -> float | None:
        """Energy since the driver was loaded; None where the device does not count it."""
        value = ctypes.c_ulonglong()
        asked = self.library.nvmlDeviceGetTotalEnergyConsumption
        return None if asked(self.handle, ctypes.byref(value)) != SUCCESS else value.value / 1e3

    def watts(self) -> float | None:
        """Power now."""
        value = ctypes.c_uint()
        asked = self.library.nvmlDeviceGetPowerUsage
        return None if asked(self.handle, ctypes.byref(value)) != SUCCESS else value.value / 1e3

    def megahertz(self, clock: int) -> int | None:
        """A clock now."""
        value = ctypes.c_uint()
        asked = self.library.nvmlDeviceGetClockInfo
        return None if asked(self.handle, clock, ctypes.byref(value)) != SUCCESS else value.value

    def driver(self) -> str | None:
        """The driver's version."""
        text = ctypes.create_string_buffer(TEXT)
        is_ok = self.library.nvmlSystemGetDriverVersion(text, TEXT) == SUCCESS
        return text.value.decode() if is_ok else None


def open_meter(device: str) -> Meter | None:
    """Counters of the first GPU; None on a CPU, without NVML, or where it refuses."""
    if not device.startswith("cuda"):
        return None
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() != SUCCESS:
        return None
    index = int(device.partition(":")[2] or 0)
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != SUCCESS:
        return None
    return Meter(library, handle)


@dataclass(frozen=True)
class Spent:
    """Tokens of a stretch of work, its seconds and its energy."""

    n_tokens: int
    seconds: float
    joules: float | None

    @property
    def joules_per_token(self) -> float | None:
        """None where the device does not tell its energy."""
        if self.joules is None or not self.n_tokens:
            return None
        return round(self.joules / self.n_tokens, 4)

    @property
    def watts(self) -> float | None:
        """Mean power."""
        return None if self.joules is None else round(self.joules / self.seconds, 1)


def spend(meter: Meter | None, seconds: float, work: Callable[[], int]) -> Spent:
    """Repeat `work` (it returns its tokens) for so long, and read the counter at both ends."""
    before = meter.joules() if meter else None
    begin, n_tokens = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        n_tokens += work()
    after = meter.joules() if meter else None
    elapsed = time.perf_counter() - begin
    is_known = before is not None and after is not None
    return Spent(n_tokens, elapsed, after - before if is_known else None)  # type: ignore[operator]


def device_facts(device: str) -> dict[str, Any]:
    """Driver and clocks, null where they cannot be read."""
    meter = open_meter(device)
    return {
        "driver": meter.driver() if meter else None,
        "sm_mhz": meter.megahertz(SM_CLOCK) if meter else None,
        "memory_mhz": meter.megahertz(MEMORY_CLOCK) if meter else None,
    }
