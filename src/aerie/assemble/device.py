"""Where an engine runs and in which numbers: one choice, with its reason, for every reader."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import torch

from aerie.config import ModelConfig, require
from aerie.models.resolved import Resolved

# Hidden size from which on threads share a layer's products. By size, not by measurement: its
# weights (some 50 MB in float32) are then read from memory, and one core does not fill its bus.
SHARED_FROM = 1024
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def settle_model(config: ModelConfig) -> ModelConfig:
    """The configuration with device and dtype chosen; raises where what was asked is not here."""
    device = choose_device(config.device).value
    return replace(config, device=device, dtype=choose_dtype(config.dtype, device).value)


def choose_device(asked: str) -> Resolved[str]:
    """The device, with the reason for it. Asked for, it must be there."""
    if asked == "cpu":
        return Resolved("device", asked, "config", "asked for")
    missing = _why_no_cuda()
    if asked == "auto":
        if missing is not None:
            return Resolved("device", "cpu", "automatic", missing)
        name = torch.cuda.get_device_name("cuda")
        return Resolved("device", "cuda", "automatic", f"torch sees {name}")
    require(missing is None, f"device {asked}: {missing}; use device cpu or auto")
    index = int(asked.partition(":")[2] or 0)
    count = torch.cuda.device_count()
    require(index < count, f"device {asked}: torch sees {count} of them, the last is {count - 1}")
    return Resolved("device", asked, "config", "asked for")


def _why_no_cuda() -> str | None:
    """Why torch has no GPU to run on, or None."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) was built without CUDA"
    return f"torch {torch.__version__} sees no CUDA device"


def choose_dtype(asked: str, device: str) -> Resolved[str]:
    """The dtype of weights, KV and activations, with the reason for it.

    By the device alone, so that it is known before a checkpoint is: a float16 checkpoint is run as
    such by asking for it.
    """
    is_gpu = device.startswith("cuda")
    has_bfloat16 = not is_gpu or torch.cuda.is_bf16_supported(including_emulation=False)
    if asked != "auto":
        named = f"dtype {asked}: {device} has no bfloat16 arithmetic; use float16 or float32"
        require(asked != "bfloat16" or has_bfloat16, named)
        return Resolved("dtype", asked, "config", "asked for")
    if not is_gpu:
        reason = "bfloat16 products are slow on a CPU, and some CPUs have none"
        return Resolved("dtype", "float32", "automatic", reason)
    if not has_bfloat16:
        reason = "this GPU has no bfloat16, and float16 overflows in some models: ask for it"
        return Resolved("dtype", "float32", "automatic", reason)
    reason = "half the bytes of float32 and the same range"
    return Resolved("dtype", "bfloat16", "automatic", reason)


def choose_threads(asked: int, hidden_size: int, device: str) -> Resolved[int]:
    """CPU threads for a model of such a width; `asked` 0: by what its products can share.

    The built-in pair (256 wide), plain decoding on two cores: 129 tokens/s with one thread, 105
    with two, and 16 with two when another process wants a core (2026-11-15).
    """
    if asked:
        return Resolved("threads", asked, "option", "asked for")
    usable = _usable_cores()
    if device.startswith("cuda"):
        return Resolved("threads", usable, "automatic", "the GPU computes; weights load faster")
    if hidden_size < SHARED_FROM:
        reason = f"a model {hidden_size} wide has products too small to share"
        return Resolved("threads", 1, "automatic", reason)
    reason = f"{usable} of {os.cpu_count() or 1} cores may be used here"
    return Resolved("threads", usable, "automatic", reason)


def _usable_cores() -> int:
    """What torch would take (cores of its own settings), but no more than a container is given."""
    most = torch.get_num_threads()
    if CPU_QUOTA.is_file():
        quota, _, period = CPU_QUOTA.read_text(encoding="ascii").partition(" ")
        if quota != "max":
            most = min(most, int(quota) // int(period))
    return max(most, 1)


def device_name(device: str) -> str:
    """What a device is called where its measurements are kept."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} ({os.cpu_count()} cores)"
    return f"{platform.processor() or platform.machine()} ({os.cpu_count()} cores)"
