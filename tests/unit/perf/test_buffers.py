"""Blocks are counted whole, the plan stays on the chip, and two buffers hide the shorter stages."""

from __future__ import annotations

import pytest

from aerie.fpga.chip_plan import level_of, plan_of, quantised_groups
from aerie.perf.buffers import BRAM, URAM, Buffer, Tile, cycles_of
from aerie.perf.device import find_device
from aerie.perf.point import Point, Tree, find_sizes

CARD = find_device("v80")


@pytest.mark.parametrize(
    ("width", "n_bytes", "copies", "ram", "blocks"),
    [
        (72, 4608, 1, BRAM, 1),
        (72, 4609, 1, BRAM, 2),
        (72, 2304, 2, BRAM, 1),  # both copies in one block
        (36, 4608, 1, BRAM, 1),
        (73, 1000, 1, BRAM, 2),
        (528, 66 * 4096, 1, URAM, 8),
    ],
)
def test_blocks_are_counted_whole(
    width: int, n_bytes: int, copies: int, ram: object, blocks: int
) -> None:
    assert Buffer("one", n_bytes, width, copies, ram).blocks == blocks  # type: ignore[arg-type]


def test_the_eagle4_plan_stays_within_the_chip() -> None:
    resident = {}
    for batch in (1, 8, 32):
        plan, resident[batch] = plan_of(Point(find_sizes("eagle4"), Tree(), batch), CARD)
        assert plan.fits and plan.megabytes <= 84.1
        assert plan.used(URAM) <= plan.has(URAM) and plan.used(BRAM) <= plan.has(BRAM)
        doubled = {one.role for one in plan.buffers if one.copies == 2}
        assert {"prefetch", "evict"} <= doubled
    assert resident == {1: True, 8: True, 32: False}, "a batch of 32 has no room for the block"
    # The published aggregate is 61 MB; ours has its scales in the same words.
    n_bytes = quantised_groups(find_sizes("eagle4"))["attention"] * 66
    assert n_bytes == pytest.approx(61e6, rel=0.01)


def test_two_buffers_cost_the_longest_stage() -> None:
    tile = Tile(prefetch=30, compute=50, evict=20)
    assert cycles_of([tile] * 10, copies=1) == 30 + 10 * 50 + 9 * 30 + 20
    assert cycles_of([tile] * 10, copies=2) == 30 + 10 * 50 + 20
    slow_out = Tile(prefetch=1, compute=1, evict=9)
    assert cycles_of([slow_out] * 4, copies=2) == 2 + 4 * 9


def test_a_level_is_bound_by_memory_or_by_multipliers() -> None:
    point = Point(find_sizes("eagle4"), Tree(), 1)
    for side in ("low", "high"):
        level = level_of(point, CARD, True, 700.0, side)
        longest = max(vars(level.stage).values())
        assert level.double < level.single
        assert level.double == pytest.approx(level.tiles * longest, rel=0.05)
