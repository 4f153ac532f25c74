"""Everything `aerie budget` prints, as one value: sheet, shares, on-chip table, byte factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from aerie.perf.budget import CELLS, BudgetRow, Share, budget, round_shares
from aerie.perf.cuda_times import Times, at_cell
from aerie.perf.device import MEGA, ByteFactor, Device, byte_factors
from aerie.perf.onchip import Placement, WeightBlock, place
from aerie.perf.point import Point


@dataclass(frozen=True)
class Sheet:
    """A budget at one point, with what surrounds it."""

    point: Point
    device: Device
    rows: tuple[BudgetRow, ...]
    shares: tuple[Share, ...]
    placed: tuple[Placement, ...]
    factors: tuple[ByteFactor, ...]

    def payload(self) -> dict[str, Any]:
        """Rows with their kind, for JSON."""
        on_chip = self.device.on_chip
        return {
            "device": self.device.name,
            "geometry": self.point.sizes.name,
            "rows": [row.payload() for row in self.rows],
            "shares": [{**asdict(share), "kind": "modelled"} for share in self.shares],
            "on_chip": {
                "megabytes": on_chip.megabytes if on_chip else None,
                "blocks": [_placed(one) for one in self.placed],
            },
            "factors": [{**asdict(factor), "kind": "data sheet"} for factor in self.factors],
        }


def _placed(one: Placement) -> dict[str, Any]:
    return {
        "block": one.block.name,
        "megabytes": round(one.block.n_bytes / MEGA, 3),
        "dtype": one.block.dtype,
        "fits_alone": one.fits_alone,
        "is_resident": one.is_resident,
        "free_megabytes": round(one.free_megabytes, 3),
        "kind": "modelled",
    }


def make_sheet(
    point: Point,
    device: Device,
    rivals: Sequence[Device],
    blocks: Sequence[WeightBlock],
    times: Times,
) -> Sheet:
    """The sheet at a point, and the shares of every kernel in all nine cells around it."""
    rows = budget(point, device, at_cell(times, point.batch, point.tree.verify))
    shares: list[Share] = []
    for batch, verify in CELLS:
        cell = replace(point, batch=batch, tree=replace(point.tree, verify=verify))
        shares += round_shares(cell, budget(cell, device, at_cell(times, batch, verify)))
    placed = place(blocks, device.on_chip) if device.on_chip else []
    factors = [factor for rival in rivals for factor in byte_factors(device, rival)]
    return Sheet(point, device, tuple(rows), tuple(shares), tuple(placed), tuple(factors))
