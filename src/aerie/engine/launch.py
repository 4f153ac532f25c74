"""Launchers: how the functions of a round are called, and when. `Direct` calls one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch

from aerie.engine.buckets import Bucket, Sizes
from aerie.engine.graphs import Graphs, Recording
from aerie.engine.parts import Parts
from aerie.engine.read import read_chunk
from aerie.engine.report import (
    Decided,
    Landed,
    Report,
    RoundTree,
    Trees,
    decide,
    has_ended,
    read_lesson,
)
from aerie.engine.round import close, draft, verify
from aerie.engine.rows import draft_place
from aerie.engine.scheduler import Plan
from aerie.engine.seat import Seat
from aerie.engine.seats import Seating, catch_up, situation
from aerie.kernels.report import N_CHOSEN
from aerie.kv.memory import Memory
from aerie.speculation.policy import Growth, Policy
from aerie.speculation.store import Accepted


@dataclass
class RoundCounts:
    """How rounds were run."""

    rounds: int = 0
    ahead: int = 0  # of them launched before the report of the round before was read
    seatings: int = 0  # rounds in which requests joined or left


@dataclass(frozen=True, eq=False)
class Page:
    """The host's copy of a report, and when it is complete."""

    index: int
    report: Report
    done: torch.cuda.Event | None  # None: at once


@dataclass(frozen=True, eq=False)
class Begun:
    """A verification that was launched without what follows it."""

    bucket: Bucket
    verified: Growth | None  # whose trees it verifies


@dataclass(frozen=True, eq=False)
class Flying:
    """A round that was launched to its end, or a half of it; its report was not read yet."""

    page: Page
    seats: tuple[Seat, ...]  # whose lines its report has
    has_verdict: bool  # else it only drafted, for seats without a tree
    verified: Growth | None
    drafted: Growth | None  # None: it ended without a draft
    # Rows its draft is to choose, all seats together, where that was agreed before: the next
    # verification can be launched behind it unread. None: as many as turn out to pay.
    agreed: int | None
    # Where prompts are read, a round reports twice: the verdict before they are, and the rest.
    is_half: bool = False


class Launcher(Protocol):
    """Runs plans. What it decides is decided, whatever the engine does with it."""

    @property
    def parts(self) -> Parts:
        """What its rounds run on."""
        ...

    @property
    def trees(self) -> Mapping[int, RoundTree]:
        """The trees that the last step decided on, by request id."""
        ...

    def step(self, plan: Plan) -> list[Decided]:
        """Run a plan; what was decided for those of it that were in a round."""
        ...

    def reset(self) -> None:
        """Forget all seats and whatever is under way."""
        ...

    def use(self, policy: Policy) -> None:
        """Draft by another policy from here on, while no request decodes."""
        ...

    @property
    def graphs(self) -> Graphs:
        """What runs its functions, and can be watched."""
        ...

    def unrecorded(self) -> list[Recording]:
        """What could be recorded ahead, while no request decodes."""
        ...


class Direct:
    """Calls the functions of a round one by one, in sizes that fit exactly.

    For a CPU, where a read costs nothing: a policy may look at every layer, and the draft is made
    when its round begins, for the requests that are still there.
    """

    def __init__(self, parts: Parts, sizes: Sizes, memory: Memory) -> None:
        self.parts = parts
        self.sizes = sizes
        self.trees: Mapping[int, RoundTree] = {}
        self.graphs = Graphs("cpu")
        self.seating = Seating(memory, self.graphs, parts)

    def reset(self) -> None:
        """Empty all seats."""
        self.seating.seats = []

    def use(self, policy: Policy) -> None:
        """Draft by another policy."""
        self.parts = replace(self.parts, policy=policy)

    def unrecorded(self) -> list[Recording]:
        """Nothing is ever recorded."""
        return []

    @torch.inference_mode()
    def step(self, plan: Plan) -> list[Decided]:
        """Read a chunk of prompts, then draft, verify and report for all requests that decode."""
        self.trees = {}
        if plan.reading:
            read_chunk(self.parts, self.sizes, plan.reading)
        self.seating.seat(self.parts.state, plan.decoding, len(plan.decoding))
        if not self.seating.seats:
            return []
        growth, bucket = self._draft()
        self.graphs.run(("verify",), partial(verify, self.parts, bucket))
        return self._decided(growth)

    def _draft(self) -> tuple[Growth | None, Bucket]:
        """The trees of this round, and the sizes of their verification."""
        parts, seats = self.parts, self.seating.seats
        growth = parts.policy.open(situation(seats))
        for seat in seats:
            seat.n_rows = 1
        bucket = self.sizes.exact(seats, n_nodes=1)
        if growth is None:
            self.graphs.run(("close",), partial(close, parts, bucket))
            for seat in seats:
                seat.is_behind = True
            return None, bucket
        catch_up(parts, seats, [seat.seq_len - seat.n_kept for seat in seats])
        parts.policy.prepare(growth, len(seats), is_steady=False)
        drafted = self.graphs.run(("draft",), partial(draft, parts, bucket, growth))
        assert drafted is not None, "nothing is recorded here"
        chosen = parts.state.report.lines[: len(seats), N_CHOSEN].tolist()
        for seat, n_rows in zip(seats, chosen, strict=True):
            seat.n_rows, seat.n_seen = n_rows, seat.seq_len
        return growth, self.sizes.exact(seats, drafted.n_nodes)

    def _decided(self, growth: Growth | None) -> list[Decided]:
        parts, seats = self.parts, self.seating.seats
        page = parts.state.report
        lines = page.lines[: len(seats)].tolist()
        if parts.policy.learns:
            parts.policy.learn(read_lesson(page, lines, 0), growth)
        for seat, line in zip(seats, lines, strict=True):
            seat.follow(line)
            if parts.draft is None:
                seat.n_seen = seat.seq_len  # the target's KV is all there is
        self._show([i for i, line in enumerate(lines) if has_ended(line)])
        landed = [Landed(i, *own) for i, own in enumerate(zip(seats, lines, strict=True))]
        self.trees = Trees(page, landed)
        return [decide(page, own) for own in landed]

    def _show(self, ended: Sequence[int]) -> None:
        """Let the draft take in the last rows of ended texts: all of them can then be reused."""
        parts, kept = self.parts, self.parts.state.kept
        seats = [self.seating.seats[index] for index in ended]
        if parts.draft is None or not seats:
            return
        catch_up(parts, seats, [seat.seq_len - seat.n_kept for seat in seats])
        where = torch.tensor(ended, device=kept.count.device)
        place = draft_place(parts, self.sizes.exact(self.seating.seats)).of(where)
        counts = tuple(seat.n_kept for seat in seats)
        none = torch.zeros_like(where, dtype=torch.bool)
        rows = Accepted(kept.tokens[where], kept.taps[where], kept.count[where], none, counts)
        parts.draft.show(rows, place)
        for seat in seats:
            seat.n_seen = seat.seq_len
