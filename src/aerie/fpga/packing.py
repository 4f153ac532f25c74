"""The draft head as a card's memory holds it: in tile order, striped over its banks.

Stripes go round the pseudo-channels, so one stream of a weight draws from all of them at once. What
is packed can be unpacked again, bit for bit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aerie.errors import UsageError
from aerie.fpga.draft_weights import DraftWeights
from aerie.fpga.quantise import Array

STRIPE = 512  # bytes: what the model of the memory chooses (`memory_study.py`)
CHANNELS = 64
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Placed:
    """Where an array lies: the same offset in every channel."""

    offset: int
    n_bytes: int
    dtype: str
    shape: tuple[int, ...]
    crc: int

    def stripes(self, channels: int, stripe: int) -> int:
        """Stripes of one channel."""
        return -(-self.n_bytes // (channels * stripe))


def arrays_of(weights: DraftWeights) -> dict[str, Array]:
    """Everything a fused draft streams, by name, in the order in which a round meets it."""
    found: dict[str, Array] = {"embedding": weights.embedding}
    sketch = weights.head.sketch
    blocks = (
        ("fc", weights.fc_q4), ("qkv", weights.qkv), ("output", weights.output),
        ("gate_up", weights.gate_up), ("down", weights.down_tiles),
        ("sketch_in", sketch.inner), ("sketch_out", sketch.outer),
    )  # fmt: skip
    for name, block in blocks:
        found |= {f"{name}.nibbles": block.nibbles, f"{name}.scales": block.scales}
    tables = weights.tables
    return found | {
        "head": weights.head.whole,
        "norms": tables.norms,
        "eps": tables.eps,
        "cosines": tables.cosines,
        "sines": tables.sines,
    }


def striped(
    arrays: Mapping[str, Array], channels: int = CHANNELS, size: int = STRIPE
) -> tuple[list[bytearray], dict[str, Placed]]:
    """Bytes of every channel, and where each array begins in them."""
    banks = [bytearray() for _ in range(channels)]
    placed: dict[str, Placed] = {}
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        entry = Placed(len(banks[0]), len(raw), str(array.dtype), array.shape, zlib.crc32(raw))
        placed[name] = entry
        rounds = entry.stripes(channels, size)
        whole = np.zeros(rounds * channels * size, np.uint8)
        whole[: len(raw)] = np.frombuffer(raw, np.uint8)
        parts = whole.reshape(rounds, channels, size).swapaxes(0, 1)
        for bank, part in zip(banks, parts, strict=True):
            bank += part.tobytes()
    return banks, placed


def gathered(banks: Sequence[bytes | bytearray], entry: Placed, size: int = STRIPE) -> Array:
    """An array back from its stripes; a wrong sum is an error."""
    rounds = entry.stripes(len(banks), size)
    parts = [
        np.frombuffer(bank, np.uint8, rounds * size, entry.offset).reshape(rounds, size)
        for bank in banks
    ]
    raw = np.stack(parts, axis=1).reshape(-1)[: entry.n_bytes].tobytes()
    if zlib.crc32(raw) != entry.crc:
        raise UsageError("a packed array does not have the sum of its manifest; pack it again")
    return np.frombuffer(raw, entry.dtype).reshape(entry.shape)


def write_pack(weights: DraftWeights, folder: Path, channels: int = CHANNELS) -> dict[str, Any]:
    """One file a channel and a manifest."""
    banks, placed = striped(arrays_of(weights), channels)
    folder.mkdir(parents=True, exist_ok=True)
    for number, bank in enumerate(banks):
        (folder / f"bank_{number:02}.bin").write_bytes(bank)
    manifest = {
        "format": "aerie-card-1",
        "channels": channels,
        "stripe": STRIPE,
        "shape": vars(weights.shape),
        "groups": {"weights": weights.qkv.group, "sketch": weights.head.sketch.outer.group},
        "arrays": {name: vars(entry) for name, entry in placed.items()},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def read_pack(folder: Path) -> dict[str, Array]:
    """The arrays of a pack."""
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    banks = [
        (folder / f"bank_{number:02}.bin").read_bytes() for number in range(manifest["channels"])
    ]
    found = {}
    for name, entry in manifest["arrays"].items():
        placed = Placed(**{**entry, "shape": tuple(entry["shape"])})
        found[name] = gathered(banks, placed, manifest["stripe"])
    return found
