"""Which request has which seat of the batch, as the host knows it, and what its draft has seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from aerie.engine.graphs import Graphs, Recording
from aerie.engine.near_kv import MOST_SEATS
from aerie.engine.parts import Parts
from aerie.engine.sampler import Options
from aerie.engine.seat import Seat
from aerie.engine.state import State, arrange, write_texts
from aerie.kv.memory import Memory
from aerie.requests.request import Request
from aerie.speculation.hot import HotIds
from aerie.speculation.policy import Situation
from aerie.speculation.store import Missed
from aerie.text.walker import Walker


def _arrived(request: Request, hot: HotIds | None) -> Seat:
    """A newcomer's draft begins with the last position of its prompt, if there is one."""
    job, grammar = request.job, request.job.grammar
    begin = request.output, job.params.min_tokens, job.stop_ids
    return Seat(
        request,
        request.seq_len,
        request.seen,
        n_kept=min(request.seq_len, 1),
        hot=None if hot is None else hot.choose(job.prompt),
        walker=None if grammar is None else Walker(grammar, *begin),
    )


class Seating:
    """The seats, in order. Changed between rounds only."""

    def __init__(self, memory: Memory, graphs: Graphs, parts: Parts) -> None:
        self.seats: list[Seat] = []
        self._memory, masks = memory, parts.state.columns.masks
        self._graphs = masks.graphs = graphs
        self._hot = None if parts.draft is None else parts.draft.hot
        masks.seats = lambda: self.seats

    def holds(self, requests: Sequence[Request]) -> bool:
        """Whether exactly these are seated."""
        here = {id(own.request) for own in self.seats if not own.has_left}
        return {id(request) for request in requests} == here and len(here) == len(self.seats)

    @property
    def is_constrained(self) -> bool:
        """Whether any request has a grammar, whose masks need the host in every round."""
        return any(own.walker is not None for own in self.seats)

    def have_room(self, reach: Callable[[Seat], int]) -> bool:
        """Whether the pages of every seat cover the positions that `reach` says."""
        return all(self._memory.covers(own.request, reach(own)) for own in self.seats)

    def seat(self, state: State, requests: Sequence[Request], n_seats: int) -> bool:
        """Requests that stay keep their trees, in order and without gaps (K13); the others join.

        `n_seats` is the bucket they sit in. False if nothing was to be done.
        """
        if self.holds(requests):
            return False
        wanted = {id(request) for request in requests}
        stays = [
            index
            for index, own in enumerate(self.seats)
            if id(own.request) in wanted and not own.has_left
        ]
        old = {id(self.seats[index].request) for index in stays}
        new = [_arrived(request, self._hot) for request in requests if id(request) not in old]
        self.seats = [*(self.seats[index] for index in stays), *new]
        if self.is_constrained:
            state.hold_masks()
        seated = [own.request for own in self.seats]
        is_moved = stays != list(range(len(stays)))
        is_counted = Options.of(seated[: len(stays)]).penalties
        state.told.write(stays, seated)
        self._graphs.run(*arranging(state, n_seats, is_moved, is_counted))
        state.columns.write(len(stays), seated)
        write_texts(state, seated[len(stays) :])
        if self._hot is not None:
            self._hot.seat([own.hot for own in self.seats if own.hot is not None])
        return True

    def retire(self, requests: Sequence[Request]) -> None:
        """Requests not among these have left: nothing that is under way decides for them."""
        wanted = {id(request) for request in requests}
        for own in self.seats:
            own.is_gone |= id(own.request) not in wanted

    def leave_gaps(self, state: State) -> None:
        """Requests that have left write nothing: their pages and rows may be others' by now."""
        gone = [index for index, own in enumerate(self.seats) if own.has_left]
        if gone:
            state.told.leave(gone)


def arranging(state: State, n_seats: int, is_moved: bool, is_counted: bool) -> Recording:
    """The graph that brings so many seats in line with what the host told."""
    key = "seat", n_seats, is_moved, is_counted
    return key, partial(arrange, state, n_seats, is_moved, is_counted)


def situation(seats: Sequence[Seat]) -> Situation:
    """What a policy plans from; a batch that wants no drafts is none to it."""
    if not any(own.request.takes_drafts for own in seats):
        return Situation(0, 0.0)
    # Counts of tokens, and what a grammar allows, are not kept for what may never be said.
    is_free = all(own.walker is None and not own.request.params.has_penalties for own in seats)
    context = sum(own.seq_len for own in seats) / len(seats)
    return Situation(len(seats), context, is_free and len(seats) <= MOST_SEATS)


def catch_up(parts: Parts, seats: Sequence[Seat], ends: Sequence[int]) -> None:
    """Show the draft what it missed of positions before `ends`, as far as it was kept."""
    history = parts.state.features.history
    behind = [(own, end) for own, end in zip(seats, ends, strict=True) if own.is_behind]
    if not behind or parts.draft is None:
        return
    capacity, missed = 0 if history is None else history.taps.shape[1], []
    for own, end in behind:
        start = max(own.n_seen, end - capacity)
        if start > own.n_seen and own.lost_from is None:
            own.lost_from = own.n_seen
        own.is_behind = False
        if history is None:
            continue  # a batch that wanted no drafts, under a policy that always drafts
        row, where = own.request.held.row, torch.arange(start, end, device=parts.table.device)
        taps, tokens = history.taps[row, where % capacity], history.tokens[row, where % capacity]
        missed.append(Missed(start, parts.table[row, :end], taps, tokens))
    if missed:
        parts.draft.catch_up(missed)
