"""The byte ledger: what a kernel moves through each port, from its card, its rules and its data.

The ledger is written down apart from the kernels and must equal the bytes that C-simulation counts
at their ports, port by port, on every parity case. Only then may a design be judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerie.kernels.binding import bind
from aerie.kernels.card import Card, Port
from aerie.kernels.hls.meters import PortBytes
from aerie.perf.counts import COUNTS
from aerie.perf.rules import RULES

ITEM_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint32": 4,
    "bool": 1,
    "host_int": 4,
}
# The value to blame, which a port of the hardware returns beside each status word.
DETAIL, DETAIL_BYTES = "detail", 8


def ledger(
    card: Card,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    on_chip: Mapping[str, Any] | None = None,
) -> dict[str, PortBytes]:
    """Bytes of one call by port; `outputs` are what the call returned, status words included.

    `on_chip` are arrays that decide the traffic and cross no port, for a top that keeps them.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    names = bind(card, given)
    counted = COUNTS.get(card.name)
    if counted is not None:
        names = {**names, **counted({**given, **(on_chip or {})}, outputs)}
    return moved(card, names, frozenset(given))


def moved(card: Card, names: Mapping[str, int], given: frozenset[str]) -> dict[str, PortBytes]:
    """Bytes by port for known sizes and counts; `given` says which optional arrays are there."""
    found = {port.name: _of_port(card, port, names, given) for port in card.ports}
    if card.refusals:
        found[DETAIL] = PortBytes(0, DETAIL_BYTES * names["B"])
    return found


def item_bytes(port: Port, names: Mapping[str, int]) -> int:
    """Bytes of one element; hidden rows come in several widths."""
    return names["E"] if len(port.dtypes) > 1 else ITEM_BYTES[port.dtypes[0]]


def _of_port(card: Card, port: Port, names: Mapping[str, int], given: frozenset[str]) -> PortBytes:
    if port.kind != "out" and port.name not in given:
        return PortBytes()
    size = item_bytes(port, names)
    rule = RULES.get(card.name, {}).get(port.name)
    if rule is not None:
        return PortBytes(size * rule.read(names), size * rule.written(names))
    if port.kind == "inout":
        raise KeyError(f"{card.name}: {port.name} is updated in place and has no rule")
    whole = size
    for dimension in port.sizes:
        whole *= dimension(names)
    return PortBytes(whole, 0) if port.kind == "in" else PortBytes(0, whole)


def total(ports: Mapping[str, PortBytes]) -> PortBytes:
    """All ports together."""
    return sum(ports.values(), PortBytes())
