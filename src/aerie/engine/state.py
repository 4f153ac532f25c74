"""The batch's own record on its device: fixed buffers that rounds read, write and never resize.

Seat b of every buffer is one request. The host writes columns when requests join or leave; all
else is written by the rounds themselves. An empty seat is inert: its table row is the one that
names the inert KV slot throughout, its tree is a root, and it never goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from aerie.engine.packed import Packed
from aerie.engine.report import DEPTHS, PARENTS, SCORES, TOKENS, Report, ReportSizes
from aerie.engine.sampler import COLUMNS, Column, Columns
from aerie.kernels.report import N_CHOSEN, SEQ_LEN
from aerie.requests.params import MAX_STOPS
from aerie.requests.request import Request
from aerie.speculation.store import NodeStore

# The same of seats: what is known of a request that is seated anew.
_SEATS: tuple[Column, ...] = (
    ("is_seated", torch.bool, False, lambda r: True),
    ("takes_drafts", torch.bool, False, lambda r: r.takes_drafts),
    ("table_row", torch.int64, 0, lambda r: r.held.row),
    ("length_limit", torch.int64, 0, lambda r: r.job.length_limit),
    ("start", torch.int64, 0, lambda r: r.seq_len),
    ("root", torch.int64, 0, lambda r: r.tokens[-1]),
)


class Told:
    """What the host says of every seat: its own copy, and the one that rounds read."""

    def __init__(self, n_seats: int, inert_row: int, device: str) -> None:
        shapes = {name: (dtype, (n_seats,)) for name, dtype, _, _ in (*_SEATS, *COLUMNS)}
        more: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "stop_tokens": (torch.int64, (n_seats, MAX_STOPS)),  # -1 for none
            "source": (torch.int64, (n_seats,)),  # the seat whose request moves here
            "is_new": (torch.bool, (n_seats,)),  # no request moves here
        }
        self._here = Packed.empty({**shapes, **more}, "cpu")
        is_cpu = device == "cpu"
        self._there = self._here if is_cpu else Packed.empty({**shapes, **more}, device)
        self.inert_row = inert_row
        self.write((), ())

    @property
    def arrays(self) -> dict[str, Tensor]:
        """By name, on the rounds' device."""
        return self._there.arrays

    def write(self, stays: Sequence[int], requests: Sequence[Request]) -> None:
        """Seat these: the first ones come from old seats `stays`, in order."""
        n, n_kept, arrays = len(requests), len(stays), self._here.host
        for name, _, neutral, read in (*_SEATS, *COLUMNS):
            arrays[name][:n] = [read(request) for request in requests]
            arrays[name][n:] = neutral
        arrays["table_row"][n:] = self.inert_row
        arrays["stop_tokens"].fill(-1)
        for seat, request in enumerate(requests):
            stops = request.job.stop_ids[:MAX_STOPS]
            arrays["stop_tokens"][seat, : len(stops)] = stops
        arrays["source"][:] = range(len(arrays["source"]))
        arrays["source"][:n_kept] = stays
        arrays["is_new"].fill(True)
        arrays["is_new"][:n_kept] = False
        self._send()

    def leave(self, seats: Sequence[int]) -> None:
        """These hold no memory any more: until they are seated anew, they write the inert slot."""
        self._here.host["table_row"][list(seats)] = self.inert_row
        self._send()

    def _send(self) -> None:
        if self._there is not self._here:
            # From memory that is not pinned: the host may write it again at once.
            self._there.flat.copy_(self._here.flat, non_blocking=True)


@dataclass(frozen=True, eq=False)
class Kept:
    """What a verification hands to the next draft, by seat."""

    tokens: Tensor  # [B, run] i64, the token after each row
    taps: Tensor  # [B, run, captures, hidden]
    count: Tensor  # [B] i64


@dataclass(frozen=True, eq=False)
class History:
    """Features of rounds without drafts, by table row and position modulo the capacity."""

    taps: Tensor  # [table rows, capacity, captures, hidden]
    tokens: Tensor  # [table rows, capacity] i64, the token after each position


@dataclass(frozen=True, eq=False)
class Features:
    """The target's features that the draft has not taken in, by table row."""

    last: Tensor  # [table rows, captures, hidden] of the last position of a prompt
    history: History | None  # None: every round drafts, or none does


@dataclass(frozen=True, eq=False)
class Chunk:
    """A stretch of prompts: rows of several requests, one after the other."""

    tokens: Tensor  # [rows] i64
    following: Tensor  # [rows] i64, the token after each
    qo_indptr: Tensor  # [B+1] i32
    start: Tensor  # [B] i64, first position of each stretch
    table_row: Tensor  # [B] i64


@dataclass(frozen=True, eq=False)
class State:
    """Every buffer of a round."""

    told: Told
    is_live: Tensor  # [B] bool, false for an empty seat and for one whose request has ended
    columns: Columns
    seq_len: Tensor  # [B] i64, tokens with KV in the target
    store: NodeStore
    chosen: Tensor  # [B, N] bool, the nodes to verify next
    noted: Tensor  # [4, B, M] i32, the chosen trees in row order
    kept: Kept
    features: Features
    report: Report
    pages: tuple[Report, ...]  # the host's copies of the report, one for each round under way
    text: Tensor | None  # [table rows, positions] i32, where paths are copied from it

    @cached_property
    def seats(self) -> Callable[[str, int], Tensor]:
        """What the host told of the first so many seats, by name: views, made once."""
        return cache(lambda name, n: self.told.arrays[name][:n])

    def hold_masks(self) -> None:
        """Make room for masks: of all trees that are verified, or of all nodes fed at once."""
        widest = max(self.noted.shape[2], self.report.gains.shape[1])
        n_known = 2 * self.chosen.numel() + self.report.lines.numel()
        self.columns.masks.hold(self.n_seats * widest, self.noted.numel() + n_known)

    @property
    def n_seats(self) -> int:
        """Seats of the largest bucket."""
        return self.seq_len.shape[0]


