"""The registry: backends declared as data, loaded late, overlaid on a base backend.

A backend is a package with a table `KERNELS: Mapping[str, Implementation]` and a function
`adopt(array, device, is_written)` that turns an array of another library into its own; a function
`refuse_device(kind)` may say why it cannot run on a device it knows. It may hold
a single kernel: the rest comes from its base, so a port with one finished kernel already runs
everything. A backend whose hardware holds less than the cards ask for also has a table
`LIMITS: Mapping[str, tuple[Limit, ...]]`; a call beyond them is refused before anything runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from aerie.errors import BackendUnavailableError, UnknownNameError, UsageError
from aerie.kernels.catalogue import ByName, catalogue
from aerie.kernels.implementation import Implementation
from aerie.kernels.kernel import Kernel as Kernel


@dataclass(frozen=True)
class BackendInfo:
    """A backend as data: where it lives, what it stands on, what it needs."""

    name: str
    module: str
    base: str | None
    needs: tuple[str, ...]
    devices: tuple[str, ...]
    summary: str
    tools: tuple[str, ...] = ()  # programs of the system


BACKENDS: tuple[BackendInfo, ...] = (
    BackendInfo(
        "reference", "aerie.kernels.reference", None, ("numpy",), ("cpu",), "NumPy: the definition"
    ),
    BackendInfo(
        "numpy",
        "aerie.kernels.numpy_cpu",
        "reference",
        ("numpy",),
        ("cpu",),
        "NumPy, vectorised: the cheapest round of an engine on a CPU, overlay on reference",
    ),
    BackendInfo(
        "pytorch",
        "aerie.kernels.pytorch",
        None,
        ("torch",),
        ("cpu", "cuda"),
        "PyTorch, vectorised over the batch, no synchronisation on CUDA",
    ),
    BackendInfo(
        "triton",
        "aerie.kernels.triton_gpu",
        "pytorch",
        ("torch", "triton"),
        ("cuda", "cpu"),
        "Triton, overlay on pytorch; on a CPU in Triton's interpreter, for tests",
    ),
    BackendInfo(
        "hls",
        "aerie.kernels.hls",
        "reference",
        ("numpy",),
        ("cpu",),
        "HLS C++ in C-simulation, overlay on reference",
        ("g++",),
    ),
)


def backend_info(name: str) -> BackendInfo:
    """The declaration of a backend; a wrong name gets the nearest right ones.

    `module:ATTRIBUTE` names a declaration outside aerie, anywhere on the Python path.
    """
    for info in BACKENDS:
        if info.name == name:
            return info
    if ":" in name:
        return _declared_outside(name)
    raise UnknownNameError("backend", name, [info.name for info in BACKENDS])


def _declared_outside(name: str) -> BackendInfo:
    module, _, attribute = name.partition(":")
    try:
        info = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BackendUnavailableError(
            f"backend {name}: {error}; the folder of {module} must be on PYTHONPATH"
        ) from error
    if not isinstance(info, BackendInfo):
        raise UsageError(f"backend {name} is {type(info).__name__}, expected a BackendInfo")
    return info


def why_unavailable(info: BackendInfo) -> str | None:
    """One sentence on why a backend cannot be loaded here, or None if it can."""
    for library in info.needs:
        if importlib.util.find_spec(library) is None:
            return f"the library {library} is not installed"
    for tool in info.tools:
        if shutil.which(tool) is None:
            return (
                f"the program {tool} is not installed (Debian and Ubuntu: apt-get install {tool})"
            )
    if importlib.util.find_spec(info.module) is None:
        return f"this version of aerie has no {info.module}"
    return None


class Kernels(ByName[Kernel]):
    """The kernels of one loaded backend, by name."""

    def __init__(
        self, backend: str, device: str, data_errors: str, kernels: Mapping[str, Kernel]
    ) -> None:
        super().__init__(kernels)
        self.backend = backend
        self.device = device
        self.data_errors = data_errors


def load(
    backend: str, device: str = "cpu", data_errors: str | None = None, trusts: bool = False
) -> Kernels:
    """Load a backend by name: `load("pytorch", device="cuda")["calculate_work_deltas"](...)`.

    `data_errors` is `raise` (default on a CPU) or `status` (default elsewhere: the per-request
    status word comes back in the result and nothing synchronises). `trusts`: shapes, dtypes and
    memory are not checked, for an engine whose arrays are right by construction. Raises
    UnknownNameError, BackendUnavailableError, or UsageError for a device it does not run on.
    """
    info = backend_info(backend)
    kind = device.partition(":")[0]
    if kind not in info.devices:
        raise UsageError(f"backend {backend} runs on {' or '.join(info.devices)}, not on {device}")
    if data_errors not in (None, "raise", "status"):
        raise UnknownNameError("data_errors mode", str(data_errors), ("raise", "status"))
    mode = data_errors or ("raise" if kind == "cpu" else "status")
    table = _implementations(info)
    module = importlib.import_module(info.module)
    refusal = getattr(module, "refuse_device", lambda kind: None)(kind)
    if refusal:
        raise BackendUnavailableError(f"backend {backend} cannot run on {device} here: {refusal}")

    cards = catalogue()
    missing = sorted(set(cards) - set(table))
    if missing:
        raise BackendUnavailableError(f"backend {backend} lacks {', '.join(missing)}")
    limits = getattr(module, "LIMITS", {})
    kernels = {
        name: Kernel(
            replace(card, limits=(*card.limits, *limits.get(name, ()))),
            table[name],
            module.adopt,
            mode == "raise",
            device,
            trusts,
        )
        for name, card in cards.items()
    }
    return Kernels(backend, device, mode, kernels)


def _implementations(info: BackendInfo) -> dict[str, Implementation]:
    reason = why_unavailable(info)
    if reason:
        raise BackendUnavailableError(f"backend {info.name} cannot run here: {reason}")
    own: Mapping[str, Implementation] = importlib.import_module(info.module).KERNELS
    if info.base is None:
        return dict(own)
    base = _implementations(backend_info(info.base))
    joined = {
        name: entry.over(base[name]) if entry.covers else entry for name, entry in own.items()
    }
    return {**base, **joined}
