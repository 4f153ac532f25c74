"""Where a number comes from: device, versions, sources, commit and date; and what it took."""

from __future__ import annotations

import ctypes
import datetime
import hashlib
import io
import os
import platform
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import aerie

T = TypeVar("T")
COMMIT_VARIABLE = "AERIE_COMMIT"
PEERS = ("vllm", "sglang", "triton", "transformers")
QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
SM_CLOCK, MEMORY_CLOCK = 1, 2  # nvmlClockType_t
HASHED = (".py", ".hpp", ".cpp")
TEXT = 96  # bytes of NVML's longest version string and more


def provenance(device: str) -> dict[str, Any]:
    """Everything a measured row must carry to be believed and replayed."""
    import torch

    from aerie.assemble.device import device_name

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


def device_label(device: str) -> str:
    """A device's own name as files carry it: `NVIDIA H200` is h200, any CPU is cpu."""
    known = device.lower().replace("nvidia", "").split()
    return known[0] if device.lower().startswith("nvidia") and known else "cpu"


def source_hash() -> str:
    """Of the package's own sources as they lie here."""
    root = Path(aerie.__file__).parent
    paths = (path for path in root.rglob("*") if path.suffix in HASHED)
    return hash_of({path.relative_to(root).as_posix(): path.read_bytes() for path in paths})


def hash_of(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the names and contents of Python and C++ files, sorted as paths."""
    digest = hashlib.sha256()
    for name in sorted(files, key=Path):
        if name.endswith(HASHED):
            digest.update(name.encode() + files[name])
    return digest.hexdigest()


def _commit() -> str:
    """The commit passed in (GPU machines often get a bare copy), else git's, else unknown."""
    passed = os.environ.get(COMMIT_VARIABLE)
    return passed or whole_name(Path(aerie.__file__).parent, "HEAD") or "unknown"


def peer_provenance() -> dict[str, Any]:
    """As of any measured row; the GPU is asked from outside, where no library has opened it yet."""
    return {**provenance("cpu"), **{name: installed(name) for name in PEERS}, **_gpu()}


def installed(package: str) -> str | None:
    """Its version; None where it is not there."""
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


def whole_name(root: Path, commit: str) -> str | None:
    """The full hash of a commit; None where git or the commit is not there."""
    try:
        return _git(root, "rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def files_at(
    root: Path, commit: str, folder: str, is_wanted: Callable[[str], bool]
) -> dict[str, bytes]:
    """Contents of the wanted files below a folder, by path."""
    packed = io.BytesIO(_git(root, "archive", "--format=tar", commit, folder))
    with tarfile.open(fileobj=packed) as files:
        wanted = [file for file in files if file.isfile() and is_wanted(file.name)]
        return {file.name: cast(IO[bytes], files.extractfile(file)).read() for file in wanted}


def _git(root: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


@dataclass(frozen=True, eq=False)
class Meter:
    """One GPU's counters."""

    library: Any
    handle: ctypes.c_void_p

    def joules(self) -> float | None:
        """Energy since the driver was loaded; None where the device does not count it."""
        return self._read(ctypes.c_ulonglong, "nvmlDeviceGetTotalEnergyConsumption", scale=1e-3)

    def megahertz(self, clock: int) -> float | None:
        """A clock now."""
        return self._read(ctypes.c_uint, "nvmlDeviceGetClockInfo", clock)

    def watts(self) -> float | None:
        """What the board draws now."""
        return self._read(ctypes.c_uint, "nvmlDeviceGetPowerUsage", scale=1e-3)

    def driver(self) -> str | None:
        """The driver's version."""
        text = ctypes.create_string_buffer(TEXT)
        is_ok = self.library.nvmlSystemGetDriverVersion(text, TEXT) == SUCCESS
        return text.value.decode() if is_ok else None

    def _read(self, kind: type[Any], name: str, *which: int, scale: float = 1) -> float | None:
        value = kind()
        status = getattr(self.library, name)(self.handle, *which, ctypes.byref(value))
        return value.value * scale if status == SUCCESS else None


def open_meter(device: str) -> Meter | None:
    """Counters of the first GPU; None on a CPU, without NVML, or where it refuses."""
    if not device.startswith("cuda"):
        return None
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    handle = ctypes.c_void_p()
    index = int(device.partition(":")[2] or 0)
    is_open = library.nvmlInit_v2() == SUCCESS
    if not is_open or library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != SUCCESS:
        return None
    return Meter(library, handle)


def device_facts(device: str) -> dict[str, Any]:
    """Driver and clocks, null where they cannot be read."""
    meter = open_meter(device)
    return {
        "driver": meter.driver() if meter else None,
        "sm_mhz": meter.megahertz(SM_CLOCK) if meter else None,
        "memory_mhz": meter.megahertz(MEMORY_CLOCK) if meter else None,
    }


def metered(meter: Meter | None, work: Callable[[], T]) -> tuple[T, float | None]:
    """What some work returns, and the joules it took; None where the device does not tell them."""
    before = meter.joules() if meter else None
    result = work()
    after = meter.joules() if meter else None
    return result, None if before is None or after is None else after - before


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
    begin = time.perf_counter()

    def repeated() -> int:
        n_tokens = 0
        while time.perf_counter() - begin < seconds:
            n_tokens += work()
        return n_tokens

    n_tokens, joules = metered(meter, repeated)
    return Spent(n_tokens, time.perf_counter() - begin, joules)