@dataclass(frozen=True)
class StateSizes:
    """What the buffers are sized by."""

    report: ReportSizes
    n_nodes: int  # node capacity of a request's tree
    features: tuple[int, int]  # captures and hidden size of the target's features
    vocabulary: int
    inert_row: int
    n_history: int = 0  # positions of features kept while rounds do not draft
    n_text: int = 0  # positions of the texts, where paths are copied from them
    n_pages: int = 0  # of reports; none: the report is read where it is written


def allocate_state(sizes: StateSizes, dtype: torch.dtype, device: str) -> State:
    """All seats empty."""

    def integers(*shape: int, fill: int = 0) -> Tensor:
        return torch.full(shape, fill, dtype=torch.int64, device=device)

    def truths(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.bool, device=device)

    n, run, n_rows = sizes.report.n_seats, sizes.report.run, sizes.inert_row + 1
    told = Told(n, sizes.inert_row, device)
    chosen = truths(n, sizes.n_nodes)
    chosen[:, 0] = True
    is_cuda = device.startswith("cuda")
    report = Report.empty(sizes.report, device)
    pages = tuple(Report.empty(sizes.report, "cpu", is_cuda) for _ in range(sizes.n_pages))
    noted = torch.zeros((4, n, sizes.report.n_verify), dtype=torch.int32, device=device)
    noted[PARENTS] = -1
    history = None
    if sizes.n_history:
        shape = (n_rows, sizes.n_history, *sizes.features)
        taps = torch.zeros(shape, dtype=dtype, device=device)
        history = History(taps, integers(n_rows, sizes.n_history))
    text = None
    if sizes.n_text:
        text = torch.zeros((n_rows, sizes.n_text), dtype=torch.int32, device=device)
    return State(
        told=told,
        is_live=truths(n),
        columns=Columns.empty(told.arrays, n, sizes.vocabulary),
        seq_len=integers(n),
        store=NodeStore.empty(n, sizes.n_nodes, sizes.report.n_verify, device),
        chosen=chosen,
        noted=noted,
        kept=Kept(
            tokens=integers(n, run),
            taps=torch.zeros((n, run, *sizes.features), dtype=dtype, device=device),
            count=integers(n),
        ),
        features=Features(
            torch.zeros((n_rows, *sizes.features), dtype=dtype, device=device), history
        ),
        report=report,
        pages=pages or (report,),
        text=text,
    )


def noted_parts(noted: Tensor, n_seats: int) -> dict[str, Tensor]:
    """The noted trees of the first seats, by the names of R10's card."""
    own = noted[:, :n_seats]
    return {
        "noted_scores": own[SCORES].view(torch.float32),
        "noted_depths": own[DEPTHS],
        "noted_tokens": own[TOKENS],
        "noted_parents": own[PARENTS],
    }


def arrange(state: State, n: int, is_moved: bool, is_counted: bool) -> None:
    """Bring the first n seats in line with what the host told; all others are empty.

    A newcomer has read its prompt: the features of its last position wait by table row, so that
    it is drafted for like all others. Tables of counts move only where a request uses them.
    """
    kept, report = state.kept, state.report
    if is_moved:
        _move(state, state.seats("source", n), is_counted)
    is_new, start, roots = (state.seats(name, n) for name in ("is_new", "start", "root"))
    line = torch.zeros_like(report.lines[:n])
    line[:, SEQ_LEN], line[:, N_CHOSEN] = start.int(), 1
    begun: tuple[tuple[Tensor, Tensor], ...] = (
        (state.seq_len[:n], start),
        (state.store.arrays["cumu_tokens"][:n, 0], roots),
        (kept.tokens[:n, 0], roots),
        (kept.count[:n], start.clamp_max(1)),  # a first token has no features
        (kept.taps[:n, 0], state.features.last[state.seats("table_row", n)]),
        (report.lines[:n], line),  # until it is verified, it tells nothing
    )
    for buffer, values in begun:
        where = is_new.view(-1, *[1] * (buffer.dim() - 1))
        buffer.copy_(torch.where(where, values, buffer))
    state.chosen[:n, 1:] &= ~is_new[:, None]
    state.is_live[:n] = state.seats("is_seated", n) & (is_new | state.is_live[:n])
    state.is_live[n:] = False


def _move(state: State, source: Tensor, is_counted: bool) -> None:
    n, report = source.shape[0], state.report
    buffers = [
        *(state.seq_len, state.is_live, state.chosen, state.store.sort_scores),
        *(state.kept.tokens, state.kept.taps, state.kept.count),
        *(report.lines, report.path, report.logprobs, report.top_tokens, report.top_logprobs),
        *state.store.arrays.values(),
    ]
    for buffer in buffers:
        buffer[:n] = buffer.index_select(0, source)
    for trees in (state.noted, report.trees, *([state.columns.counts] if is_counted else [])):
        trees[:, :n] = trees.index_select(1, source)


def write_texts(state: State, requests: Sequence[Request]) -> None:
    """The texts of newcomers, where paths are copied from them."""
    if state.text is not None:
        for request in requests:
            own = torch.tensor(request.tokens, dtype=torch.int32)
            state.text[request.held.row, : len(own)].copy_(own, non_blocking=True)
