"""A kernel call as a memory image: arrays at aligned addresses, arguments for the registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.binding import bind
from aerie.kernels.card import Card

Array = NDArray[Any]
ALIGNMENT = 64
POISON = 0xA5  # of a fresh result: an entry a card forgets is wrong and not luckily zero


@dataclass
class Image:
    """Memory with named arrays in it."""

    memory: bytearray = field(default_factory=lambda: bytearray(ALIGNMENT))
    places: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)

    def put(self, name: str, array: Array) -> None:
        """Place an array at the next aligned address."""
        start = -(-len(self.memory) // ALIGNMENT) * ALIGNMENT
        packed = np.ascontiguousarray(array)
        self.memory += bytes(start - len(self.memory)) + packed.tobytes()
        self.places[name] = start
        self.arrays[name] = packed

    def fresh(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Room for a result."""
        array = np.empty(tuple(shape), dtype)
        array.reshape(-1).view(np.uint8)[...] = POISON
        self.put(name, array)

    def get(self, name: str, memory: bytes | bytearray | None = None) -> Array:
        """An array as it is in memory now."""
        like = self.arrays[name]
        start = self.places[name]
        found = np.frombuffer(
            bytes((memory or self.memory)[start : start + like.nbytes]), like.dtype
        )
        return found.reshape(like.shape)

    def seal(self) -> None:
        """A margin behind the last array, for bursts that read whole beats."""
        self.memory += bytes(2 * ALIGNMENT)


@dataclass(frozen=True, eq=False)
class CallImage:
    """Memory and registers of one call, and what must stand there afterwards."""

    image: Image
    registers: dict[str, int]
    wanted: Mapping[str, Array]

    def differing(self, memory: bytes | bytearray) -> list[str]:
        """Results that are not bit for bit what they must be; subnormals count as zero."""
        return [
            name
            for name, wanted in self.wanted.items()
            if flush(self.image.get(name, memory)).tobytes() != wanted.tobytes()
        ]


def padded_rows(rows: Array, bus: int) -> Array:
    """Rows of bytes at the distance a bus of so many bits asks for."""
    packed = np.ascontiguousarray(rows)
    n_bytes = packed.shape[1] * packed.itemsize
    stride = -(-n_bytes // (bus // 8)) * (bus // 8)
    padded = np.zeros((len(packed), stride), np.uint8)
    padded[:, :n_bytes] = packed.view(np.uint8).reshape(len(packed), n_bytes)
    return padded


def flush(array: Array) -> Array:
    """Subnormal floats as +0; other dtypes as they are."""
    if array.dtype != np.float32:
        return array
    flushed = array.copy()
    bits = flushed.view(np.uint32)
    bits[(bits >> 23 & 255) == 0] = 0
    return flushed


def image_of(
    card: Card, inputs: Mapping[str, Any], arguments: Sequence[str], ports: Sequence[str]
) -> tuple[Image, dict[str, int]]:
    """Inputs and room for results of a call, and the card's registers."""
    names = bind(card, inputs)
    image = Image()
    by_name = {port.name: port for port in card.ports}
    for name in ports:
        port = by_name[name]
        if port.kind != "out":
            image.put(name, np.asarray(inputs[name]))
            continue
        shape = [formula(names) for formula in port.sizes]
        image.fresh(name, shape, np.dtype(port.dtypes[0]))
    image.seal()
    registers = {name: int(names[name]) for name in arguments}
    registers |= {f"{name}_base": image.places[name] for name in ports}
    return image, registers
