"""The host's command queue: written once for an envelope of sizes, patched in a few words a round.

An envelope is the largest micro-batch and tree that a queue serves. All addresses and sizes that
it fixes stand in the queue from the start; a round says how many requests and rows it has, and
rings. A batch that no envelope holds runs as several micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.errors import UsageError
from aerie.fpga.rtl.card import CardEngine
from aerie.fpga.rtl.commit import VerifyResult
from aerie.fpga.rtl.mask import TreeMask
from aerie.fpga.rtl.registers import FIRST_ARGUMENT
from aerie.fpga.rtl.top import TreeTop
from aerie.fpga.sim.images import ALIGNMENT
from aerie.kernels.catalogue import catalogue
from aerie.kernels.formula import Formula
from aerie.perf.point import Point

END, WRITE, START, FENCE = range(4)  # FENCE: the host works, and rings again
COMMAND = np.dtype(
    [("op", "u1"), ("card", "u1"), ("address", "<u2"), ("spare", "<u4"), ("value", "<u8")]
)
LADDER = (1, 2, 4, 8, 16, 32, 64, 128)  # requests of the envelopes that are kept ready
VARYING = ("B", "R")  # what a round says; everything else is the envelope's
# Rows of hidden states lie a whole number of bus words apart.
ROW_BUS = 32
_TOP_PORTS = {
    "widths": ("int32", "D"),
    "level_probas": ("float32", "B*K*(1 + (D - 1)*W)"),
    "input_hidden": ("uint8", "B*(1 + (D - 1)*W)*row_bytes"),
    "node_scores": ("float32", "B*K*(1 + (D - 1)*W)"),
    "frontier_nodes": ("int64", "B*D*K"),
    "parent_slots": ("int64", "B*D*K"),
    "output_hidden": ("uint8", "B*D*K*row_bytes"),
    "G": ("float32", "D*(K + 1)"),
    "sort_scores": ("float32", "B*verify_num"),
}
Array = NDArray[Any]


@dataclass(frozen=True)
class Step:
    """One start of a card in a round; the kernel whose ports it has, if one of the catalogue."""

    name: str
    engine: type[CardEngine]
    kernel: str = ""


GROW = Step("top", TreeTop)
MASK = Step("mask", TreeMask, "fused_tree_mask_operator")
COMMIT = Step("commit", VerifyResult, "update_verify_result")
ROUND = (GROW, MASK, COMMIT)


@dataclass(frozen=True)
class Span:
    """A place in the card's memory, as large as the envelope ever needs it."""

    address: int
    n_bytes: int


@dataclass(frozen=True, eq=False)
class StaticQueue:
    """Commands of a round, which of them a round patches, and where the arrays lie."""

    envelope: Point
    steps: tuple[Step, ...]
    commands: Array  # [n] COMMAND
    patches: Mapping[str, tuple[int, ...]]
    spans: Mapping[str, Span]
    n_bytes: int  # of the arrays

    def patched(self, **values: int) -> bytes:
        """The queue of one round."""
        limits = {"B": self.envelope.batch, "R": self.envelope.rows}
        commands = self.commands.copy()
        for name, places in self.patches.items():
            value = values[name]
            if not 0 <= value <= limits[name]:
                raise UsageError(
                    f"{name} {value} is beyond this queue's envelope of {limits[name]}:"
                    " take a larger envelope, or split the batch (micro_batches)"
                )
            commands["value"][list(places)] = value
        return commands.tobytes()


def names_of(envelope: Point) -> dict[str, int]:
    """Sizes that formulas and registers know, at the envelope's bounds."""
    names = envelope.names()
    beats = -(-2 * envelope.sizes.hidden // ROW_BUS)
    return {**names, "row_beats": beats, "row_bytes": beats * ROW_BUS}


def sized_ports(step: Step, names: Mapping[str, int]) -> dict[str, int]:
    """Bytes of every array of a card."""
    if not step.kernel:
        shapes = _TOP_PORTS.items()
        return {name: np.dtype(kind).itemsize * Formula(n)(names) for name, (kind, n) in shapes}
    ports = {port.name: port for port in catalogue()[step.kernel].ports}
    return {
        name: np.dtype(ports[name].dtypes[0]).itemsize
        * prod(formula(names) for formula in ports[name].sizes)
        for name in step.engine.PORTS
    }


def place_of(step: Step, port: str) -> str:
    """Arrays that the host writes are shared by their name; a result belongs to its card."""
    if not step.kernel:
        return f"{step.name}.{port}"
    results = {one.name for one in catalogue()[step.kernel].outputs}
    return f"{step.name}.{port}" if port in results else port


def queue_of(envelope: Point, steps: Sequence[Step] = ROUND) -> StaticQueue:
    """Lay out the arrays, then write every register of every card in order, a fence between."""
    names = names_of(envelope)
    spans: dict[str, Span] = {}
    end = ALIGNMENT
    for step in steps:
        for port, n_bytes in sized_ports(step, names).items():
            if place_of(step, port) not in spans:
                spans[place_of(step, port)] = Span(end, n_bytes)
                end += -(-n_bytes // ALIGNMENT) * ALIGNMENT
    rows: list[tuple[int, int, int, int, int]] = []
    patches: dict[str, list[int]] = {name: [] for name in VARYING}
    for card, step in enumerate(steps):
        for number, argument in enumerate(step.engine.arguments()):
            port = argument.removesuffix("_base")
            value = spans[place_of(step, port)].address if port != argument else names[argument]
            if argument in patches:
                patches[argument].append(len(rows))
            rows.append((WRITE, card, FIRST_ARGUMENT + 8 * number, 0, value))
        rows.append((START, card, 0, 0, 0))
        rows.append((END if step == steps[-1] else FENCE, card, 0, 0, 0))
    places = {name: tuple(found) for name, found in patches.items()}
    commands = np.array(rows, COMMAND)
    # Bursts read whole beats beyond the last array.
    return StaticQueue(envelope, tuple(steps), commands, places, spans, end + 2 * ALIGNMENT)


def micro_batches(n_requests: int) -> list[tuple[int, int]]:
    """Envelope and requests of each pass: as few passes as there can be, the last one fitting."""
    largest = max(LADDER)
    whole, rest = divmod(n_requests, largest)
    passes = [(largest, largest)] * whole
    if rest:
        passes.append((min(size for size in LADDER if size >= rest), rest))
    return passes


Runner = Callable[[bytearray, dict[str, int]], object]


def execute(
    queue: bytes, steps: Sequence[Step], run: Sequence[Runner], memory: bytearray,
    at_fence: Callable[[int], None],
) -> None:  # fmt: skip
    """What a card's command processor does: write registers, start, wait, ring the host."""
    registers: list[dict[int, int]] = [{} for _ in steps]
    for op, card, address, _, value in np.frombuffer(queue, COMMAND).tolist():
        if op == WRITE:
            registers[card][address] = value
        elif op == START:
            known = enumerate(steps[card].engine.arguments())
            given = {name: registers[card][FIRST_ARGUMENT + 8 * i] for i, name in known}
            run[card](memory, given)
        elif op == FENCE:
            at_fence(card)
        else:
            return
