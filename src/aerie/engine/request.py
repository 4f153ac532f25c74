"""A request and everything the engine knows about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from aerie.engine.events import FinishEvent
from aerie.engine.params import SamplingParams
from aerie.speculation.proposer import Features


class State(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    READING = "reading"  # its prompt is being prefilled
    DECODING = "decoding"
    FINISHED = "finished"


@dataclass
class Statistics:
    """Counts in the words of the evidence page; everything is after clipping."""

    num_drafts: int = 0  # rounds with at least one draft node
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    target_passes: int = 0  # verify rounds
    prefill_tokens: int = 0
    preemptions: int = 0
    reused_tokens: int = 0  # found in the prefix cache instead of computed
    accepted_by_depth: dict[int, int] = field(default_factory=dict)

    def count(self, n_nodes: int, n_accepted: int) -> None:
        """One more verify round: draft nodes it checked, and accepted ones that were emitted."""
        self.target_passes += 1
        self.num_draft_tokens += n_nodes
        if n_nodes:
            self.num_drafts += 1
            self.num_accepted_tokens += n_accepted
            for depth in range(1, n_accepted + 1):
                self.accepted_by_depth[depth] = self.accepted_by_depth.get(depth, 0) + 1

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts, the bonus token included."""
        return 1.0 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0


@dataclass(frozen=True)
class Job:
    """What was asked for; never changes."""

    request_id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    sample_index: int  # which of n samples of one prompt
    length_limit: int  # most tokens, prompt included
    stop_ids: tuple[int, ...]


@dataclass
class Holding:
    """KV memory a request holds: pages in order of position, and its row of the slot table."""

    pages: list[int] = field(default_factory=list)
    row: int = -1
    draft_gap: int | None = None  # from here on the draft has not seen everything, and never will


@dataclass(eq=False)
class Request:
    """One sequence. The engine alone writes it."""

    job: Job
    tokens: list[int]  # prompt and output; the last one has no KV yet while decoding
    state: State = State.WAITING
    seq_len: int = 0  # tokens with KV in the target
    held: Holding = field(default_factory=Holding)
    features: list[Features] = field(default_factory=list)  # that wait for the draft
    logprobs: list[float] = field(default_factory=list)
    counts: Tensor | None = None  # [2, vocab] i32, prompt and output, only with penalties
    n_told: int = 0  # tokens of the output that an event has told
    ended: FinishEvent | None = None
    is_suspect: bool = False  # its last tree could not be verified: the next has the root alone
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def params(self) -> SamplingParams:
        """How its tokens are chosen."""
        return self.job.params

    @property
    def takes_drafts(self) -> bool:
        """Whether more than its root is verified."""
        return self.params.speculative and not self.is_suspect

    @property
    def output(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[len(self.job.prompt) :]

    @property
    def n_unread(self) -> int:
        """Tokens still to be prefilled: all but the last, which is the root of the first tree."""
        return len(self.tokens) - 1 - self.seq_len

    @property
    def n_draft_seen(self) -> int:
        """Leading positions whose KV the draft has too: what another request may reuse."""
        seen = self.features[0].start if self.features else 0
        gap = self.held.draft_gap
        return seen if gap is None else min(seen, gap)

    def follow(
        self,
        features: list[Features],
        is_extended: bool,
        remember: Callable[[list[Features]], list[Features]],
    ) -> None:
        """Let features wait for the draft; those that waited stay unless it took them in."""
        waiting = [] if is_extended else self.features
        everything = [*waiting, *features]
        self.features = remember(everything) or features
        if waiting and self.features != everything and self.held.draft_gap is None:
            self.held.draft_gap = everything[0].start

    @property
    def end_reason(self) -> str | None:
        """Why the text so far is complete, or None."""
        has_output = len(self.tokens) > len(self.job.prompt)
        if has_output and self.tokens[-1] in self.job.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.job.length_limit else None

    def forget_kv(self) -> None:
        """Its memory is gone: everything is to be read again."""
        self.seq_len = 0
        self.features.clear()
        self.held.draft_gap = None
