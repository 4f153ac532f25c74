"""A request and everything the engine knows about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from aerie.by_context import ByContext
from aerie.near_ties import NearTies
from aerie.requests.events import FinishEvent
from aerie.requests.params import SamplingParams
from aerie.text.matcher import Compiled


class State(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    READING = "reading"  # its prompt is being prefilled
    DECODING = "decoding"
    FINISHED = "finished"


@dataclass(frozen=True)
class Scored:
    """What the target thought of a token: its log-probability, and the best alternatives'."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # token id and log-probability, best first


@dataclass
class PreviewCounts:
    """Tokens that passes over a part of the KV left for full ones, and what became of them."""

    tokens: int = 0
    judged: int = 0  # up to the first of a run that did not hold
    held: int = 0

    def count(self, n_run: int, n_accepted: int) -> None:
        """One more run before a round's tree."""
        held = min(n_run, n_accepted)
        self.tokens += n_run
        self.held += held
        self.judged += held + (held < n_run)

    @property
    def agreement(self) -> float | None:
        """Share of judged tokens that the full KV held; None: no preview was taken."""
        return self.held / self.judged if self.judged else None


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
    by_context: ByContext = field(default_factory=ByContext)
    near_ties: NearTies = field(default_factory=NearTies)
    previews: PreviewCounts = field(default_factory=PreviewCounts)

    def count(self, n_nodes: int, n_accepted: int, context: int) -> None:
        """One more verify round: draft nodes it checked, and accepted ones that were emitted."""
        self.target_passes += 1
        self.num_draft_tokens += n_nodes
        if n_nodes:
            self.num_drafts += 1
            self.num_accepted_tokens += n_accepted
            self.by_context.count(context, n_accepted)
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
    grammar: Compiled | None = None  # of the parameters, compiled


@dataclass
class Holding:
    """KV memory a request holds: pages in order of position, and its row of the slot table."""

    pages: list[int] = field(default_factory=list)
    row: int = -1
    n_indexed: int = 0  # leading pages that the prefix index knows
    last_node: int = 0  # of the index, where the next page goes on


@dataclass(eq=False)
class Request:
    """One sequence. The engine alone writes it."""

    job: Job
    tokens: list[int]  # prompt and output; the last one has no KV yet while decoding
    state: State = State.WAITING
    seq_len: int = 0  # tokens with KV in the target
    seen: int = 0  # leading positions whose KV the draft has too: what another request may reuse
    held: Holding = field(default_factory=Holding)
    scored: list[Scored] = field(default_factory=list)  # of the output
    prompt_scored: list[Scored] = field(default_factory=list)  # of the prompt from its second token
    n_told: int = 0  # tokens of the output that an event has told
    ended: FinishEvent | None = None
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def params(self) -> SamplingParams:
        """How its tokens are chosen."""
        return self.job.params

    @property
    def takes_drafts(self) -> bool:
        """Whether more than its root is verified."""
        return self.params.speculative

    @property
    def output(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[len(self.job.prompt) :]

    @property
    def n_output(self) -> int:
        """How many those are; to copy them for that takes the longer the longer a text is."""
        return len(self.tokens) - len(self.job.prompt)

    @property
    def n_unread(self) -> int:
        """Tokens still to be prefilled: all but the last, which is the root of the first tree."""
        return len(self.tokens) - 1 - self.seq_len

    @property
    def wants_scores(self) -> bool:
        """Whether its prompt is still to be scored: once is enough, whatever is read again."""
        is_asked = self.params.prompt_logprobs is not None
        return is_asked and len(self.prompt_scored) < len(self.job.prompt) - 1

    @property
    def end_reason(self) -> str | None:
        """Why the text so far is complete, or None."""
        if self.n_output > self.params.floor and self.tokens[-1] in self.job.stop_ids:
            return "stop"
        is_unread = self.params.is_scoring and self.n_unread > 0
        return "length" if len(self.tokens) >= self.job.length_limit and not is_unread else None

    def forget_kv(self) -> None:
        """Its memory is gone: everything is to be read again."""
        if self.wants_scores:
            self.prompt_scored.clear()
        self.seq_len = self.seen = 0
