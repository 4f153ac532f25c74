"""What a GPU is to its kernels: one record, read from the driver, or from data where there is none.

Tiles, launches and tables of tuned kernels follow from the record alone, never from a name: a chip
that is not listed here is served like one that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class DeviceRecord:
    """The facts of a device that tiles depend on."""

    capability: int  # ten times the compute capability: 90 for 9.0
    processors: int
    shared_bytes: int  # most shared memory of one program
    registers: int  # of 32 bits, of one processor

    @property
    def architecture(self) -> str:
        """What compilers call it."""
        return f"sm_{self.capability}"

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may be brought up while the one before it still runs."""
        return self.capability >= 90

    @property
    def multiplies_from_shared(self) -> bool:
        """Whether matrix units read shared memory; elsewhere operands pass through registers."""
        return self.capability // 10 in (9, 10)


# A CPU only interprets, so nothing is scarce; processors enough that tests see several splits.
HOST = DeviceRecord(capability=0, processors=8, shared_bytes=1 << 40, registers=1 << 40)

# One chip of every architecture that kernels are compiled for. Shared memory and registers: CUDA
# C++ Programming Guide, technical specifications by compute capability (1 KB more of a program is
# the system's). Processors: the vendor's data sheets; the H200's are what its driver says.
CHIPS = {
    "a100": DeviceRecord(80, 108, 163 << 10, 1 << 16),
    "rtx_3090": DeviceRecord(86, 82, 99 << 10, 1 << 16),
    "l40s": DeviceRecord(89, 142, 99 << 10, 1 << 16),
    "h200": DeviceRecord(90, 132, 227 << 10, 1 << 16),
    "b200": DeviceRecord(100, 148, 227 << 10, 1 << 16),
    "rtx_5090": DeviceRecord(120, 170, 99 << 10, 1 << 16),
}
# The one that shipped tiles, products and costs were measured on; no other has run a kernel.
MEASURED = "h200"


@cache
def record_of(device: torch.device) -> DeviceRecord:
    """The record of a device that is here."""
    if device.type != "cuda":
        return HOST
    found: Any = torch.cuda.get_device_properties(device)  # torch's stubs know fewer of its names
    return DeviceRecord(
        capability=10 * found.major + found.minor,
        processors=found.multi_processor_count,
        shared_bytes=found.shared_memory_per_block_optin,
        registers=found.regs_per_multiprocessor,
    )


def evidence(capability: int) -> str:
    """What is known of the kernels on an architecture."""
    if capability == CHIPS[MEASURED].capability:
        return "compiled and run"
    is_compiled = any(chip.capability == capability for chip in CHIPS.values())
    return "compiled, never run" if is_compiled else "neither compiled nor run"
