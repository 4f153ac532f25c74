"""Rounds on the device, seen from the host: seat requests, pick a bucket, launch, read once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from aerie.config import GraphConfig
from aerie.engine.device_report import (
    Decided,
    Seat,
    decide,
    missed_features,
    nothing_after,
    read_lesson,
    why_not_captured,
)
from aerie.engine.device_round import Bucket, RoundParts, close, draft, plain_round, verify
from aerie.engine.device_state import seat
from aerie.engine.graphs import Graphs, smallest
from aerie.engine.memory import Memory
from aerie.engine.request import Request
from aerie.speculation.device_policy import Widths
from aerie.speculation.device_store import Template
from aerie.speculation.policy import Situation, TreeShape
from aerie.speculation.proposer import Features, Followed, Proposer


@dataclass(frozen=True, eq=False)
class RoundOptions:
    """How rounds are cut to size."""

    graphs: GraphConfig
    row_multiple: int  # verified rows are padded to it
    scratch: int  # positions a round may use beyond seq_len + 1
    shape: TreeShape  # the largest tree

    def padded(self, n_rows: int) -> int:
        """Rows as the numerics want them."""
        return -(-n_rows // self.row_multiple) * self.row_multiple

    def row_sizes(self, slots: int) -> list[int]:
        """Every bucket of rows that so many trees may need."""
        most = smallest(self.graphs.rows, slots * self.shape.verify)
        sizes = {self.padded(rows) for rows in self.graphs.rows if slots <= rows <= most}
        return sorted(sizes | {self.padded(smallest(self.graphs.rows, slots))})


@dataclass
class RoundCounts:
    """How rounds were run, and why some were not captured."""

    rounds: int = 0
    seatings: int = 0  # rounds before which somebody joined or left
    eager: dict[str, int] = field(default_factory=dict)  # rounds in the eager loop, by reason


@dataclass(frozen=True)
class Plan:
    """What a round drafts after its verification; no widths: nothing."""

    widths: Widths | None


class DeviceRounds:
    """Runs decoding requests in captured rounds. Prompts are read elsewhere."""

    def __init__(
        self, parts: RoundParts, options: RoundOptions, memory: Memory, proposer: Proposer
    ) -> None:
        self.parts = parts
        self.counts = RoundCounts()
        device = str(parts.table.device)
        self.graphs = Graphs(device)
        self.is_under_way = False  # a round was started whose report has not been read
        self._options = options
        self._memory = memory
        self._proposer = proposer
        self._seats: list[Seat] = []
        self._plan: Plan | None = None  # of the coming round, once it was asked for
        self._report: list[list[int]] | None = None  # read, and not learnt from yet
        self._templates: dict[Widths, Template] = {}
        self._done = torch.cuda.Event() if device.startswith("cuda") else None

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
        assert not self.is_under_way, "the report of a round must be read before its seats go"
        for place in self._seats:
            # What was committed while nothing was drafted still waits; the rest was taken in.
            place.request.features = [] if place.stale_from is None else [self._missed(place)]
        self._seats = []

    @torch.inference_mode()
    def record(self, n_requests: int, n_positions: int, is_sampled: bool = False) -> None:
        """Record all graphs that rounds of so many requests and positions may ask for.

        While nobody decodes: in an empty slot a round is harmless.
        """
        assert all(p.request.ended for p in self._seats), "record while nobody decodes"
        if self.is_under_way:
            self._collect()
        self._seat([])
        options, parts = self._options, self.parts
        slots = smallest(options.graphs.slots, n_requests)
        columns = smallest(options.graphs.columns, n_positions + 1 + options.scratch)
        first, kind = (plain_round, "plain") if parts.draft is None else (verify, "verify")
        for rows in options.row_sizes(slots):
            bucket = Bucket(slots, rows, columns, is_sampled)
            self.graphs.prepare((kind, bucket), partial(first, parts, bucket))
        rest = Bucket(slots, 0, columns, False)
        for widths in parts.policy.shapes if parts.draft is not None else ():
            self.graphs.prepare(*self._rest(rest, widths))

    @torch.inference_mode()
    def step(self, requests: Sequence[Request], is_quiet: bool) -> list[Decided]:
        """What one round decided for those of `requests` that were in it.

        When nobody comes or goes (`is_quiet`, and no end in the report) the next round is started
        before the report is handed out: the device works while the host writes and plans. Who
        joins meanwhile waits for the round after; who leaves is not in the answer.
        """
        if not self.is_under_way:
            self._seat(requests)
            if requests:
                self._catch_up()
                self._launch()
        if not self.is_under_way:
            return []
        decided = self._collect()
        wanted = {id(request) for request in requests}
        goes_on = not any(entry.is_finished or entry.failure for _, entry in decided)
        is_same = wanted == {id(place.request) for place in self._seats}
        if is_quiet and goes_on and is_same and self._has_room():
            # To catch up takes the tokens just decided, which are not in their requests yet.
            if not self._is_stale() or self._planned().widths is None:
                self._launch()
        elif not is_same:
            self._seat([r for r in requests if any(r is own.request for own in self._seats)])
        return [(request, entry) for request, entry in decided if id(request) in wanted]

    def _planned(self) -> Plan:
        """What the coming round drafts, asked of the policy once."""
        if self._plan is None:
            self._learn()
            lengths = [place.seq_len for place in self._seats]
            situation = Situation(len(lengths), sum(lengths) / max(len(lengths), 1))
            self._plan = Plan(self.parts.policy.open(situation))
        return self._plan

    def _learn(self) -> None:
        """Tell the policy what became of the last round: its lessons stay until the next draft."""
        report, self._report = self._report, None
        if report is not None and self.parts.state.lessons is not None:
            self.parts.policy.learn(read_lesson(self.parts.state.lessons, report))

    def _launch(self) -> None:
        """Start a round for everybody seated; returns before the device has finished.

        What is verified was chosen by the last round, so that is launched at once: the policy
        learns and plans while the device works on it.
        """
        bucket, parts = self._bucket(), self.parts
        if parts.draft is None:
            self.graphs.run(("plain", bucket), lambda: plain_round(parts, bucket))
        else:
            self.graphs.run(("verify", bucket), lambda: verify(parts, bucket))
            # The rest depends neither on how many rows were verified nor on who sampled.
            self._launch_rest(replace(bucket, rows=0, is_sampled=False))
        if self._done is not None:
            self._done.record()
        self.is_under_way = True
        self.counts.rounds += 1

    def _launch_rest(self, bucket: Bucket) -> None:
        """Draft, or do without."""
        widths = self._planned().widths
        if widths is not None:
            self.parts.policy.prepare(bucket.slots)
        self.graphs.run(*self._rest(bucket, widths))

    def _rest(self, bucket: Bucket, widths: Widths | None) -> tuple[Hashable, Callable[[], None]]:
        """The graph that ends a round: its key, and what it does."""
        parts = self.parts
        if widths is None:
            return ("close", bucket), partial(close, parts, bucket)
        return ("draft", bucket, widths), partial(draft, parts, bucket, self._template(widths))

    def _template(self, widths: Widths) -> Template:
        if widths not in self._templates:
            state, shape = self.parts.state, self._options.shape
            device = str(self.parts.table.device)
            self._templates[widths] = Template.of(shape, widths, state.n_slots, device)
        return self._templates[widths]

    def _collect(self) -> list[Decided]:
        """Wait for the round and read its report: the one read of a round."""
        if self._done is not None:
            self._done.synchronize()
        is_shown = self.parts.draft is None or self._planned().widths is not None
        self.is_under_way, self._plan = False, None
        table = self.parts.state.report.read[: len(self._seats)].tolist()
        decided = [
            (place.request, decide(place, row, is_shown))
            for place, row in zip(self._seats, table, strict=True)
        ]
        self._report = table
        return decided

    def _is_stale(self) -> bool:
        return any(place.stale_from is not None for place in self._seats)

    def _catch_up(self) -> None:
        """Before a round that drafts: show the draft what it missed."""
        if not self._is_stale() or self._planned().widths is None:
            return
        stale = [place for place in self._seats if place.stale_from is not None]
        self._proposer.extend([], [self._followed(p.request, self._missed(p)) for p in stale])
        for place in stale:
            place.stale_from = None

    def _missed(self, place: Seat) -> Features:
        history = self.parts.state.history
        assert history is not None, "rounds without drafts keep their features"
        return missed_features(history, place)

    def _followed(self, request: Request, *features: Features) -> Followed:
        return Followed(self._memory.slots(request), request.seq_len, request.tokens, features)

    def _has_room(self) -> bool:
        """Whether everybody's pages cover one more round, so that the host need not add any."""
        needed = 1 + self._options.scratch
        return all(
            self._memory.covers(place.request, place.seq_len + needed) for place in self._seats
        )

    def _bucket(self) -> Bucket:
        config, seats = self._options.graphs, self._seats
        slots = smallest(config.slots, len(seats))
        # An empty slot still verifies its root.
        n_rows = sum(place.n_rows for place in seats) + slots - len(seats)
        longest = max(place.seq_len for place in seats) + 1 + self._options.scratch
        return Bucket(
            slots=slots,
            rows=self._options.padded(smallest(config.rows, n_rows)),
            columns=smallest(config.columns, longest),
            is_sampled=any(place.request.params.temperature > 0 for place in seats),
        )

    def _seat(self, requests: Sequence[Request]) -> None:
        """Those who stay keep their trees, in order and without gaps (K13); the others join."""
        wanted = {id(request) for request in requests}
        old = {id(place.request) for place in self._seats}
        if wanted == old:
            return
        stays = [id(place.request) in wanted for place in self._seats]
        kept = [place for place in self._seats if id(place.request) in wanted]
        joining = [request for request in requests if id(request) not in old]
        self._take_in(joining)
        self._seats = [*kept, *(Seat(request, request.seq_len) for request in joining)]
        seated = [place.request for place in self._seats]
        seat(self.parts.state, self._compacted(stays), len(kept), seated)
        self.counts.seatings += 1

    def _compacted(self, stays: list[bool]) -> torch.Tensor:
        """Old slots of those who stay, to the front. [slots] i64"""
        device = self.parts.table.device
        gone = torch.tensor([not is_kept for is_kept in stays], dtype=torch.bool, device=device)
        zeros = torch.zeros(len(stays), dtype=torch.int64, device=device)
        active = self.parts.kernels["build_active_slots"](
            finished=gone, seq_len=zeros, length_limit=zeros + 1, eos_terminated=gone
        )
        found: torch.Tensor = active.active_slots.long()
        return found

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
