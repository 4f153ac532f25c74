"""What is known of a request when it ends, in one line of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from aerie.completion import Completion

LOG = logging.getLogger("aerie.server")
KEY = "aerie_note"
MOST_SHOWN = 200  # characters of what a client sent


@dataclass(eq=False)
class Note:
    """Kept beside a request; whoever serves it adds what he knows."""

    request_id: str
    began: float = field(default_factory=time.monotonic)
    status: int = 0  # 0: nothing was answered
    problem: str | None = None
    tokens: str | None = None  # how many, once all of them are there

    def end(self, n_prompt: int, completions: Sequence[Completion]) -> None:
        """All samples are over."""
        n_output = sum(len(completion.token_ids) for completion in completions)
        n_drafts = sum(completion.statistics.num_drafts for completion in completions)
        n_accepted = sum(completion.statistics.num_accepted_tokens for completion in completions)
        accepted = f"{1 + n_accepted / n_drafts:.2f}" if n_drafts else "none"
        self.tokens = f"prompt={n_prompt} completion={n_output} acceptance={accepted}"

    def write(self, scope: Scope, is_quiet: bool) -> None:
        """The line; what is asked for every few seconds is told at the level debug."""
        level = logging.WARNING if self.status >= 500 else logging.INFO
        is_expected = self.status < 400 or self.status == 503
        level = logging.DEBUG if is_quiet and is_expected else level
        if not LOG.isEnabledFor(level):
            return
        address = (scope.get("client") or ("?",))[0]
        parts = [
            f"request {self.request_id}: {self.status or 'no answer'}",
            f"{address} {scope.get('method', '')} {shown(scope['path'])}",
            f"{1000 * (time.monotonic() - self.began):.0f} ms",
        ]
        parts += [self.tokens] if self.tokens else []
        parts += [shown(self.problem)] if self.problem else []
        LOG.log(level, "%s", ", ".join(parts))


def note_of(scope: Scope) -> Note:
    """The note of a request; one that came past the guard has an empty one."""
    found = scope.setdefault(KEY, Note("-"))
    assert isinstance(found, Note)
    return found


def shown(words: str) -> str:
    """A client's words on one line of plain ASCII: nobody writes into the log but this server."""
    return ascii(words)[1:-1][:MOST_SHOWN]
