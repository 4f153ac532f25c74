"""Rounds on the device, seen from the host: seat requests, pick a bucket, launch, read once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from aerie.engine.device_report import (
    Decided,
    Flight,
    Landed,
    decide,
    goes_on,
    move_on,
    read_lesson,
    why_not_captured,
)
from aerie.engine.device_round import (
    Bucket,
    RoundParts,
    close,
    draft,
    plain_round,
    publish,
    verify,
)
from aerie.engine.device_seats import Seating
from aerie.engine.device_sizes import RoundSizes
from aerie.engine.graphs import Graphs
from aerie.engine.memory import Memory
from aerie.engine.recorded import Recorded
from aerie.engine.request import Request
from aerie.speculation.device_policy import Widths
from aerie.speculation.device_store import Template
from aerie.speculation.policy import Situation
from aerie.speculation.proposer import Proposer


@dataclass
class RoundCounts:
    """How rounds were run, and why some were not captured."""

    rounds: int = 0
    ahead: int = 0  # of them launched before the report of the round before was read
    seatings: int = 0  # rounds before which somebody joined or left
    eager: dict[str, int] = field(default_factory=dict)  # rounds in the eager loop, by reason


@dataclass(frozen=True)
class Plan:
    """What a round drafts after its verification; no widths: nothing."""

    widths: Widths | None


class DeviceRounds:
    """Runs decoding requests in captured rounds. Prompts are read elsewhere."""

    def __init__(
        self, parts: RoundParts, sizes: RoundSizes, memory: Memory, proposer: Proposer
    ) -> None:
        self.parts = parts
        self.counts = RoundCounts()
        device = str(parts.table.device)
        self.graphs = Graphs(device)
        self._sizes = sizes
        self._seating = Seating(memory, proposer)
        self._flights: deque[Flight] = deque()
        self._recorded = Recorded(self.graphs, sizes.graphs.record_every)
        self._begun: Bucket | None = None  # of a verification launched without its draft
        self._plan: Plan | None = None  # of the coming round, once it was asked for
        self._report: list[list[int]] | None = None  # read, and not learnt from yet
        self._templates: dict[Widths, Template] = {}
        n_pages = len(parts.state.report.read)
        is_cuda = device.startswith("cuda")
        self._done = [torch.cuda.Event() if is_cuda else None for _ in range(n_pages)]

    @property
    def is_under_way(self) -> bool:
        """A round was started whose report has not been read."""
        return bool(self._flights) or self._begun is not None

    def covers(self, requests: Sequence[Request]) -> bool:
        """Whether a captured round computes all that these requests ask for; counts why not."""
        for request in requests:
            reason = why_not_captured(request)
            if reason is not None:
                self.counts.eager[reason] = self.counts.eager.get(reason, 0) + 1
                return False
        return True

    def stand_up(self) -> None:
        """Everybody leaves: the eager loop goes on from what is committed."""
        assert not self.is_under_way, "a report must be read before its seats go"
        self._seating.stand_up(self.parts)

    def reset(self) -> None:
        """Nobody is seated and nothing is under way; what still runs is waited for, not read."""
        if self.parts.table.is_cuda:
            torch.cuda.synchronize()
        self._flights.clear()
        self._begun = self._plan = self._report = None
        self._seating.seats = []

    @torch.inference_mode()
    def record(self, n_requests: int, n_positions: int, is_sampled: bool = False) -> None:
        """Record all graphs that rounds of so many requests and positions may ask for.

        While nobody decodes: in an empty slot a round is harmless.
        """
        assert all(p.request.ended for p in self._seating.seats), "record while nobody decodes"
        if self._begun is not None:
            self._end(is_steady=False)
        while self._flights:
            self._collect()
        self._seat([])
        sizes, parts = self._sizes, self.parts
        slots = sizes.slots(n_requests)
        columns = sizes.columns(n_positions + 1 + sizes.scratch)
        most = parts.policy.most_rows(slots)
        for bucket in sizes.verified(slots, columns, most, is_sampled):
            self.graphs.prepare(*self._first(bucket))
        rest = Bucket(slots, columns=columns)
        for widths in parts.policy.shapes if parts.draft is not None else ():
            self.graphs.prepare(*self._rest(rest, widths))
        for page in range(len(self._done)):
            self.graphs.prepare(*self._publishing(rest, page))

    @torch.inference_mode()
    def step(self, requests: Sequence[Request], is_quiet: bool) -> list[Decided]:
        """What one round decided for those of `requests` that were in it.

        While nobody comes (`is_quiet`) the next round is started before the report is handed out,
        and as far as it is known without the report even before that is read. Who joins meanwhile
        waits for the round after; who leaves, or has ended, is not in the answer.
        """
        if not self.is_under_way:
            self._seat(requests)
        is_steady = is_quiet and self._seating.holds(requests)
        if self._begun is not None:
            self._end(is_steady)
        elif not self._flights and requests:
            self._catch_up()
            self._launch(is_steady)
        if not self._flights:
            return []
        if is_steady and self._is_known_ahead():
            self._launch_ahead()
        landed = self._collect()
        if not self.is_under_way:
            if is_steady and all(goes_on(line.row) for line in landed) and self._has_room():
                # To catch up takes the tokens just decided, which are not in their requests yet.
                if not self._seating.is_stale or self._planned().widths is None:
                    self._launch(is_steady)
            elif not self._seating.holds(requests):
                seated = [place.request for place in self._seating.seats]
                self._seat([r for r in requests if any(r is own for own in seated)])
        # Written only now that the device has work again.
        wanted = {id(request) for request in requests}
        found = [line for line in landed if id(line.request) in wanted]
        return [(line.request, decide(line.row, line.seen)) for line in found]

    def _is_known_ahead(self) -> bool:
        """Whether the round after the one under way can be launched before that one's report.

        A policy that learns plans by the report: only the verification can then, of agreed rows.
        """
        flight = self._flights[-1]
        is_agreed = flight.agreed is not None or not self.parts.policy.learns
        return is_agreed and len(self._flights) < len(self._done) and self._may_go_on()

    def _may_go_on(self) -> bool:
        """Whether nobody can reach the end of the text in the round under way, or of its pages."""
        path = self._sizes.longest_path
        may_end = any(
            place.seq_len + path >= place.request.job.length_limit for place in self._seating.seats
        )
        return not may_end and self._has_room()

    def _planned(self) -> Plan:
        """What the coming round drafts, asked of the policy once."""
        if self._plan is None:
            self._learn()
            lengths = [place.seq_len for place in self._seating.seats]
            situation = Situation(len(lengths), sum(lengths) / max(len(lengths), 1))
            self._plan = Plan(self.parts.policy.open(situation))
        return self._plan

    def _learn(self) -> None:
        """Tell the policy what became of the last round: its lessons stay until the next draft."""
        report, self._report = self._report, None
        if report is not None and self.parts.state.lessons is not None:
            self.parts.policy.learn(read_lesson(self.parts.state.lessons, report))

    def _launch(self, is_steady: bool) -> None:
        """Start a round for everybody seated; returns before the device has finished.

        What is verified was chosen before: the policy plans while the device works on it.
        """
        self._begin(self._sizes.bucket(self._seating.seats, len(self._flights)))
        self._end(is_steady)

    def _launch_ahead(self) -> None:
        """Start the next round before the report of the last is read, as far as it is known."""
        self.counts.ahead += 1
        agreed = self._flights[-1].agreed
        self._begin(self._sizes.bucket(self._seating.seats, len(self._flights), agreed))
        if not self.parts.policy.learns:
            self._end(is_steady=True)

    def _begin(self, bucket: Bucket) -> None:
        """Launch a verification."""
        self._recorded.next_round()
        kind = "plain" if self.parts.draft is None else "verify"
        bucket = self._recorded.bucket(kind, bucket)
        self.graphs.run(*self._first(bucket))
        self._begun = bucket.without_rows()

    def _end(self, is_steady: bool) -> None:
        """Launch what follows a verification: the draft, and the report."""
        rest, self._begun = self._begun, None
        assert rest is not None, "a round begins with its verification"
        widths, agreed = None, None
        if self.parts.draft is not None:
            self._seating.leave_gaps(self.parts)
            self._catch_up()
            widths = self._settled(rest, self._planned().widths)
            agreed = self.parts.policy.prepare(rest.slots, is_steady)
            self.graphs.run(*self._rest(rest, widths))
        page = (self._flights[-1].page + 1) % len(self._done) if self._flights else 0
        self.graphs.run(*self._publishing(rest, page))
        done = self._done[page]
        if done is not None:
            done.record()
        self.counts.rounds += 1
        is_shown = self.parts.draft is None or widths is not None
        self._flights.append(Flight(page, is_shown, agreed))
        self._plan = None

    def _settled(self, rest: Bucket, wanted: Widths | None) -> Widths | None:
        """What is drafted: as planned, or the nearest that was recorded before."""
        policy = self.parts.policy
        known = self._recorded.instead(rest, wanted, policy.shapes) if wanted is not None else []
        return policy.settle(known) if known else wanted

    def _first(self, bucket: Bucket) -> tuple[Hashable, Callable[[], None]]:
        """The graph that begins a round: its key, and what it does."""
        if self.parts.draft is None:
            return ("plain", bucket), partial(plain_round, self.parts, bucket)
        return ("verify", bucket), partial(verify, self.parts, bucket)

    def _rest(self, bucket: Bucket, widths: Widths | None) -> tuple[Hashable, Callable[[], None]]:
        """The graph that drafts, or does without."""
        parts = self.parts
        if widths is None:
            return ("close", bucket), partial(close, parts, bucket)
        return ("draft", bucket, widths), partial(draft, parts, bucket, self._template(widths))

    def _publishing(self, bucket: Bucket, page: int) -> tuple[Hashable, Callable[[], None]]:
        """The graph that ends a round. Reports take turns: one is read while another is sent."""
        key = ("publish", Bucket(bucket.slots), page)
        return key, partial(publish, self.parts.state, bucket.slots, page)

    def _template(self, widths: Widths) -> Template:
        if widths not in self._templates:
            state, shape = self.parts.state, self._sizes.shape
            device = str(self.parts.table.device)
            self._templates[widths] = Template.of(shape, widths, state.n_slots, device)
        return self._templates[widths]

    def _collect(self) -> list[Landed]:
        """Wait for the oldest round and read its report: the one read of a round."""
        flight = self._flights.popleft()
        done, seats = self._done[flight.page], self._seating.seats
        if done is not None:
            done.synchronize()
        table = self.parts.state.report.read[flight.page][: len(seats)].tolist()
        self._report = table
        return [
            Landed(place.request, row, move_on(place, row, flight.is_shown))
            for place, row in zip(seats, table, strict=True)
        ]

    def _catch_up(self) -> None:
        """Before a round that drafts: show the draft what it missed."""
        if self._seating.is_stale and self._planned().widths is not None:
            self._seating.catch_up(self.parts)

    def _has_room(self) -> bool:
        """Whether everybody's pages cover one more round, so that the host need not add any."""
        # A verification without its draft has not been counted as a round yet.
        n_under_way = len(self._flights) + (self._begun is not None)
        return self._seating.have_room(lambda place: self._sizes.reach(place, n_under_way))

    def _seat(self, requests: Sequence[Request]) -> None:
        self.counts.seatings += self._seating.seat(self.parts, requests)
