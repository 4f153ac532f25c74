"""Writes a checkpoint tensor by tensor: shapes are known beforehand, so memory holds one tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aerie.models.weights import DTYPES, INDEX, SINGLE

SHARD_BYTES = 5 * 10**9  # what public checkpoints use
SPELLING = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that will be written."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def n_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


Make = Callable[[PlannedTensor], Tensor]


def write_shards(
    directory: Path, planned: Sequence[PlannedTensor], make: Make, shard_bytes: int = SHARD_BYTES
) -> int:
    """Make and write every tensor in turn; returns the bytes of all tensors.

    One file if they fit into `shard_bytes`, else several and an index; no tensor is split.
    """
    shards = _split(planned, shard_bytes)
    total = sum(tensor.n_bytes for tensor in planned)
    if len(shards) == 1:
        _write_file(directory / SINGLE, shards[0], make)
        return total
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_file(directory / name, shard, make)
        weight_map |= {tensor.name: name for tensor in shard}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (directory / INDEX).write_text(text, encoding="utf-8")
    return total


def _split(planned: Sequence[PlannedTensor], shard_bytes: int) -> list[list[PlannedTensor]]:
    shards: list[list[PlannedTensor]] = [[]]
    filled = 0
    for tensor in planned:
        if shards[-1] and filled + tensor.n_bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.n_bytes
    return shards


def _write_file(path: Path, shard: Sequence[PlannedTensor], make: Make) -> None:
    # Wide elements first: every tensor then starts at a multiple of its own element.
    ordered = sorted(shard, key=lambda tensor: -tensor.dtype.itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in ordered:
        offsets = [start, start + tensor.n_bytes]
        header[tensor.name] = {
            "dtype": SPELLING[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        start = offsets[1]
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for tensor in ordered:
            made = make(tensor)
            assert made.shape == tensor.shape and made.dtype == tensor.dtype, tensor.name
            # numpy has no bf16; the bytes are the same.
            made.cpu().contiguous().view(torch.uint8).numpy().tofile(file)
