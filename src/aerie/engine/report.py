"""The report of a round: what the host reads once, and what each line of it decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.engine.packed import Packed, Shapes
from aerie.engine.seat import Seat
from aerie.kernels.report import (
    IS_FINISHED,
    N_ACCEPTED,
    N_EMITTED,
    N_ROWS,
    REPORT,
    SEQ_LEN,
    STATUS,
)
from aerie.kernels.status import MEANINGS, Status
from aerie.requests.params import MOST_LOGPROBS
from aerie.requests.request import Request, Scored
from aerie.speculation.policy import Lesson

# Parts of a noted tree, [B, M] each: path scores (float32 bits), depths, tokens, parents' rows.
SCORES, DEPTHS, TOKENS, PARENTS = range(4)
TOP_LOGPROBS = MOST_LOGPROBS


@dataclass(frozen=True)
class ReportSizes:
    """What the parts of a report are sized by."""

    n_seats: int
    run: int  # tokens a round can emit for one request
    n_verify: int  # rows of one request
    gains: tuple[int, int]  # levels of a draft, and K + 1
    counts_ties: bool = False
    has_runs: bool = False  # previews may leave some

    @property
    def shapes(self) -> Shapes:
        """Every part by name."""
        n, run = self.n_seats, self.run
        best = (n, run, TOP_LOGPROBS)
        return {
            "lines": (torch.int32, (n, len(REPORT) + run)),
            "trees": (torch.int32, (4, n, self.n_verify)),
            "path": (torch.int32, (n, run)),
            "gains": (torch.float32, self.gains),
            "logprobs": (torch.float32, (n, run)),
            "top_tokens": (torch.int32, best),
            "top_logprobs": (torch.float32, best),
            "near": (torch.bool, (n, run if self.counts_ties else 0)),
            "run": (torch.int32, (n if self.has_runs else 0,)),
        }


@dataclass(frozen=True, eq=False)
class Report:
    """One page: every part is a view of one buffer, so that one copy sends it to the host."""

    flat: Tensor  # [all] u8
    lines: Tensor  # [B, REPORT and run] i32
    trees: Tensor  # [4, B, M] i32, the trees that were verified
    path: Tensor  # [B, run] i32, accepted rows from K6
    gains: Tensor  # [levels, K+1] f32 of the draft that followed
    logprobs: Tensor  # [B, run] f32
    top_tokens: Tensor  # [B, run, top] i32
    top_logprobs: Tensor  # [B, run, top] f32
    near: Tensor  # [B, run] bool, near ties; [B, 0] where they are not counted
    run: Tensor  # [B] i32, rows behind the root that a preview left; [0] where there are none

    @classmethod
    def empty(cls, sizes: ReportSizes, device: str, is_pinned: bool = False) -> Report:
        """A page of zeros."""
        packed = Packed.empty(sizes.shapes, device, is_pinned)
        return cls(packed.flat, **packed.arrays)


@dataclass(frozen=True, eq=False)
class Decision:
    """The verdict on one request after clipping, in host values."""

    tokens: tuple[int, ...] = ()  # emitted, in order
    n_nodes: int = 0  # draft nodes that were verified
    n_accepted: int = 0  # of them, before clipping
    seq_len: int = 0  # tokens with KV after the commit
    is_finished: bool = False
    failure: str | None = None  # why the request cannot go on
    seen: int = 0  # first position the draft has not seen
    scored: tuple[Scored, ...] = ()  # log-probabilities of the tokens, where they were asked for
    near: tuple[bool, ...] = ()  # which tokens are near ties, where that is counted
    n_run: int = 0  # of the draft nodes, those that a preview left


Decided = tuple[Request, Decision]


@dataclass(frozen=True, eq=False)
class Landed:
    """A line of a page that was read, and whose it is."""

    index: int
    seat: Seat
    line: list[int]


def decide(page: Report, own: Landed) -> Decided:
    """One line of a page as a decision."""
    line, seat = own.line, own.seat
    if seat.walker is not None and seat.walker.error is not None:
        return seat.request, Decision(failure=seat.walker.error)
    tokens = tuple(line[len(REPORT) : len(REPORT) + line[N_EMITTED]])
    wanted = seat.request.params.logprobs
    decision = Decision(
        tokens=tokens,
        n_nodes=line[N_ROWS] - 1,
        n_accepted=line[N_ACCEPTED],
        seq_len=line[SEQ_LEN],
        is_finished=has_ended(line),
        failure=_failure(line[STATUS]),
        seen=seat.seen,
        scored=() if wanted is None else _scored(page, own.index, len(tokens), wanted),
        near=tuple(page.near[own.index].tolist()[: len(tokens)]),
        n_run=int(page.run[own.index]) if page.run.numel() else 0,
    )
    return seat.request, decision


def _failure(word: int) -> str | None:
    return f"{MEANINGS[Status(word)].sentence} (status {Status(word).name})" if word else None


def _scored(page: Report, seat: int, n_tokens: int, wanted: int) -> tuple[Scored, ...]:
    own = page.logprobs[seat, :n_tokens].tolist()
    ids = page.top_tokens[seat, :n_tokens, :wanted].tolist()
    values = page.top_logprobs[seat, :n_tokens, :wanted].tolist()
    return tuple(
        Scored(logprob, tuple(zip(best, scores, strict=True)))
        for logprob, best, scores in zip(own, ids, values, strict=True)
    )


def has_ended(line: list[int]) -> bool:
    """Whether a line ends its text; one that failed decided nothing, whatever K7 made of it."""
    return bool(line[IS_FINISHED]) and not line[STATUS]


def read_lesson(page: Report, lines: list[list[int]], n_levels: int) -> Lesson:
    """What a page's trees and verdicts were, as values of their own."""
    n = len(lines)
    trees = page.trees[:, :n]
    return Lesson(
        scores=trees[SCORES].view(torch.float32).to("cpu", copy=True),
        depths=trees[DEPTHS].long().cpu(),
        n_rows=[line[N_ROWS] for line in lines],
        path=page.path[:n].long().cpu(),
        gains=page.gains[:n_levels].cpu().numpy().copy() if n_levels else None,
        n_run=tuple(page.run[:n].tolist()),
    )


