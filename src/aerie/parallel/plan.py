"""Plans as bytes: what the leader sends, in one broadcast a pass, and all ranks run.

A header of integers, then arrays, the widest numbers first, so that each can be read in place.
How long the next plan is, is not known: a header says what room it has, enough for one like its own
and hardly less than before, for large ones come in turns. What needs more is announced by a header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from aerie.attention.rows import MASK_WORDS, Bounds, PackedMask, Rows
from aerie.parallel.group import Group

ARRAYS: dict[str, torch.dtype] = {
    **dict.fromkeys(("released", "source", "destination", "logit_rows", "taps"), torch.int64),
    **dict.fromkeys(("tokens", "positions", "kv_slots"), torch.int64),
    **dict.fromkeys(("visible_prefix", "ancestor_bits", "qo_indptr", "kv_indptr"), torch.int32),
    **dict.fromkeys(("kv_indices", "column_positions", "tree_start", "indptr"), torch.int32),
    "packed": torch.uint8,
}
OF_ROWS = [entry.name for entry in fields(Rows) if entry.name in ARRAYS]
BOUNDS = tuple(entry.name for entry in fields(Bounds))
# `pool` is the pass's; `n_slots` of one that comes, `moved` the one whose slots move before it.
NUMBERS = ("is_whole", "room", "pool", "n_slots", "moved", *BOUNDS)
HEADER = 8 * (len(NUMBERS) + len(ARRAYS))  # bytes
ROOM = 1 << 13  # bytes, of the first plan and at least
DECAY = 32  # this part of the room is given up with a plan that does not need it
NOTHING = -1


@dataclass(frozen=True, eq=False)
class Plan:
    """What happens on every rank; a number that was not given is -1, an array is empty."""

    numbers: Mapping[str, int]
    arrays: Mapping[str, Any]

    def rows(self) -> Rows | None:
        """The rows of its pass, where it has one."""
        arrays = self.arrays
        if not len(arrays["qo_indptr"]):
            return None
        own = {name: arrays[name] for name in OF_ROWS}
        own["ancestor_bits"] = own["ancestor_bits"].view(-1, MASK_WORDS)
        mask = PackedMask(arrays["packed"], arrays["indptr"]) if len(arrays["indptr"]) else None
        return Rows(**own, bounds=Bounds(*(self.numbers[name] for name in BOUNDS)), mask=mask)


def of_rows(rows: Rows) -> Plan:
    """What a plan says of a pass's rows."""
    mask = {} if rows.mask is None else {"packed": rows.mask.packed, "indptr": rows.mask.indptr}
    return Plan(asdict(rows.bounds), {**{name: getattr(rows, name) for name in OF_ROWS}, **mask})


class Broadcasts:
    """One end of the way that plans take; all ends know what room the next one has."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._buffer = torch.zeros(ROOM, dtype=torch.uint8)

    @torch.inference_mode()  # the buffer may be made in it, and is then written in it only
    def send(self, plan: Plan) -> None:
        """To all ranks: one broadcast, unless it is larger than the last one's room."""
        parts = [
            torch.as_tensor(plan.arrays.get(name, ()), dtype=dtype, device="cpu").reshape(-1)
            for name, dtype in ARRAYS.items()
        ]
        data = torch.cat([part.view(torch.uint8) for part in parts])
        n_bytes, room = HEADER + len(data), len(self._buffer)
        said = {**plan.numbers, "room": max(ROOM, 1 << n_bytes.bit_length(), room - room // DECAY)}
        header = [said.get(name, NOTHING) for name in NUMBERS] + [len(part) for part in parts]
        if n_bytes > room:
            self._exchange([0, *header[1:]], data[:0])
        self._exchange([1, *header[1:]], data)

    def _exchange(self, header: list[int], data: Tensor) -> None:
        self._buffer[:HEADER] = torch.tensor(header, dtype=torch.int64).view(torch.uint8)
        self._buffer[HEADER : HEADER + len(data)] = data
        self._group.broadcast(self._buffer)
        self._make_room(header[1])

    def receive(self) -> Plan:
        """The next plan, whose arrays hold until the one after it."""
        while True:
            buffer = self._buffer
            self._group.broadcast(buffer)
            header = buffer[:HEADER].view(torch.int64).tolist()
            numbers = dict(zip(NUMBERS, header, strict=False))
            self._make_room(numbers["room"])
            if numbers["is_whole"]:
                return Plan(numbers, self._split(buffer, header[len(NUMBERS) :]))

    def _split(self, buffer: Tensor, lengths: list[int]) -> dict[str, Tensor]:
        found, start = {}, HEADER
        for (name, dtype), length in zip(ARRAYS.items(), lengths, strict=True):
            end = start + length * dtype.itemsize
            found[name] = buffer[start:end].view(dtype).to(self._group.device)
            start = end
        return found

    def _make_room(self, n_bytes: int) -> None:
        """A new buffer where another size is needed: arrays may still lie in the old one."""
        if n_bytes != len(self._buffer):
            self._buffer = torch.empty(n_bytes, dtype=torch.uint8)
