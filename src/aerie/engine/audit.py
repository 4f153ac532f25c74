"""The audit of a step: conservation of tokens, ends, KV books. Slow; `EngineConfig.audit`."""

from __future__ import annotations

from dataclasses import replace

from aerie.engine.report import Decision
from aerie.kv.pages import LedgerError
from aerie.requests.params import MAX_STOPS
from aerie.requests.request import Request


def audit_decision(request: Request, decision: Decision) -> None:
    """Raise LedgerError if a round's counts do not add up."""
    where = f"request {request.job.request_id}"
    emitted = len(decision.tokens)
    accepted = min(decision.n_accepted, emitted)
    # Every emitted token is an accepted draft token or the round's one bonus token.
    if not 0 <= emitted - accepted <= 1:
        raise LedgerError(f"{where}: {emitted} emitted, {accepted} accepted")
    # Of more stop ids than that the device knows the first ones; the host clips at the others.
    is_told = not decision.failure and len(request.job.stop_ids) <= MAX_STOPS
    if is_told and decision.is_finished != (_end_after(request, decision) is not None):
        raise LedgerError(f"{where}: its text and K7 disagree on whether it has ended")
    if accepted > decision.n_nodes:
        raise LedgerError(f"{where}: {accepted} accepted of {decision.n_nodes} draft nodes")


def _end_after(request: Request, decision: Decision) -> str | None:
    return replace(request, tokens=[*request.tokens, *decision.tokens]).end_reason
