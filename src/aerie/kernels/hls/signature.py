"""The C signature of a kernel, derived from its card: one order for C++, ctypes and Vitis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aerie.kernels.card import Axis, Card, Limit, Scalar
from aerie.kernels.catalogue import catalogue
from aerie.kernels.hls.limits import LIMITS

# Families with C++ sources; a kernel of any other comes from the base backend. The round's own
# steps place and copy rows for attention: a chip does that in its control flow.
FAMILIES = ("growth", "layout", "verdict", "commit", "memory", "replay")

# A call beyond the n-th bound of a kernel returns this code plus n: no status word is that large.
FIRST_BOUND = 64

COLUMNS = 98
INDENT = " " * 8

C_TYPES: Mapping[str, str] = {
    "float32": "float",
    # Weights and activations of a draft head, as their bits.
    "float16": "std::uint16_t",
    "int32": "std::int32_t",
    "int64": "std::int64_t",
    "uint8": "std::uint8_t",
    "uint32": "std::uint32_t",
    # One byte, 0 or 1; a C++ bool that holds anything else is undefined.
    "bool": "std::uint8_t",
    # Returned through a pointer: a kernel's own return value is its bound code.
    "host_int": "std::int32_t",
}
# Hidden rows are moved and never computed with, whatever they hold: as 16-bit words.
HIDDEN_TYPE = "std::uint16_t"


@dataclass(frozen=True)
class Parameter:
    """One parameter: `role` is size, scalar, list, length, flag, array or detail."""

    name: str
    role: str
    element: str  # C type of the value, or of what the pointer points to
    is_pointer: bool = False
    is_written: bool = False

    @property
    def c_type(self) -> str:
        """The whole C type."""
        if not self.is_pointer:
            return self.element
        return f"{self.element}*" if self.is_written else f"const {self.element}*"


@dataclass(frozen=True)
class Bound:
    """One bound a kernel checks by itself, in the order of its codes."""

    name: str
    axis: Axis | Scalar | None
    limit: Limit | None


def hls_card(card: Card) -> Card:
    """The card with the hardware's own limits."""
    return replace(card, limits=(*card.limits, *LIMITS.get(card.name, ())))


def ported_cards() -> tuple[Card, ...]:
    """The cards of the kernels that exist in C++, with the hardware's own limits."""
    return tuple(hls_card(card) for card in catalogue().values() if card.family in FAMILIES)


def has_check(card: Card) -> bool:
    """Whether the host can ask for the refusals without the writes.

    A fused region decides them as it goes, and what it writes by then is its own.
    """
    return bool(card.written and card.refusals) and not card.family.startswith("fused")


def parameters(card: Card) -> tuple[Parameter, ...]:
    """Sizes, scalars, flags of optional arrays, arrays in ABI order, then the blamed values."""
    made = [Parameter(name, "size", "std::int32_t") for name in size_names(card)]
    for scalar in card.scalars:
        if scalar.kind == "ints":
            made.append(Parameter(scalar.name, "list", "std::int32_t", is_pointer=True))
            made.append(Parameter(f"n_{scalar.name}", "length", "std::int32_t"))
        else:
            made.append(Parameter(scalar.name, "scalar", "std::int32_t"))
    made += [
        Parameter(f"has_{port.name}", "flag", "std::int32_t")
        for port in card.inputs
        if port.optional
    ]
    for port in card.ports:
        element = HIDDEN_TYPE if len(port.dtypes) > 1 else C_TYPES[port.dtypes[0]]
        made.append(Parameter(port.name, "array", element, True, port.kind != "in"))
    if card.refusals:
        made.append(Parameter("detail", "detail", "std::int64_t", True, True))
    return tuple(made)


def check_parameters(card: Card) -> tuple[Parameter, ...]:
    """The same without results: everything is read, the status words are written."""
    results = {port.name for port in card.outputs} - {"status"}
    kept = [entry for entry in parameters(card) if entry.name not in results]
    written = ("status", "detail")
    return tuple(replace(entry, is_written=entry.name in written) for entry in kept)


def metered_parameters(listed: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The arrays among them: what lies in external memory, and whose bytes are counted."""
    return tuple(entry for entry in listed if entry.role in ("array", "detail"))


def size_names(card: Card) -> tuple[str, ...]:
    """Axes of the card; E, the bytes of an element, where rows come in several dtypes."""
    axes = tuple(axis.name for axis in card.axes)
    has_hidden = any(len(port.dtypes) > 1 for port in card.ports)
    return (*axes, "E") if has_hidden else axes


def bounds(card: Card) -> tuple[Bound, ...]:
    """Axes, scalars and limits, in the order of their codes."""
    axes = [Bound(axis.name, axis, None) for axis in card.axes]
    scalars = [Bound(scalar.name, scalar, None) for scalar in card.scalars]
    limits = [Bound(limit.meaning, None, limit) for limit in card.limits]
    return (*axes, *scalars, *limits)


def written_signature(head: str, listed: tuple[Parameter, ...]) -> str:
    """The head of a C++ function."""
    return wrapped(f"{head}(", [f"{entry.c_type} {entry.name}" for entry in listed], ")")


def wrapped(head: str, items: list[str], tail: str) -> str:
    """One line if it fits, else the items packed into lines of at most 100 columns."""
    whole = head + ", ".join(items) + tail
    if len(whole) <= COLUMNS:
        return whole
    lines, current = [head], INDENT
    for position, item in enumerate(items):
        piece = item + ("," if position < len(items) - 1 else tail)
        if len(current) + len(piece) > COLUMNS and current != INDENT:
            lines.append(current.rstrip())
            current = INDENT
        current += piece + " "
    return "\n".join([*lines, current.rstrip()])
