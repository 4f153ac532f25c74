"""Device cards: bandwidth, memory on chip and clock of a device, each with its source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aerie.errors import UnknownNameError, UsageError

CARDS = Path(__file__).parent / "cards"
MEGA = 1e6


@dataclass(frozen=True)
class Memory:
    """External memory: peak by data sheet, and what a copy reached where it was measured."""

    peak_gbps: float
    gigabytes: float
    source: str
    measured_gbps: float | None = None
    pseudo_channels: int = 0


@dataclass(frozen=True)
class OnChip:
    """Block and ultra RAM."""

    bram_megabits: float
    uram_megabits: float
    source: str

    @property
    def megabytes(self) -> float:
        """Both together, in units of 10^6 bytes."""
        return (self.bram_megabits + self.uram_megabits) / 8


@dataclass(frozen=True)
class Fabric:
    """How fast a kernel by itself may run; an assumption until a board says otherwise."""

    clock_mhz: float
    port_bytes: int
    source: str


@dataclass(frozen=True)
class Device:
    """One device as data."""

    name: str
    title: str
    kind: str  # fpga or gpu
    memory: Memory
    on_chip: OnChip | None = None
    fabric: Fabric | None = None


def known_devices() -> list[str]:
    """Names of the cards that come with the package."""
    return sorted(path.stem for path in CARDS.glob("*.toml"))


def find_device(name: str) -> Device:
    """A built-in card by its name, or one read from a file whose name ends in .toml."""
    if name.endswith(".toml"):
        return read_device(Path(name))
    if name not in known_devices():
        raise UnknownNameError("device card", name, [*known_devices(), "FILE.toml"])
    return read_device(CARDS / f"{name}.toml")


def read_device(path: Path) -> Device:
    """Parse a card strictly: an unknown or missing key is an error that names it."""
    if not path.is_file():
        raise UsageError(
            f"{path} is not a file; a device card is a TOML file like {CARDS}/v80.toml"
        )
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from error
    sections = {"memory": Memory, "on_chip": OnChip, "fabric": Fabric}
    made = {
        name: filled(kind, given.pop(name), f"{path}: [{name}]")
        for name, kind in sections.items()
        if name in given
    }
    card: Device = filled(Device, {**given, **made}, str(path))
    return card


def filled(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table whose keys must be its fields."""
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"{where}: unknown keys {', '.join(unknown)}; known: {sorted(known)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise UsageError(f"{where}: {error}") from error


@dataclass(frozen=True)
class ByteFactor:
    """How many times fewer bytes the same tokens must cost for a device to keep up with another."""

    against: str
    basis: str  # data sheet or measured copy
    parity: float
    ahead: float  # for 20 % more speed


def byte_factors(own: Device, rival: Device) -> list[ByteFactor]:
    """Bandwidth of the rival over one's own: a memory-bound loop is as fast as its bytes."""
    found = [("data sheet", rival.memory.peak_gbps)]
    if rival.memory.measured_gbps is not None:
        found.append(("measured copy", rival.memory.measured_gbps))
    ratios = [(basis, gbps / own.memory.peak_gbps) for basis, gbps in found]
    return [ByteFactor(rival.name, basis, ratio, 1.2 * ratio) for basis, ratio in ratios]
