"""Buffers on chip in whole blocks of memory, and what a second copy of a buffer hides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aerie.perf.device import MEGA, OnChip


@dataclass(frozen=True)
class Ram:
    """A kind of block: its shapes as (bits of a word, words)."""

    name: str
    shapes: tuple[tuple[int, int], ...]

    @property
    def n_bytes(self) -> int:
        """Of one block."""
        width, depth = self.shapes[0]
        return width * depth // 8

    def blocks(self, width: int, depth: int) -> int:
        """Blocks side by side for the width, one behind the other for the depth; best shape."""
        return min(-(-width // wide) * -(-depth // deep) for wide, deep in self.shapes)


# AMD UG573 (UltraScale memory resources) and AM007 (Versal): both families have these blocks.
URAM = Ram("URAM288", ((72, 4096),))
BRAM = Ram("BRAM36", ((72, 512), (36, 1024), (18, 2048), (9, 4096)))


@dataclass(frozen=True)
class Buffer:
    """What is kept: bytes of one copy, bits a cycle, copies. Copies share blocks, an end each."""

    name: str
    n_bytes: int
    width: int
    copies: int = 1
    ram: Ram = BRAM
    role: str = "compute"  # resident, prefetch, compute or evict

    @property
    def blocks(self) -> int:
        """Whole blocks of its kind."""
        depth = -(-8 * self.n_bytes // self.width)
        return self.ram.blocks(self.width, self.copies * depth)


@dataclass(frozen=True)
class ChipPlan:
    """Buffers against the blocks of a chip."""

    buffers: tuple[Buffer, ...]
    on_chip: OnChip

    def used(self, ram: Ram) -> int:
        """Blocks of a kind."""
        return sum(one.blocks for one in self.buffers if one.ram == ram)

    def has(self, ram: Ram) -> int:
        """Blocks of a kind that the chip's megabits make; Mb as 10^6, the smaller reading."""
        bits = self.on_chip.uram_megabits if ram == URAM else self.on_chip.bram_megabits
        return int(bits * MEGA) // (8 * ram.n_bytes)

    @property
    def megabytes(self) -> float:
        """Of the blocks that are taken, whether filled or not."""
        return sum(one.blocks * one.ram.n_bytes for one in self.buffers) / MEGA

    @property
    def fits(self) -> bool:
        """Each kind within what there is of it."""
        return all(self.used(ram) <= self.has(ram) for ram in (URAM, BRAM))


def spread(buffers: Iterable[Buffer], on_chip: OnChip) -> ChipPlan:
    """Move buffers that block RAM has no room for to ultra RAM, those that waste least first."""
    plan = ChipPlan(tuple(buffers), on_chip)
    while plan.used(BRAM) > plan.has(BRAM):
        movable = [one for one in plan.buffers if one.ram == BRAM and one.role != "prefetch"]
        moved = {one.name: replace(one, ram=URAM) for one in movable}
        free = plan.has(URAM) - plan.used(URAM)
        able = [one for one in movable if moved[one.name].blocks <= free]
        if not able:
            return plan
        best = min(able, key=lambda one: moved[one.name].blocks / one.blocks)
        changed = tuple(moved[b.name] if b == best else b for b in plan.buffers)
        plan = ChipPlan(changed, on_chip)
    return plan


@dataclass(frozen=True)
class Tile:
    """Cycles of the three stages of one tile."""

    prefetch: int
    compute: int
    evict: int


def cycles_of(tiles: Sequence[Tile], copies: int) -> int:
    """From the first prefetch to the last evict with so many copies of each buffer.

    A stage does one tile at a time. A tile is fetched once the buffer that it takes was computed
    from, and computed once it is there and the buffer of its results has left.
    """
    fetched = computed = evicted = 0
    free_in, free_out = [0] * copies, [0] * copies  # when each copy may be written again
    for number, tile in enumerate(tiles):
        place = number % copies
        fetched = max(fetched, free_in[place]) + tile.prefetch
        computed = max(computed, fetched, free_out[place]) + tile.compute
        evicted = max(evicted, computed) + tile.evict
        free_in[place], free_out[place] = computed, evicted
    return evicted
