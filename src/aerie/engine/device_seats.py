"""Who sits in which slot of the captured rounds, and what the draft has still to be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from aerie.engine.device_report import Seat, missed_features, nothing_after
from aerie.engine.device_round import RoundParts
from aerie.engine.device_state import empty, seat
from aerie.engine.memory import Memory
from aerie.engine.request import Request
from aerie.speculation.proposer import Features, Followed, Proposer


class Seating:
    """The seats, in the order of their slots. Changed between rounds only."""

    def __init__(self, memory: Memory, proposer: Proposer) -> None:
        self.seats: list[Seat] = []
        self._memory = memory
        self._proposer = proposer

    def holds(self, requests: Sequence[Request]) -> bool:
        """Whether these and nobody else are seated."""
        return {id(request) for request in requests} == {id(own.request) for own in self.seats}

    def have_room(self, reach: Callable[[Seat], int]) -> bool:
        """Whether everybody's pages cover the positions that `reach` says."""
        return all(self._memory.covers(place.request, reach(place)) for place in self.seats)

    def seat(self, parts: RoundParts, requests: Sequence[Request]) -> bool:
        """Those who stay keep their trees, in order and without gaps (K13); the others join.

        False if nothing was to be done.
        """
        if self.holds(requests):
            return False
        wanted = {id(request) for request in requests}
        old = {id(place.request) for place in self.seats}
        stays = [id(place.request) in wanted for place in self.seats]
        kept = [place for place in self.seats if id(place.request) in wanted]
        joining = [request for request in requests if id(request) not in old]
        self._take_in(joining)
        self.seats = [*kept, *(Seat(request, request.seq_len) for request in joining)]
        seated = [place.request for place in self.seats]
        seat(parts.state, _compacted(parts, stays), len(kept), seated)
        return True

    def stand_up(self, parts: RoundParts) -> None:
        """Everybody leaves: the eager loop goes on from what is committed."""
        for place in self.seats:
            # What was committed while nothing was drafted still waits; the rest was taken in.
            is_shown = place.stale_from is None
            place.request.features = [] if is_shown else [_missed(parts, place)]
        self.seats = []

    @property
    def is_stale(self) -> bool:
        """Whether the draft was not shown everything that was committed."""
        return any(place.stale_from is not None for place in self.seats)

    def leave_gaps(self, parts: RoundParts) -> None:
        """Whoever gave its pages back while its round was under way is not drafted for.

        They may be somebody else's by now, whose draft KV it would overwrite.
        """
        gone = [slot for slot, place in enumerate(self.seats) if not place.request.held.pages]
        if gone:
            empty(parts.state, gone)

    def catch_up(self, parts: RoundParts) -> None:
        """Show the draft what it missed."""
        seated = [place for place in self.seats if place.request.held.pages]
        stale = [place for place in seated if place.stale_from is not None]
        missed = [self._followed(place.request, _missed(parts, place)) for place in stale]
        self._proposer.extend([], missed)
        for place in stale:
            place.stale_from = None

    def _take_in(self, joining: list[Request]) -> None:
        """Feed the draft what newcomers still hold for it: the end of a prompt, an eager round."""
        followed = [
            self._followed(r, *r.features)
            for r in joining
            if any(feature.next_tokens.shape[0] for feature in r.features)
        ]
        if followed:
            self._proposer.extend([], followed)
        for request in joining:
            request.features = [nothing_after(request.seq_len)]

    def _followed(self, request: Request, *features: Features) -> Followed:
        return Followed(self._memory.slots(request), request.seq_len, request.tokens, features)


def _missed(parts: RoundParts, place: Seat) -> Features:
    history = parts.state.history
    assert history is not None, "rounds without drafts keep their features"
    return missed_features(history, place)


def _compacted(parts: RoundParts, stays: list[bool]) -> torch.Tensor:
    """Old slots of those who stay, to the front. [slots] i64"""
    device = parts.table.device
    gone = torch.tensor([not is_kept for is_kept in stays], dtype=torch.bool, device=device)
    zeros = torch.zeros(len(stays), dtype=torch.int64, device=device)
    active = parts.kernels["build_active_slots"](
        finished=gone, seq_len=zeros, length_limit=zeros + 1, eos_terminated=gone
    )
    found: torch.Tensor = active.active_slots.long()
    return found
