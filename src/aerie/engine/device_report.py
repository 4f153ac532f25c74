"""Reports of captured rounds on the host: rounds under way, seats, and what each line decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from aerie.engine.decision import Decision, describe_failure
from aerie.engine.device_state import MAX_STOPS, Lessons
from aerie.engine.params import SamplingParams
from aerie.engine.request import Request
from aerie.speculation.device_policy import Lesson
from aerie.speculation.proposer import Features
from aerie.speculation.round_ops import REPORT

Decided = tuple[Request, Decision]

# What a captured round does not compute, and how a request asks for it.
_UNCOVERED: tuple[tuple[str, Callable[[SamplingParams], bool]], ...] = (
    ("top_k", lambda p: p.top_k != 0),
    ("top_p", lambda p: p.top_p != 1.0),
    ("min_p", lambda p: p.min_p != 0.0),
    ("penalties", lambda p: p.has_penalties),
    ("logit_bias", lambda p: bool(p.logit_bias)),
    ("logprobs", lambda p: p.logprobs),
    ("speculative", lambda p: not p.speculative),
)


def why_not_captured(request: Request) -> str | None:
    """The option that sends a request's batch to the eager loop, or None."""
    for name, is_asked in _UNCOVERED:
        if is_asked(request.params):
            return name
    return "stop_token_ids" if len(request.job.stop_ids) > MAX_STOPS else None


@dataclass
class Seat:
    """A request in a slot, as the last report left it."""

    request: Request
    seq_len: int
    n_rows: int = 1  # of the tree that waits for its verification
    stale_from: int | None = None  # first position the draft was not shown


@dataclass(frozen=True, eq=False)
class Flight:
    """A round under way: launched, its report not read yet."""

    page: int  # of the report, that it will be found on
    is_shown: bool  # the draft sees what the round commits
    # Rows its draft is to choose, all slots together, where that was agreed before: the next
    # verification can be launched behind it unread. None: as many as turn out to pay.
    agreed: int | None


@dataclass(frozen=True, eq=False)
class Landed:
    """A line of a report that was read."""

    request: Request
    row: list[int]
    seen: int  # first position the draft has not seen


# Made once: every request gets them every round.
_NO_TAPS, _NO_TOKENS = torch.zeros((0, 0, 0)), torch.zeros(0, dtype=torch.int64)


def nothing_after(position: int) -> Features:
    """No features wait: the draft has seen everything before this position."""
    return Features(position, _NO_TAPS, _NO_TOKENS)


def missed_features(history: torch.Tensor, place: Seat) -> Features:
    """Features of the positions a seat's draft was not shown, as far as they were kept.

    `history` [table rows, positions, captures, hidden] holds each request's last positions.
    """
    assert place.stale_from is not None, "the draft missed nothing"
    request, capacity = place.request, history.shape[1]
    start = max(place.stale_from, place.seq_len - capacity)
    held = request.held
    if start > place.stale_from:
        gap = place.stale_from
        held.draft_gap = gap if held.draft_gap is None else min(gap, held.draft_gap)
    positions = torch.arange(start, place.seq_len, device=history.device)
    following = request.tokens[start + 1 : place.seq_len + 1]
    tokens = torch.tensor(following, dtype=torch.int64, device=history.device)
    return Features(start, history[held.row, positions % capacity], tokens)


_N_ROWS, _SEQ_LEN, _N_CHOSEN = (REPORT.index(n) for n in ("n_rows", "seq_len", "n_chosen"))
_N_EMITTED, _N_ACCEPTED = REPORT.index("n_emitted"), REPORT.index("n_accepted")
_IS_FINISHED, _STATUS = REPORT.index("is_finished"), REPORT.index("status")


def goes_on(row: list[int]) -> bool:
    """Whether a line of the report ends nothing."""
    return not row[_IS_FINISHED] and not row[_STATUS]


def move_on(place: Seat, row: list[int], is_shown: bool) -> int:
    """Bring a seat in line with its line of the report; the first position the draft did not see.

    `is_shown`: the draft saw the rows of this round.
    """
    seen = place.stale_from
    if seen is None:
        # Whoever ended here was not drafted for any more.
        seen = row[_SEQ_LEN] if is_shown and not row[_IS_FINISHED] else place.seq_len
        place.stale_from = None if is_shown else place.seq_len
    place.seq_len, place.n_rows = row[_SEQ_LEN], row[_N_CHOSEN]
    return seen


def decide(row: list[int], seen: int) -> Decision:
    """One line of the report as a decision; the draft has seen everything before `seen`."""
    return Decision(
        tokens=tuple(row[len(REPORT) : len(REPORT) + row[_N_EMITTED]]),
        n_nodes=row[_N_ROWS] - 1,
        n_accepted=row[_N_ACCEPTED],
        seq_len=row[_SEQ_LEN],
        is_finished=bool(row[_IS_FINISHED]),
        failure=describe_failure([row[_STATUS]]),
        features=[nothing_after(seen)],
    )


def read_lesson(lessons: Lessons, report: list[list[int]]) -> Lesson:
    """What a report's trees and verdicts were, as values of their own."""
    n, n_verify = len(report), lessons.sent.shape[1] // 2
    told = lessons.read_told[:n].clone()
    return Lesson(
        scores=told[:, :n_verify],
        depths=told[:, n_verify : 2 * n_verify].long(),
        n_rows=[row[_N_ROWS] for row in report],
        path=told[:, 2 * n_verify :].long(),
        gains=lessons.read_gains.numpy().copy(),
    )
