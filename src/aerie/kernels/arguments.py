"""What an array must be before a kernel reads or writes it, the same for every backend."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from operator import add, le
from typing import Any

import numpy as np

from aerie.errors import KernelArgumentError
from aerie.kernels.card import Card, Port

# Whether two strided arrays meet is hard to say in general; ours have at most three axes.
MEETING_WORK = 100_000


def shown(value: object) -> str:
    """A value for a message: short whatever it is, and never an error of its own."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer of thousands of digits, which Python does not print
        return f"{type(value).__name__} with thousands of digits"


def dtype_name(array: Any) -> str:
    """Name of an array's dtype, the same for NumPy and PyTorch."""
    dtype = array.dtype
    # A type that another package gave to NumPy may bear one of our names: bfloat16.
    is_foreign = getattr(dtype, "isbuiltin", 1) == 2
    return f"a foreign {dtype}" if is_foreign else str(dtype).removeprefix("torch.")


def check_kind(where: str, array: Any) -> None:
    """Raise KernelArgumentError unless it is a plain NumPy array or a plain strided tensor."""
    # A subclass may mean something else by its entries: masked ones, units, a matrix product.
    if type(array) in (np.ndarray, np.memmap):
        return
    reason = _why_no_array(array)
    if reason:
        raise KernelArgumentError(f"{where} must be an array, got {reason}", value=reason)


def _why_no_array(array: Any) -> str | None:
    # A caller with a tensor has loaded torch; this module does not.
    torch = sys.modules.get("torch")
    kind = type(array).__name__
    if torch is None or not isinstance(array, torch.Tensor):
        return kind
    if type(array) not in (torch.Tensor, torch.nn.Parameter):
        return f"{kind}, a subclass of Tensor"
    if array.layout is not torch.strided or array.is_nested:
        return f"a tensor of layout {array.layout}"
    return "a tensor that is negated lazily" if array.is_neg() else None


@dataclass(frozen=True)
class Memory:
    """Where the entries of an array lie, in bytes; strides may be negative."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    @classmethod
    def of(cls, array: Any) -> Memory:
        """The memory of a NumPy array or a tensor."""
        if isinstance(array, np.ndarray):
            address = array.__array_interface__["data"][0]
            return cls(address, array.shape, array.strides, array.itemsize)
        size = array.element_size()
        strides = tuple(stride * size for stride in array.stride())
        return cls(array.data_ptr(), tuple(array.shape), strides, size)

    @property
    def bounds(self) -> tuple[int, int]:
        """The first byte, and one past the last."""
        if prod(self.shape) == 0:
            return self.address, self.address
        reach = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        below, above = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
        return self.address + below, self.address + above + self.item_bytes

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Stride and length of the axes along which there is a step to take, smallest first."""
        if prod(self.shape) == 0:
            return []
        axes = zip(self.strides, self.shape, strict=True)
        return sorted((stride, n) for stride, n in axes if n > 1)

    def runs_backwards(self) -> bool:
        """Whether some step goes to a lower address."""
        return any(stride < 0 for stride, _ in self.steps)

    def overlaps_itself(self) -> bool:
        """Whether two entries may share a byte: some axis steps less than those within it span."""
        reach = self.item_bytes
        for stride, n in self.steps:
            if stride < reach:
                return True
            reach += stride * (n - 1)
        return False

    def meets(self, other: Memory) -> bool:
        """Whether an entry of each share a byte; True where that is too hard to say."""
        (low, high), (other_low, other_high) = self.bounds, other.bounds
        if high <= other_low or other_high <= low:
            return False
        share: Any = np.shares_memory  # its stubs know two named amounts of work only
        try:
            return bool(share(self._header(), other._header(), max_work=MEETING_WORK))
        except np.exceptions.TooHardError:
            return True

    def _header(self) -> np.ndarray[Any, Any]:
        """An array at this address, never read: it may be the memory of a device."""
        interface = {
            "version": 3,
            "typestr": f"|V{self.item_bytes}",
            "data": (self.address or 1, True),
            "shape": self.shape,
            "strides": self.strides,
        }
        holder = type("Holder", (), {"__array_interface__": interface})
        return np.asarray(holder())


def check_memory(card: Card, call: Mapping[str, Any], device: str) -> tuple[int, ...]:
    """Raise KernelArgumentError unless every array can be read, and written where the card says.

    Follows `bind`, which makes sure that they are arrays. Returns how many bytes each given array
    spans from its first entry on, in the order of the call.
    """
    ports = {port.name: port for port in card.inputs}
    given = {name: call[name] for name in call if name in ports and call[name] is not None}
    for name, array in given.items():
        where = f"{card.name}: {name}"
        _check_device(where, array, device, ports[name])
        if ports[name].kind == "inout":
            _check_writable(where, array)
    places = {name: Memory.of(array) for name, array in given.items()}
    if card.written:
        _check_apart(card, places)
    return tuple(place.bounds[1] - place.address for place in places.values())


def _check_device(where: str, array: Any, device: str, port: Port) -> None:
    if isinstance(array, np.ndarray):
        if device == "cpu" or port.kind == "in":
            return
        raise KernelArgumentError(
            f"{where} is written in place, but NumPy arrays are copied to {device};"
            f" pass a tensor on {device}",
            value="cpu",
            limit=device,
        )
    if device not in (array.device.type, str(array.device)):
        raise KernelArgumentError(
            f"{where}: the backend was loaded for {device}, the tensor lives on {array.device};"
            f" move it with .to({device!r}), or load the backend for {array.device.type!r}",
            value=str(array.device),
            limit=device,
        )


def _check_writable(where: str, array: Any) -> None:
    place = Memory.of(array)
    found = None
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        found = "read-only"
    elif any(stride % place.item_bytes for stride, _ in place.steps):
        found = "spaced by parts of an entry"
    elif place.runs_backwards():
        found = "walked backwards (a negative stride)"
    elif place.overlaps_itself():
        found = "folded: some of its entries share memory"
    if found:
        raise KernelArgumentError(
            f"{where} is written in place and {found}; pass a copy and take the result from there",
            value=found,
            limit="writable",
        )


def _check_apart(card: Card, places: Mapping[str, Memory]) -> None:
    for first, second in combinations(places, 2):
        written = next((name for name in (first, second) if name in card.written), None)
        if written and places[first].meets(places[second]):
            other = second if written == first else first
            raise KernelArgumentError(
                f"{card.name}: {written} is written in place and shares memory with {other};"
                " pass a copy of one of them",
                value=other,
                limit="memory of its own",
            )


def are_apart(starts: list[int], n_bytes: Sequence[int]) -> bool:
    """Whether no two of the spans that begin at `starts` share a byte."""
    ends = sorted(map(add, starts, n_bytes))
    # Each begins where all before it have ended: at most one is open anywhere.
    return all(map(le, ends, sorted(starts)[1:]))


def have_own_memory(arrays: Collection[Any]) -> bool:
    """Whether each NumPy array, or what it is a view of, owns its memory, and no two the same.

    Quicker than asking for addresses, and False where memory belongs to another array.
    """
    owners = set()
    for array in arrays:
        owner = array
        while (base := owner.base) is not None:
            if type(base) is not np.ndarray:
                return False
            owner = base
        owners.add(id(owner))
    return len(owners) == len(arrays)
