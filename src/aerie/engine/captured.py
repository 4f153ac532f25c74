"""The launcher for a GPU: rounds are graphs, replayed ahead of the reports of those before.

A round is a verification and what follows it: prompts, seats, the draft, the report. Whatever is
known without the last report is launched before that is read, and the device does not wait. A
request that joins is seated between a verification and its draft: it delays no other one either.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from aerie.engine.buckets import Bucket, Recorded, Sizes
from aerie.engine.graphs import Graphs, Recording, smallest
from aerie.engine.launch import Begun, Flying, Page, RoundCounts
from aerie.engine.near_kv import MOST_SEATS
from aerie.engine.parts import Parts
from aerie.engine.read import Reader
from aerie.engine.report import (
    Decided,
    Landed,
    RoundTree,
    Trees,
    decide,
    has_ended,
    read_lesson,
)
from aerie.engine.round import close, draft, publish, verify
from aerie.engine.rules import match
from aerie.engine.sampler import CONSTRAINED, EVERYTHING, GREEDY, Options
from aerie.engine.scheduler import Plan
from aerie.engine.seat import Seat
from aerie.engine.seats import Seating, arranging, catch_up, situation
from aerie.kernels.report import N_CHOSEN, N_ROWS, STATUS
from aerie.kv.memory import Memory
from aerie.speculation.policy import Growth, Lesson, Policy, Settled
from aerie.speculation.store import make_levels
from aerie.text.grammar import is_available


class Captured:
    """Replays rounds from graphs and runs ahead of their reports."""

    def __init__(self, parts: Parts, sizes: Sizes, memory: Memory) -> None:
        self.parts = parts
        self.sizes = sizes
        self.counts = RoundCounts()
        self.trees: Mapping[int, RoundTree] = {}
        device = str(parts.table.device)
        self.graphs = Graphs(device)
        self.seating = Seating(memory, self.graphs, parts)
        self._reader = Reader(parts, sizes, self.graphs)
        self._recorded = Recorded(self.graphs, sizes.graphs.record_every)
        self._under_way: deque[Flying | Begun] = deque()  # only the last may be begun
        self._drafted: Growth | None = None  # what grew the trees that the next round verifies
        self._lesson: tuple[Lesson, Growth | None] | None = None  # not learnt yet
        is_cuda = device.startswith("cuda")
        self._pages = deque(
            Page(index, report, torch.cuda.Event() if is_cuda else None)
            for index, report in enumerate(parts.state.pages)
        )

    def reset(self) -> None:
        """Empty all seats and drop what is under way: what still runs is waited for, not read."""
        if self.parts.table.is_cuda:
            torch.cuda.synchronize()
        self._under_way.clear()
        self._lesson = None
        self.seating.seats = []

    def use(self, policy: Policy) -> None:
        """Draft by another policy; graphs of another way to choose are recorded anew."""
        assert not self._under_way, "a policy changes while nothing is under way"
        self.parts = replace(self.parts, policy=policy)
        self.graphs.forget("draft")

    @torch.inference_mode()
    def step(self, plan: Plan) -> list[Decided]:
        """What one round decided for those of the plan that were in it."""
        self.trees = {}
        self.seating.retire(plan.drafting)
        is_steady = plan.is_quiet and self.seating.holds(plan.drafting)
        if not self._flying():
            self._go_on(plan, is_steady)
        while self._flying():
            if is_steady and self._is_known_ahead():
                self._launch_ahead()
            landed = self._under_way.popleft()
            assert isinstance(landed, Flying), "what flies is at the front"
            lines = self._collect(landed)
            if landed.has_verdict:
                self._show([own.seat for own in lines if own.seat.has_ended])
                self._prepare_next(plan, is_steady)
                self._reader.read(plan)  # unless a round has done it
                return self._decided(landed, lines)
            if landed.is_half:
                # The verdict was told before; a plan that knows the requests which came since goes
                # on, and the device need not wait for it.
                self._begin_early()
                return []
            if not self._under_way:
                self._go_on(plan, is_steady)
        self._reader.read(plan)
        return []

    def _flying(self) -> bool:
        return bool(self._under_way) and isinstance(self._under_way[0], Flying)

    def _go_on(self, plan: Plan, is_steady: bool) -> None:
        """Launch what is missing of a round: all of it, or what follows a verification."""
        begun = self._under_way.pop() if self._under_way else self._begin_now()
        assert not isinstance(begun, Flying), "only what is begun is gone on with"
        self._finish(begun, plan, is_steady)

    def _begin_now(self) -> Begun | None:
        """Launch the verification of the trees that wait, if any does."""
        if all(seat.has_left for seat in self.seating.seats):
            return None
        self.seating.leave_gaps(self.parts.state)
        return self._begin(self.sizes.bucket(self.seating.seats, 0))

    def _prepare_next(self, plan: Plan, is_steady: bool) -> None:
        """Give the device the next round before the host writes what this one decided."""
        if not self._has_room():
            return
        if self._flying():
            self._begin_behind()
            return
        # Where requests leave and none comes, wait for the next plan: its batch is smaller.
        if is_steady and any(seat.has_left for seat in self.seating.seats):
            return
        if not self.seating.is_constrained:
            self._go_on(plan, is_steady)
        elif not self._under_way:
            # The host looks into its draft, level by level: that can wait until tokens are told.
            self._begin_waiting()

    def _begin_early(self) -> None:
        """Launch the verification of trees that were just reported, before the next plan."""
        if not self._under_way and not self.seating.is_constrained and self._has_room():
            self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Launch the verification of the trees that wait; what follows it waits for a plan."""
        begun = self._begin_now()
        self._under_way += [] if begun is None else [begun]

    def _begin_behind(self) -> None:
        """Launch the next verification behind a draft whose verdict was told before prompts."""
        last, seats = self._under_way[-1], self.seating.seats
        if not isinstance(last, Flying) or last.has_verdict or all(own.has_left for own in seats):
            return
        if self._is_agreed(last) and not self.seating.is_constrained:
            self.seating.leave_gaps(self.parts.state)
            self._under_way.append(self._begin(self.sizes.bucket(seats, 1, last.agreed)))

    def _begin(self, bucket: Bucket) -> Begun:
        """Launch a verification."""
        self._recorded.next_round()
        bucket = self._recorded.bucket("verify", bucket)
        self.graphs.run(("verify", bucket), partial(verify, self.parts, bucket))
        return Begun(bucket, self._drafted)

    def _finish(self, begun: Begun | None, plan: Plan, is_steady: bool) -> None:
        """Launch what follows a verification: prompts, seats, the draft and the report."""
        is_told = begun is not None and self._reader.is_due(plan)
        if begun is not None and is_told:  # no tokens wait for another prompt
            verified = tuple(self.seating.seats), True, begun.verified
            self._under_way.append(Flying(self._publish(), *verified, None, None, is_half=True))
        self._reader.read(plan)
        ended = {id(seat.request) for seat in self.seating.seats if seat.has_ended}
        staying = [request for request in plan.decoding if id(request) not in ended]
        n_seats = self.sizes.seats(len(staying))
        self.counts.seatings += self.seating.seat(self.parts.state, staying, n_seats)
        seats = self.seating.seats
        if not seats:
            return
        n_under_way = len(self._under_way) + (begun is not None and not is_told)
        rest = self._rest_bucket(seats, n_under_way, begun)
        growth = self.parts.policy.open(situation(seats))
        if growth is not None:
            catch_up(self.parts, seats, [seat.seq_len for seat in seats])
            if growth.preview is not None:
                asked = Options.of([seat.request for seat in seats])
                rest = replace(rest, options=asked.recorded)
            growth = self._settled(rest, growth)
        agreed = self.parts.policy.prepare(growth, rest.seats, is_steady or is_told)
        if self.seating.is_constrained:
            self._learn()  # while the target thinks: the host is held up by every level of a draft
        self._fly(rest, begun, growth, agreed, is_told)
        # By now the device is busy. The next plan, not this one, is made by what is learnt here.
        self._learn()

    def _fly(
        self,
        rest: Bucket,
        begun: Begun | None,
        growth: Growth | None,
        agreed: int | None,
        is_told: bool = False,
    ) -> None:
        """Launch the draft, or the end of a round without one, and the report."""
        self.graphs.run(*self._rest(rest, growth))
        page = self._publish()
        self.counts.rounds += begun is not None
        has_verdict = begun is not None and not is_told
        verified = begun.verified if begun is not None and has_verdict else None
        seats, self._drafted = tuple(self.seating.seats), growth
        flying = Flying(page, seats, has_verdict, verified, growth, agreed, is_told)
        self._under_way.append(flying)

    def _publish(self) -> Page:
        """Launch the sending of a report."""
        # In turns, so that the page that was read last stays as it is until the next step: two
        # halves of a round may be launched before that is looked at.
        self._pages.rotate(-1)
        page = self._pages[0]
        self.graphs.run(("publish", page.index), partial(publish, self.parts, page.index))
        if page.done is not None:
            page.done.record()
        return page

    def _launch_ahead(self) -> None:
        """Start the next round before the report of the last is read, as far as it is known."""
        self.counts.ahead += 1
        last = self._under_way[-1]
        assert isinstance(last, Flying)
        seats = self.seating.seats
        bucket = self.sizes.bucket(seats, len(self._under_way), last.agreed)
        begun = self._begin(bucket)
        if self.parts.policy.learns or self.seating.is_constrained:
            self._under_way.append(begun)
            return
        growth = self.parts.policy.open(situation(seats))
        self._fly(begun.bucket.without_rows(), begun, growth, None)

    def _is_known_ahead(self) -> bool:
        """Whether the round after the one under way can be launched before that one's report.

        A policy that learns plans by the report: only the verification can then, of agreed rows;
        and no more where the host looks into drafts, for it would read the report behind them.
        """
        last = self._under_way[-1]
        if not isinstance(last, Flying) or len(self._under_way) >= len(self._pages) - 1:
            return False
        return self._is_agreed(last) and self._may_go_on()

    def _is_agreed(self, last: Flying) -> bool:
        """Whether the rows of the next verification are known before the draft's report."""
        is_run = last.drafted is not None and last.drafted.preview is not None
        return not is_run and (last.agreed is not None or not self.parts.policy.learns)

    def _may_go_on(self) -> bool:
        """Whether there is room, and a request that cannot end in the round under way.

        One that does end has a root verified in vain: nearly nothing. To wait for every end, one
        in every second round of eight requests, took 3 % of their time.
        """
        path = self.sizes.longest_path
        may_go = any(
            seat.seq_len + path < seat.request.job.length_limit for seat in self.seating.seats
        )
        return may_go and self._has_room()

    def _has_room(self) -> bool:
        """Whether the pages of all seats cover one more round: the host need not add any."""
        n_under_way = len(self._under_way)
        return self.seating.have_room(lambda seat: self.sizes.reach(seat, n_under_way))

    def _learn(self) -> None:
        """Take in what the last report taught."""
        if self._lesson is not None:
            self.parts.policy.learn(*self._lesson)
            self._lesson = None

    def _settled(self, rest: Bucket, growth: Growth) -> Growth:
        """What is drafted: as planned, or the nearest that was recorded before."""
        widths, policy = growth.widths, self.parts.policy
        assert widths is not None, "a captured draft is settled before it begins"
        if growth.preview is not None:
            return growth  # there are few of them
        known = self._recorded.instead(rest, widths, policy.shapes)
        return policy.settle(growth, known) if known else growth

    def _rest_bucket(self, seats: Sequence[Seat], n_under_way: int, begun: Begun | None) -> Bucket:
        columns = self.sizes.columns(max(self.sizes.reach(s, n_under_way) for s in seats))
        n_seats = self.sizes.seats(len(seats))
        last = None if begun is None else begun.bucket
        if last is not None and last.seats >= n_seats and last.columns >= columns:
            n_seats, columns = last.seats, last.columns
        options = CONSTRAINED if self.seating.is_constrained else GREEDY
        return Bucket(n_seats, columns=columns, options=options)

    def _rest(self, rest: Bucket, growth: Growth | None) -> Recording:
        """The graph that drafts, or does without."""
        if growth is None:
            rest = rest.without_rows()
            return ("close", rest), partial(close, self.parts, rest)
        assert growth.widths is not None
        settled = Settled(growth.widths, growth.preview)
        call = partial(draft, self.parts, rest, settled)
        return ("draft", rest, growth.widths, growth.preview), call

    def _collect(self, flying: Flying) -> list[Landed]:
        """Wait for the oldest round and read its report: the one read of a round."""
        page = flying.page.report
        if flying.page.done is not None:
            flying.page.done.synchronize()
        lines: list[list[int]] = page.lines[: len(flying.seats)].tolist()
        is_early = flying.is_half and flying.has_verdict  # its draft was launched behind it
        drafted = self._drafted if is_early else flying.drafted
        if self.parts.policy.learns:
            self._learn()  # of the half before
            n_levels = 0 if is_early or drafted is None else len(drafted.widths or ()) + 1
            self._lesson = read_lesson(page, lines, n_levels), flying.verified
        landed = [Landed(i, *own) for i, own in enumerate(zip(flying.seats, lines, strict=True))]
        for own in landed:  # a request that has left keeps its tree until others are seated
            own.seat.n_rows = own.line[N_CHOSEN]
        landed = [own for own in landed if not own.seat.has_left]
        for seat, line in ((own.seat, own.line) for own in landed):
            seat.follow(line)
            seat.has_ended = has_ended(line)
            seat.is_behind |= drafted is None and self.parts.draft is not None
            if not seat.is_behind:
                seat.n_seen = seat.seq_len
        return landed

    def _show(self, ended: Sequence[Seat]) -> None:
        """Let the draft take in what it missed of ended texts: all of them can then be reused."""
        catch_up(self.parts, ended, [seat.seq_len for seat in ended])
        for seat in ended:
            seat.n_seen = seat.seq_len

    def _decided(self, flying: Flying, landed: Sequence[Landed]) -> list[Decided]:
        page = flying.page.report
        # Others joined after the verification.
        judged = [own for own in landed if own.line[N_ROWS] or own.line[STATUS]]
        self.trees = Trees(page, judged)
        return [decide(page, own) for own in judged]

    def unrecorded(self) -> list[Recording]:
        """All that the limits can ask for and that was not met, small batches first.

        Batches with grammars do with fewer sizes and shapes: theirs would be as many again.
        """
        found, graphs = dict[Any, Callable[[], object]](), self.sizes.graphs
        takes_grammars = self.parts.rule is match and is_available()
        for n_seats, columns in itertools.product(graphs.slots, graphs.columns):
            if n_seats in (graphs.slots[0], graphs.slots[-1]):
                found.update(self._reader.recordings(n_seats, columns))
            for options in (GREEDY, EVERYTHING, CONSTRAINED)[: 3 if takes_grammars else 2]:
                found.update(self._rounds(n_seats, columns, options))
        return [(key, call) for key, call in found.items() if not self.graphs.has(key)]

    @torch.inference_mode()
    def record(self, n_requests: int, n_positions: int, options: Options) -> None:
        """Record what rounds of so many requests and positions may ask for."""
        sizes = self.sizes
        columns = sizes.columns(n_positions + 1 + sizes.scratch)
        for recording in self._rounds(sizes.seats(n_requests), columns, options):
            self.graphs.prepare(*recording)

    def _rounds(self, n_seats: int, columns: int, options: Options) -> Iterator[Recording]:
        parts, rest, shapes = self.parts, Bucket(n_seats, columns=columns), self.parts.policy.shapes
        if options.grammar:
            parts.state.hold_masks()
            rest = replace(rest, options=options)
            chains = tuple(widths for widths in shapes if widths and max(widths) == 1)
            shapes = chains[len(chains) // 2 :: 2] or shapes
        for is_moved, is_counted in itertools.product((False, True), repeat=2):
            yield arranging(parts.state, n_seats, is_moved, is_counted)
        most = parts.policy.most_rows(n_seats) + n_seats * self.sizes.longest_run
        for bucket in self.sizes.verified(n_seats, columns, most, options):
            yield ("verify", bucket), partial(verify, parts, bucket)
        for widths in shapes:
            make_levels(n_seats, (1, parts.longest_path), widths or (), parts.table.device)
            yield self._rest(rest, None if widths is None else Settled(widths))
        is_near = n_seats <= smallest(self.sizes.graphs.slots, MOST_SEATS) and not options.grammar
        for own in parts.policy.previews if is_near else ():
            make_levels(n_seats, (1, parts.longest_path), own.widths, parts.table.device)
            yield self._rest(replace(rest, options=options), Settled(own.widths, own))
        for page in range(len(self._pages)):
            yield ("publish", page), partial(publish, parts, page)
