"""The batch's own record on its device: fixed buffers that rounds read, write and never resize.

Seat b of every buffer is one request. The host writes columns when somebody joins or leaves; all
else is written by the rounds themselves. An empty seat is inert: its table row is the one that
names the inert KV slot throughout, its tree is a root, and it never goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.engine.report import DEPTHS, PARENTS, SCORES, TOKENS, Report, ReportSizes
from aerie.engine.request import Request
from aerie.engine.sampler import Columns, Options
from aerie.kernels.report import SEQ_LEN
from aerie.speculation.store import NodeStore

MAX_STOPS = 64  # stop ids of one request, as K7's card allows; the host clips at the others


@dataclass(frozen=True, eq=False)
class Seats:
    """Who sits where, as the device needs it."""

    is_live: Tensor  # [B] bool, false for an empty seat and for one whose request has ended
    takes_drafts: Tensor  # [B] bool
    table_row: Tensor  # [B] i64
    length_limit: Tensor  # [B] i64
    stop_tokens: Tensor  # [B, MAX_STOPS] i64, -1 for none


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
    history: History | None  # None: every round drafts, or nobody does


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

    seats: Seats
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
    inert_row: int

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
    n_pages: int = 0  # rounds under way at most; none: the report is read where it is written


def allocate_state(sizes: StateSizes, dtype: torch.dtype, device: str) -> State:
    """All seats empty."""

    def integers(*shape: int, fill: int = 0) -> Tensor:
        return torch.full(shape, fill, dtype=torch.int64, device=device)

    def truths(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.bool, device=device)

    n, run, n_rows = sizes.report.n_seats, sizes.report.run, sizes.inert_row + 1
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
        seats=Seats(
            is_live=truths(n),
            takes_drafts=truths(n),
            table_row=integers(n, fill=sizes.inert_row),
            length_limit=integers(n),
            stop_tokens=integers(n, MAX_STOPS, fill=-1),
        ),
        columns=Columns.empty(n, sizes.vocabulary, device),
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
        inert_row=sizes.inert_row,
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


def seat(state: State, stays: Sequence[int], requests: Sequence[Request]) -> None:
    """Bring the seats in line with `requests`: the first ones come from old seats `stays`.

    Newcomers have read their prompt: the features of its last position wait by table row, so that
    they are drafted for like everybody else.
    """
    n_kept, n = len(stays), len(requests)
    if list(stays) != list(range(n_kept)):
        where = torch.tensor(stays, dtype=torch.int64)
        where = where.to(state.seq_len.device, non_blocking=True)
        _move(state, where, Options.of(requests[:n_kept]))
    _write(state, requests)
    new = requests[n_kept:]
    if new:
        _join(state, slice(n_kept, n), new)
    state.columns.write_tables(n_kept, requests)
    state.chosen[n_kept:, 1:] = False
    state.seq_len[n:] = 0
    state.kept.count[n:] = 0


def _move(state: State, stays: Tensor, options: Options) -> None:
    """Those who stay move to the front, in order; counts of tokens only where they are used."""
    n, report = stays.shape[0], state.report
    buffers = [
        *(state.seq_len, state.chosen, state.store.sort_scores),
        *(state.kept.tokens, state.kept.taps, state.kept.count),
        *(report.lines, report.path, report.logprobs, report.top_tokens, report.top_logprobs),
        *state.store.arrays.values(),
    ]
    for buffer in buffers:
        buffer[:n] = buffer.index_select(0, stays)
    for trees in (state.noted, report.trees):
        trees[:, :n] = trees.index_select(1, stays)
    if options.penalties:
        state.columns.counts[:n] = state.columns.counts.index_select(0, stays)


def _join(state: State, where: slice, new: Sequence[Request]) -> None:
    """Roots, lengths and the one row that a newcomer's draft begins with."""
    device = state.seq_len.device

    def sent(values: list[int]) -> Tensor:
        # Without waiting: the device has rounds to run.
        return torch.tensor(values).to(device, non_blocking=True)

    roots = sent([request.tokens[-1] for request in new])
    state.seq_len[where] = sent([request.seq_len for request in new])
    state.store.arrays["cumu_tokens"][where, 0] = roots
    state.kept.tokens[where, 0] = roots
    state.kept.taps[where, 0] = state.features.last[state.seats.table_row[where]]
    state.kept.count[where] = state.seq_len[where].clamp_max(1)  # a first token has no features
    # Until they are verified, their line of the report tells nothing.
    state.report.lines[where] = 0
    state.report.lines[where, SEQ_LEN] = state.seq_len[where].int()
    if state.text is not None:
        for request in new:
            state.text[request.held.row, : len(request.tokens)] = sent(request.tokens).int()


def _write(state: State, requests: Sequence[Request]) -> None:
    """Everything the host knows about every seat."""
    empty = state.n_seats - len(requests)
    stops = [r.job.stop_ids[:MAX_STOPS] for r in requests]
    columns: dict[str, list[Any]] = {
        "is_live": [True] * len(requests) + [False] * empty,
        "takes_drafts": [r.takes_drafts for r in requests] + [False] * empty,
        "table_row": [r.held.row for r in requests] + [state.inert_row] * empty,
        "length_limit": [r.job.length_limit for r in requests] + [0] * empty,
        "stop_tokens": [[*own, *[-1] * (MAX_STOPS - len(own))] for own in stops]
        + [[-1] * MAX_STOPS] * empty,
    }
    for name, values in columns.items():
        buffer: Tensor = getattr(state.seats, name)
        buffer.copy_(torch.tensor(values, dtype=buffer.dtype), non_blocking=True)
    state.columns.write(requests)
