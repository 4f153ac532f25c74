"""The budget sheet: bytes, operations, cycles and time of each kernel of a round.

C_mem_in = ceil(B_in / bytes in a cycle), C_mem_out likewise, C_comp = ceil(N_ops / operations a
cycle), C_total = max(C_mem_in + C_mem_out, C_comp) + C_ctrl, T_us = C_total / f_MHz. Bytes follow
from the ledger, which equals what C-simulation counts; cycles are modelled until a row of the
hardware counters replaces them; the clock is the device card's and says that it is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aerie.errors import UsageError
from aerie.kernels.card import Card
from aerie.kernels.catalogue import catalogue
from aerie.kernels.formula import Formula
from aerie.perf.device import Device
from aerie.perf.ledger import moved, total
from aerie.perf.point import Point

P0 = (
    "draft_tree_layer_score_index_gen_op",
    "update_cumu_draft_state",
    "calculate_work_deltas",
    "fused_tree_mask_operator",
    "convert_logits_to_probas",
    "draft_tree_reject_sample",
    "update_verify_result",
)
# Optional inputs that the budgeted flow gives: K6 by coins.
GIVEN = {"draft_tree_reject_sample": ("target_probas", "coins")}
CELLS = tuple((batch, verify) for batch in (1, 8, 32) for verify in (8, 32, 64))


@dataclass(frozen=True)
class Datapath:
    """How wide a kernel by itself is built: operations a cycle, cycles to start, buffer traffic."""

    ops_per_cycle: int
    control_cycles: int
    initiation_interval: int
    on_chip: Formula  # bytes written to and read from buffers on chip
    note: str


# Widths follow from one 512-bit port a direction: 16 floats, or 512 mask bits, a cycle.
DATAPATHS: Mapping[str, Datapath] = {
    P0[0]: Datapath(448, 32, 1, Formula("40*B*W*K + E*H*(parents + B*K)"), "hidden gather"),
    P0[1]: Datapath(64, 24, 1, Formula("B*(56*W*K + 2*W*F + 8*(M + W*K))"), "state and masks"),
    P0[2]: Datapath(1, 16, 1, Formula("8*B*C"), "one score a cycle"),
    P0[3]: Datapath(512, 16, 1, Formula("40*R"), "a port's width of bits a cycle"),
    P0[4]: Datapath(80, 48, 1, Formula("20*R*V"), "16 exponentials a cycle, row on chip"),
    P0[5]: Datapath(16, 24, 1, Formula("8*R*V + 48*R"), "rows stream past once"),
    P0[6]: Datapath(8, 24, 1, Formula("B*(16*(D+1) + 16*S) + 8*R"), "compaction and scatter"),
}


@dataclass(frozen=True)
class BudgetRow:
    """One line of the sheet."""

    kernel: str
    number: str
    B_in: int
    B_out: int
    N_ops: int
    B_onchip: int
    II_f: str  # initiation interval / clock in MHz
    C_total: int
    T_us: float
    cuda_us: float | None
    notes: str
    kind: str = "modelled"

    def payload(self) -> dict[str, Any]:
        """The row for JSON."""
        return asdict(self)


def budget(
    point: Point, device: Device, cuda_us: Mapping[str, float] | None = None
) -> list[BudgetRow]:
    """The sheet of K1 to K7, one call each, on a device with a fabric."""
    if device.fabric is None:
        raise UsageError(f"device card {device.name} has no [fabric]: cycles need a clock")
    return [_row(catalogue()[name], point, device, cuda_us or {}) for name in P0]


def _row(card: Card, point: Point, device: Device, cuda_us: Mapping[str, float]) -> BudgetRow:
    assert device.fabric is not None
    names = point.names()
    path = DATAPATHS[card.name]
    ports = moved(card, names, given_inputs(card))
    bytes_in, bytes_out = total(ports).read, total(ports).written
    n_ops = card.cost.operations(names)
    width = device.fabric.port_bytes
    memory = cycles(bytes_in, width) + cycles(bytes_out, width)
    c_total = max(memory, cycles(n_ops, path.ops_per_cycle)) + path.control_cycles
    clock = device.fabric.clock_mhz
    return BudgetRow(
        card.name,
        card.number,
        bytes_in,
        bytes_out,
        n_ops,
        path.on_chip(names),
        f"{path.initiation_interval}/{clock:.0f}",
        c_total,
        round(c_total / clock, 3),
        cuda_us.get(card.name),
        path.note,
    )


def given_inputs(card: Card) -> frozenset[str]:
    """The inputs of a call in the budgeted flow."""
    required = [port.name for port in card.inputs if not port.optional]
    return frozenset((*required, *GIVEN.get(card.name, ())))


def cycles(amount: int, per_cycle: int) -> int:
    """Rounded up."""
    return -(-amount // per_cycle)


@dataclass(frozen=True)
class Share:
    """A kernel's part of the tree kernels' time in a whole round."""

    batch: int
    verify: int
    kernel: str
    calls: int
    fpga_us: float
    cuda_us: float | None
    share: float


def round_shares(point: Point, rows: Iterable[BudgetRow]) -> list[Share]:
    """Every kernel as often as a round calls it: K1 to K3 once a level, the others once."""
    made = []
    for row in rows:
        calls = point.tree.depth if row.kernel in P0[:3] else 1
        cuda = None if row.cuda_us is None else round(calls * row.cuda_us, 3)
        made.append((row.kernel, calls, calls * row.T_us, cuda))
    whole = sum(us for _, _, us, _ in made)
    return [
        Share(point.batch, point.tree.verify, name, n, round(us, 3), cuda, round(us / whole, 4))
        for name, n, us, cuda in made
    ]
