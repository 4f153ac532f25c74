"""A GPU that is not there: what torch is asked about one, and nothing that computes."""

from types import SimpleNamespace

import pytest
import torch

from aerie.chips import CHIPS, DeviceRecord

NAME = "NVIDIA H200"
TOTAL, FREE = 150 << 30, 140 << 30


def pretend(
    monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool = True, chip: DeviceRecord = CHIPS["h200"]
) -> None:
    """Let torch say that it sees one."""
    facts = SimpleNamespace(
        major=chip.capability // 10,
        minor=chip.capability % 10,
        multi_processor_count=chip.processors,
        shared_memory_per_block_optin=chip.shared_bytes,
        regs_per_multiprocessor=chip.registers,
    )
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: facts,
        "is_bf16_supported": lambda including_emulation=True: has_bfloat16,
        "mem_get_info": lambda device=None: (FREE, TOTAL),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
