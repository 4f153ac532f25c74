"""Where a number comes from: device, versions, source hash, commit and date."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import aerie

COMMIT_VARIABLE = "AERIE_COMMIT"


def provenance(device: str) -> dict[str, Any]:
    """Everything a measured row must carry to be believed and replayed."""
    import torch

    from aerie.assemble_device import device_name

    found: dict[str, Any] = {
        "aerie": aerie.__version__,
        "commit": _commit(),
        "source_sha256": source_hash(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": device_name(device),
    }
    if device.startswith("cuda"):
        found["cuda"] = torch.version.cuda
    return found


def source_hash() -> str:
    """SHA-256 over the package's own Python and C++ files: names and contents, sorted."""
    root = Path(aerie.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".hpp", ".cpp"):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _commit() -> str:
    """The commit passed in (GPU machines often get a bare copy), else git's, else unknown."""
    passed = os.environ.get(COMMIT_VARIABLE)
    if passed:
        return passed
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(aerie.__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return asked.stdout.strip() or "unknown"
