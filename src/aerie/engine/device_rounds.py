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


@dataclass
class RoundCounts:
    """How rounds were run, and why some were not captured."""

    rounds: int = 0
    seatings: int = 0  # rounds before which somebody joined or left
    eager: dict[str, int] = field(default_factory=dict)  # rounds in the eager loop, by reason


class DeviceRounds:
    """Runs decoding requests in captured rounds. Prompts are read elsewhere."""

    def __init__(
        self, parts: RoundParts, options: RoundOptions, memory: Memory, proposer: Proposer
    ) -> None:
        self.parts = parts
        self.counts = RoundCounts()
        device = str(parts.table.device)
        self.graphs = Graphs(device)
        self._options = options
        self._memory = memory
        self._proposer = proposer
        self._seated: list[Request] = []
        self._n_rows: list[int] = []  # of each seated request's waiting tree
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
        for request in self._seated:
            # The draft has seen all committed rows; nothing waits for its next extend.
            request.features = []
        self._seated, self._n_rows = [], []

    @torch.inference_mode()
    def step(self, requests: Sequence[Request]) -> list[Decision]:
        """One round for these requests; what it decided, in their order."""
        self._seat(requests)
        if not requests:
            return []
        self.launch()
        return self.collect(requests)

    def launch(self) -> None:
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
        self.counts.rounds += 1

    def collect(self, requests: Sequence[Request]) -> list[Decision]:
        """Wait for the round and read its report: the one read of a round."""
        if self._done is not None:
            self._done.synchronize()
        table = self.parts.state.report.read[: len(self._seated)].tolist()
        self._n_rows = [row[REPORT.index("n_chosen")] for row in table]
        found = {
            id(request): self._decision(request, row)
            for request, row in zip(self._seated, table, strict=True)
        }
        return [found[id(request)] for request in requests]

    def _decision(self, request: Request, row: list[int]) -> Decision:
        values = dict(zip(REPORT, row, strict=False))
        n_emitted = values["n_emitted"]
        # The draft has taken in the kept rows, unless the request ended here.
        seen = request.seq_len if values["is_finished"] else values["seq_len"]
        return Decision(
            tokens=tuple(row[len(REPORT) : len(REPORT) + n_emitted]),
            n_nodes=values["n_rows"] - 1,
            n_accepted=values["n_accepted"],
            seq_len=values["seq_len"],
            is_finished=bool(values["is_finished"]),
            failure=describe_failure([values["status"]]),
            features=[_nothing_after(seen)],
        )

    def _bucket(self) -> Bucket:
        config, seated = self._options.graphs, self._seated
        slots = smallest(config.slots, len(seated))
        # An empty slot still verifies its root.
        n_rows = smallest(config.rows, sum(self._n_rows) + slots - len(seated))
        multiple = self._options.row_multiple
        longest = max(request.seq_len for request in seated) + 1 + self._options.scratch
        return Bucket(
            slots=slots,
            rows=-(-n_rows // multiple) * multiple,
            columns=smallest(config.columns, longest),
            is_sampled=any(request.params.temperature > 0 for request in seated),
        )

    def _seat(self, requests: Sequence[Request]) -> None:
        """Those who stay keep their trees, in order and without gaps (K13); the others join."""
        wanted = {id(request) for request in requests}
        if len(wanted) == len(self._seated) and all(id(r) in wanted for r in self._seated):
            return
        stays = [id(request) in wanted for request in self._seated]
        old = {id(request) for request in self._seated}
        joining = [request for request in requests if id(request) not in old]
        self._take_in(joining)
        kept = [r for r, is_kept in zip(self._seated, stays, strict=True) if is_kept]
        self._n_rows = [n for n, is_kept in zip(self._n_rows, stays, strict=True) if is_kept]
        self._n_rows += [1] * len(joining)
        self._seated = [*kept, *joining]
        seat(self.parts.state, self._compacted(stays), len(kept), self._seated)
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
