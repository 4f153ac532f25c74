"""What is known of a request when it ends, in one line of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from aerie.completion import Completion
from aerie.server.logs import facts

LOG = logging.getLogger("aerie.server")
KEY = "aerie_note"
MOST_SHOWN = 200  # characters of what a client sent


@dataclass(eq=False)
class Note:
    """Kept beside a request; every part that serves it adds what it knows."""

    request_id: str
    began: float = field(default_factory=time.monotonic)
    status: int = 0  # 0: nothing was answered
    problem: str | None = None
    tokens: dict[str, Any] = field(default_factory=dict)  # how many, once all of them are there

    def end(self, n_prompt: int, completions: Sequence[Completion]) -> None:
        """All samples are over."""
        n_output = sum(len(completion.token_ids) for completion in completions)
        n_drafts = sum(completion.statistics.num_drafts for completion in completions)
        n_accepted = sum(completion.statistics.num_accepted_tokens for completion in completions)
        accepted = round(1 + n_accepted / n_drafts, 2) if n_drafts else None
        self.tokens = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_output,
            "acceptance": accepted,
        }

    def write(self, scope: Scope, is_quiet: bool) -> None:
        """The line; what is asked for every few seconds is told at the level debug."""
        level = logging.WARNING if self.status >= 500 else logging.INFO
        is_expected = self.status < 400 or self.status == 503
        level = logging.DEBUG if is_quiet and is_expected else level
        if not LOG.isEnabledFor(level):
            return
        told = {
            "request_id": self.request_id,
            "status": self.status,
            "address": (scope.get("client") or ("?",))[0],
            "method": scope.get("method", ""),
            "path": shown(scope["path"]),
            "milliseconds": round(1000 * (time.monotonic() - self.began)),
        }
        parts = [
            f"request {self.request_id}: {self.status or 'no answer'}",
            "{address} {method} {path}, {milliseconds} ms".format_map(told),
        ]
        parts += [_written(self.tokens)] if self.tokens else []
        parts += [shown(self.problem)] if self.problem else []
        problem = {"problem": shown(self.problem)} if self.problem else {}
        LOG.log(level, "%s", ", ".join(parts), extra=facts(**told, **self.tokens, **problem))


def _written(tokens: dict[str, Any]) -> str:
    accepted = tokens["acceptance"]
    words = "prompt={prompt_tokens} completion={completion_tokens}".format_map(tokens)
    return f"{words} acceptance={'none' if accepted is None else f'{accepted:.2f}'}"


def note_of(scope: Scope) -> Note:
    """The note of a request; one that came past the guard has an empty one."""
    found = scope.setdefault(KEY, Note("-"))
    assert isinstance(found, Note)
    return found


def shown(words: str) -> str:
    """A client's words on one line of plain ASCII: only this server writes into the log."""
    return ascii(words)[1:-1][:MOST_SHOWN]
