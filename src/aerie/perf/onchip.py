"""What fits on the chip: a weight inventory against the block RAM of a card."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import UsageError
from aerie.perf.device import CARDS, MEGA, OnChip

EAGLE4_DRAFTER = CARDS / "eagle4_drafter.csv"
GATHERED = "embedding"  # read a row at a time, so it has no place on the chip
# Checkpoint names to blocks of the inventory; the first part that stands in the name counts.
_BLOCKS = (
    ("embed", "embedding"),
    ("lm_head", "lm_head"),
    ("fc.", "fc"),
    ("attn", "self_attention"),
    ("mlp", "mlp"),
)


@dataclass(frozen=True)
class WeightBlock:
    """A part of a draft head that is streamed as one."""

    name: str
    n_bytes: int
    dtype: str
    note: str = ""


@dataclass(frozen=True)
class Placement:
    """Whether a block fits into what the blocks before it leave free."""

    block: WeightBlock
    fits_alone: bool
    is_resident: bool
    free_megabytes: float  # after it


def read_inventory(path: Path = EAGLE4_DRAFTER) -> list[WeightBlock]:
    """Blocks of an inventory file: block, bytes, dtype, note."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or "bytes" not in rows[0]:
        raise UsageError(f"{path} is no inventory; its header is block,bytes,dtype,note")
    return [WeightBlock(r["block"], int(r["bytes"]), r["dtype"], r["note"] or "") for r in rows]


def blocks_of(tensors: Iterable[tuple[str, int, str]]) -> list[WeightBlock]:
    """An inventory from a checkpoint's tensors: name, bytes and dtype of each."""
    sizes: dict[str, int] = {}
    dtypes: dict[str, set[str]] = {}
    for name, n_bytes, dtype in tensors:
        block = next((made for part, made in _BLOCKS if part in name), "norms and maps")
        sizes[block] = sizes.get(block, 0) + n_bytes
        dtypes.setdefault(block, set()).add(dtype)
    return [WeightBlock(name, sizes[name], "+".join(sorted(dtypes[name]))) for name in sizes]


def place(
    blocks: Sequence[WeightBlock], on_chip: OnChip, reserved_megabytes: float = 0.0
) -> list[Placement]:
    """Smallest first: every level streams every block, so a resident byte saves the same anywhere.

    `reserved_megabytes` is taken by state, tables and stream buffers.
    """
    free = on_chip.megabytes - reserved_megabytes
    whole = on_chip.megabytes
    placed = []
    for block in sorted(blocks, key=lambda one: one.n_bytes):
        size = block.n_bytes / MEGA
        is_resident = block.name != GATHERED and size <= free
        free -= size if is_resident else 0.0
        placed.append(Placement(block, size <= whole, is_resident, free))
    return placed