@dataclass(frozen=True)
class RoundNode:
    """A verified node; `parent` is its place among the nodes, -1 for the root."""

    token: int
    parent: int
    score: float
    is_accepted: bool


@dataclass(frozen=True)
class RoundTree:
    """Verified nodes, the root first, parents before children; then what the target added."""

    nodes: tuple[RoundNode, ...]
    n_accepted: int  # draft tokens
    bonus: int  # the last token it emitted


class Trees(Mapping[int, RoundTree]):
    """The trees of a page by request id, made when looked at, until the next step."""

    def __init__(self, page: Report, landed: Sequence[Landed]) -> None:
        self._page = page
        decided = (own for own in landed if own.line[N_EMITTED])
        self._landed = {own.seat.request.job.request_id: own for own in decided}

    def __getitem__(self, request_id: int) -> RoundTree:
        own = self._landed[request_id]
        return _round_tree(self._page, own.line, own.index)

    def __iter__(self) -> Iterator[int]:
        return iter(self._landed)

    def __len__(self) -> int:
        return len(self._landed)


def _round_tree(page: Report, line: list[int], seat: int) -> RoundTree:
    n_rows, n_accepted = line[N_ROWS], line[N_ACCEPTED]
    scores = page.trees[SCORES, seat, :n_rows].view(torch.float32).tolist()
    tokens, parents = (page.trees[part, seat, :n_rows].tolist() for part in (TOKENS, PARENTS))
    accepted = set(page.path[seat, : n_accepted + 1].tolist())
    nodes = tuple(
        RoundNode(tokens[row], parents[row], scores[row], row in accepted) for row in range(n_rows)
    )
    return RoundTree(nodes, n_accepted, line[len(REPORT) + line[N_EMITTED] - 1])
