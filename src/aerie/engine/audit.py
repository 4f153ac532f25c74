"""The audit of a step: links, conservation of tokens, KV books. Slow; `EngineConfig.audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aerie.engine.decision import Decision
from aerie.engine.pages import LedgerError
from aerie.engine.request import Request
from aerie.engine.step import Outcome


def audit_step(requests: Sequence[Request], outcome: Outcome) -> None:
    """Raise LedgerError if the links of an eager step's trees do not add up."""
    ends = outcome.layout.qo_indptr.tolist()
    for index, request in enumerate(requests):
        span = slice(ends[index], ends[index + 1])
        first = outcome.layout.first_child_row[span].tolist()
        following = outcome.layout.next_sibling_row[span].tolist()
        _audit_links(f"request {request.job.request_id}", first, following)


def audit_decision(request: Request, decision: Decision) -> None:
    """Raise LedgerError if a round's counts do not add up."""
    where = f"request {request.job.request_id}"
    emitted = len(decision.tokens)
    accepted = min(decision.n_accepted, emitted)
    # Every emitted token is an accepted draft token or the round's one bonus token.
    if not 0 <= emitted - accepted <= 1:
        raise LedgerError(f"{where}: {emitted} emitted, {accepted} accepted")
    if not decision.failure and decision.is_finished != (_end_after(request, decision) is not None):
        raise LedgerError(f"{where}: its text and K7 disagree on whether it has ended")
    if accepted > decision.n_nodes:
        raise LedgerError(f"{where}: {accepted} accepted of {decision.n_nodes} draft nodes")


def _end_after(request: Request, decision: Decision) -> str | None:
    return replace(request, tokens=[*request.tokens, *decision.tokens]).end_reason


def _audit_links(where: str, first_child: list[int], next_sibling: list[int]) -> None:
    """Walking the links from the root meets every row exactly once."""
    met: list[int] = []
    open_rows = [0] if first_child else []
    while open_rows:
        row = open_rows.pop()
        met.append(row)
        open_rows += [link for link in (first_child[row], next_sibling[row]) if link >= 0]
        if len(met) > len(first_child):
            break
    if sorted(met) != list(range(len(first_child))):
        raise LedgerError(f"{where}: the links meet rows {sorted(met)} of {len(first_child)}")
