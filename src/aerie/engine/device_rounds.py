"""Rounds on the device, seen from the host: seat requests, pick a bucket, launch, read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from aerie.config import GraphConfig
from aerie.engine.decision import Decision, describe_failure
from aerie.engine.device_round import Bucket, RoundParts, draft, plain_round, verify
from aerie.engine.device_state import MAX_STOPS, seat
from aerie.engine.graphs import Graphs, smallest
from aerie.engine.memory import Memory
from aerie.engine.params import SamplingParams
from aerie.engine.request import Request
from aerie.speculation.device_store import Template
from aerie.speculation.proposer import Features, Followed, Proposer
from aerie.speculation.round_ops import REPORT

# What a captured round does not compute, and how a request asks for it.
_UNCOVERED: tuple[tuple[str, Callable[[SamplingParams], bool]], ...] = (
    ("top_k", lambda p: p.top_k != 0),
    ("top_p", lambda p: p.top_p != 1.0),
    ("min_p", lambda p: p.min_p != 0.0),
    ("penalties", lambda p: p.has_penalties),
    ("logit_bias", lambda p: bool(p.logit_bias)),
    ("logprobs", lambda p: p.logprobs),
)


def why_not_captured(request: Request) -> str | None:
    """The option that sends a request's batch to the eager loop, or None."""
    for name, is_asked in _UNCOVERED:
        if is_asked(request.params):
            return name
    return "stop_token_ids" if len(request.job.stop_ids) > MAX_STOPS else None


@dataclass(frozen=True, eq=False)
class RoundOptions:
    """How rounds are cut to size."""

    graphs: GraphConfig
    row_multiple: int  # verified rows are padded to it
    scratch: int  # positions a round may use beyond seq_len + 1
    template: Template | None  # the tree that is drafted; None: plain decoding


Decided = tuple[Request, Decision]


@dataclass
class RoundCounts:
    """How rounds were run, and why some were not captured."""

    rounds: int = 0
    seatings: int = 0  # rounds before which somebody joined or left
    eager: dict[str, int] = field(default_factory=dict)  # rounds in the eager loop, by reason


@dataclass
class Seat:
    """A request in a slot, as the last report left it."""

    request: Request
    seq_len: int
    n_rows: int = 1  # of the tree that waits for its verification


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
            # The draft has seen all committed rows; nothing waits for its next extend.
            place.request.features = []
        self._seats = []

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
                self._launch()
        if not self.is_under_way:
            return []
        decided = self._collect()
        wanted = {id(request) for request in requests}
        goes_on = not any(entry.is_finished or entry.failure for _, entry in decided)
        is_same = wanted == {id(place.request) for place in self._seats}
        if is_quiet and goes_on and is_same and self._has_room():
            self._launch()
        elif not is_same:
            self._seat([r for r in requests if any(r is own.request for own in self._seats)])
        return [(request, entry) for request, entry in decided if id(request) in wanted]

    def _launch(self) -> None:
        """Start a round for everybody seated; returns before the device has finished."""
        bucket, parts, template = self._bucket(), self.parts, self._options.template
        if template is None:
            self.graphs.run(("plain", bucket), lambda: plain_round(parts, bucket))
        else:
            self.graphs.run(("verify", bucket), lambda: verify(parts, bucket))
            # A draft depends neither on how many rows were verified nor on who sampled.
            own = replace(bucket, rows=0, is_sampled=False)
            self.graphs.run(("draft", own), lambda: draft(parts, own, template))
        if self._done is not None:
            self._done.record()
        self.is_under_way = True
        self.counts.rounds += 1

    def _collect(self) -> list[Decided]:
        """Wait for the round and read its report: the one read of a round."""
        if self._done is not None:
            self._done.synchronize()
        self.is_under_way = False
        table = self.parts.state.report.read[: len(self._seats)].tolist()
        return [
            (place.request, _decision(place, row))
            for place, row in zip(self._seats, table, strict=True)
        ]

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
        multiple = self._options.row_multiple
        longest = max(place.seq_len for place in seats) + 1 + self._options.scratch
        return Bucket(
            slots=slots,
            rows=-(-smallest(config.rows, n_rows) // multiple) * multiple,
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
            Followed(self._memory.slots(r), r.seq_len, r.tokens, tuple(r.features))
            for r in joining
            if any(feature.next_tokens.shape[0] for feature in r.features)
        ]
        if followed:
            self._proposer.extend([], followed)
        for request in joining:
            request.features = [_nothing_after(request.seq_len)]


def _nothing_after(position: int) -> Features:
    """No features wait: the draft has seen everything before this position."""
    return Features(position, torch.zeros((0, 0, 0)), torch.zeros(0, dtype=torch.int64))


def _decision(place: Seat, row: list[int]) -> Decision:
    """One line of the report; the seat moves on with it."""
    values = dict(zip(REPORT, row, strict=False))
    n_emitted = values["n_emitted"]
    # The draft has taken in the kept rows, unless the request ended here.
    seen = place.seq_len if values["is_finished"] else values["seq_len"]
    place.seq_len, place.n_rows = values["seq_len"], values["n_chosen"]
    return Decision(
        tokens=tuple(row[len(REPORT) : len(REPORT) + n_emitted]),
        n_nodes=values["n_rows"] - 1,
        n_accepted=values["n_accepted"],
        seq_len=values["seq_len"],
        is_finished=bool(values["is_finished"]),
        failure=describe_failure([values["status"]]),
        features=[_nothing_after(seen)],
    )
