"""Where a number beside another engine comes from: ours, the peers' versions, and the GPU."""

from __future__ import annotations

import subprocess
from importlib import metadata
from typing import Any

from aerie.bench.provenance import provenance

PEERS = ("vllm", "sglang", "triton", "transformers")
QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


def peer_provenance() -> dict[str, Any]:
    """As of any measured row; the GPU is asked from outside, where no library has opened it yet."""
    return {**provenance("cpu"), **{name: _version(name) for name in PEERS}, **_gpu()}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> dict[str, str]:
    """Name and driver; nothing on a machine without one."""
    try:
        asked = subprocess.run(QUERY, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    device, _, driver = asked.stdout.splitlines()[0].partition(", ")
    return {"device": device, "driver": driver}
