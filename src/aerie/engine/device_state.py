"""The device's own record of the batch: fixed buffers that rounds read, write and never resize.

Slot b of every buffer is one request. The host writes `Seats` when somebody joins or leaves; all
else is written by the rounds themselves. An empty slot is inert: its table row is the one that
names the inert KV slot throughout, its tree is a root, and it never goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from aerie.engine.request import Request
from aerie.speculation.device_store import Accepted, NodeStore
from aerie.speculation.round_ops import REPORT, Standing

MAX_STOPS = 64  # stop ids of one request, as K7's card allows
REPORT_PAGES = 2  # rounds under way at most

Buffers = TypeVar("Buffers", "Seats", Accepted)


@dataclass(frozen=True, eq=False)
class Seats:
    """What was asked for, by slot; the host writes it between rounds."""

    is_live: Tensor  # [B] bool, false for an empty slot
    table_row: Tensor  # [B] i64
    length_limit: Tensor  # [B] i64
    stop_tokens: Tensor  # [B, MAX_STOPS] i64, -1 for none
    temperature: Tensor  # [B] f32
    seed: Tensor  # [B] i64
    sample_index: Tensor  # [B] i64


@dataclass(frozen=True, eq=False)
class Report:
    """What the host reads once a round: one row of integers per slot, then its tokens."""

    written: Tensor  # [B, REPORT and n] i32 on the device, n tokens at most
    read: tuple[Tensor, ...]  # the same on the host, one for each round that may be under way


@dataclass(frozen=True, eq=False)
class Lessons:
    """What a policy learns from: of the trees under verification, and of the last draft.

    A row holds M path scores, then M depths, then the accepted path: of the nodes in row order.
    """

    sent: Tensor  # [B, 2 M] f32, of the trees chosen last
    told: Tensor  # [B, 2 M + n] f32, the same of those verified last, with their verdict
    gains: Tensor  # [levels, K+1] f32
    read_told: Tensor  # both on the host
    read_gains: Tensor


@dataclass(frozen=True, eq=False)
class DeviceState:
    """Every buffer of the device round."""

    seats: Seats
    seq_len: Tensor  # [B] i64, tokens with KV in the target
    store: NodeStore
    chosen: Tensor  # [B, N] bool, the nodes to verify next
    accepted: Accepted
    report: Report
    inert_row: int
    lessons: Lessons | None  # None: nobody learns
    history: Tensor | None  # [table rows, positions, captures, hidden], features not taken in yet

    @property
    def n_slots(self) -> int:
        """Slots of the largest bucket."""
        return self.seq_len.shape[0]

    def standing(self, n_slots: int) -> Standing:
        """What a verdict changes, of the first slots."""
        arrays = self.store.arrays
        return Standing(
            is_live=self.seats.is_live[:n_slots],
            seq_len=self.seq_len[:n_slots],
            node_tokens=arrays["cumu_tokens"][:n_slots],
            node_scores=arrays["cumu_scores"][:n_slots],
            tokens=self.accepted.tokens[:n_slots],
            count=self.accepted.count[:n_slots],
            report=self.report.written[:n_slots],
        )


@dataclass(frozen=True)
class StateSizes:
    """What the buffers are sized by."""

    n_slots: int
    n_nodes: int  # node capacity of a request's tree
    n_verify: int  # entries of K2's running order
    longest_path: int  # tokens a round can emit for one request
    features: tuple[int, int]  # captures and hidden size of the target's features
    inert_row: int
    n_gains: tuple[int, int] = (0, 0)  # levels, and K + 1, of a policy that learns
    n_history: int = 0  # positions of features kept while rounds do not draft


def allocate_state(sizes: StateSizes, dtype: torch.dtype, device: str) -> DeviceState:
    """All slots empty."""

    def integers(*shape: int, fill: int = 0) -> Tensor:
        return torch.full(shape, fill, dtype=torch.int64, device=device)

    n, path = sizes.n_slots, sizes.longest_path
    chosen = torch.zeros((n, sizes.n_nodes), dtype=torch.bool, device=device)
    chosen[:, 0] = True
    width = len(REPORT) + path
    is_pinned = device.startswith("cuda")
    return DeviceState(
        seats=Seats(
            is_live=torch.zeros(n, dtype=torch.bool, device=device),
            table_row=integers(n, fill=sizes.inert_row),
            length_limit=integers(n),
            stop_tokens=integers(n, MAX_STOPS, fill=-1),
            temperature=torch.zeros(n, device=device),
            seed=integers(n),
            sample_index=integers(n),
        ),
        seq_len=integers(n),
        store=NodeStore.empty(n, sizes.n_nodes, sizes.n_verify, device),
        chosen=chosen,
        accepted=Accepted(
            tokens=integers(n, path),
            taps=torch.zeros((n, path, *sizes.features), dtype=dtype, device=device),
            count=integers(n),
        ),
        report=Report(
            written=torch.zeros((n, width), dtype=torch.int32, device=device),
            read=tuple(
                torch.zeros((n, width), dtype=torch.int32, pin_memory=is_pinned)
                for _ in range(REPORT_PAGES)
            ),
        ),
        inert_row=sizes.inert_row,
        lessons=_lessons(sizes, device) if sizes.n_gains[0] else None,
        history=torch.zeros(
            (sizes.inert_row + 1, sizes.n_history, *sizes.features), dtype=dtype, device=device
        )
        if sizes.n_history
        else None,
    )


def _lessons(sizes: StateSizes, device: str) -> Lessons:
    def room(*shape: int) -> Tensor:
        return torch.zeros(shape, device=device)

    def pinned(*shape: int) -> Tensor:
        return torch.zeros(shape, pin_memory=device.startswith("cuda"))

    told = (sizes.n_slots, 2 * sizes.n_verify + sizes.longest_path)
    sent = room(sizes.n_slots, 2 * sizes.n_verify)
    return Lessons(sent, room(*told), room(*sizes.n_gains), pinned(*told), pinned(*sizes.n_gains))


def leading(buffers: Buffers, n_slots: int) -> Buffers:
    """Views of the first slots."""
    views: dict[str, Any] = {
        entry.name: getattr(buffers, entry.name)[:n_slots] for entry in fields(buffers)
    }
    return replace(buffers, **views)


def seat(state: DeviceState, kept: Tensor, n_kept: int, requests: Sequence[Request]) -> None:
    """Bring the slots in line with `requests`: the first `n_kept` stay, the others are new.

    `kept` [slots] i64 lists the old slots of those who stay, in order. Newcomers start with their
    root alone: what the draft would need for a tree is only known after their first round.
    """
    _write_seats(state, requests)
    n = len(requests)
    own = [] if state.lessons is None else [state.lessons.sent]
    for buffer in (state.seq_len, state.chosen, state.store.sort_scores, *_arrays(state), *own):
        buffer[:n_kept] = buffer.index_select(0, kept[:n_kept])
    fresh = slice(n_kept, n)
    new = requests[n_kept:]
    device = state.seq_len.device
    roots = torch.tensor([request.tokens[-1] for request in new], dtype=torch.int64)
    lengths = torch.tensor([request.seq_len for request in new], dtype=torch.int64)
    state.seq_len[fresh] = lengths.to(device)
    state.seq_len[n:] = 0
    state.store.arrays["cumu_tokens"][fresh, 0] = roots.to(device)
    state.chosen[n_kept:, 1:] = False


def empty(state: DeviceState, slots: Sequence[int]) -> None:
    """Make slots inert whose requests have left while their round was under way."""
    gone = torch.tensor(slots, dtype=torch.int64).to(state.seq_len.device)
    state.seats.is_live[gone] = False
    state.seats.table_row[gone] = state.inert_row


def _arrays(state: DeviceState) -> list[Tensor]:
    return list(state.store.arrays.values())


def _write_seats(state: DeviceState, requests: Sequence[Request]) -> None:
    """Everything the host knows about every slot."""
    empty = state.n_slots - len(requests)
    stops = [[*r.job.stop_ids, *[-1] * (MAX_STOPS - len(r.job.stop_ids))] for r in requests]
    columns: dict[str, list[Any]] = {
        "is_live": [True] * len(requests) + [False] * empty,
        "table_row": [r.held.row for r in requests] + [state.inert_row] * empty,
        "length_limit": [r.job.length_limit for r in requests] + [0] * empty,
        "stop_tokens": stops + [[-1] * MAX_STOPS] * empty,
        "temperature": [r.params.temperature for r in requests] + [0.0] * empty,
        "seed": [_signed(r.job.seed) for r in requests] + [0] * empty,
        "sample_index": [r.job.sample_index for r in requests] + [0] * empty,
    }
    for name, values in columns.items():
        buffer: Tensor = getattr(state.seats, name)
        buffer.copy_(torch.tensor(values, dtype=buffer.dtype))


def _signed(seed: int) -> int:
    """A 64-bit seed as int64 holds it."""
    low = seed & 0xFFFFFFFFFFFFFFFF
    return low - (1 << 64) if low >= 1 << 63 else low
