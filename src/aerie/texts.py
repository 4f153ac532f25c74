"""The texts of open requests: what the core decides in tokens, told as text, each piece once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aerie.engine.engine import EngineCore
from aerie.errors import UsageError
from aerie.requests.events import Event
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request
from aerie.text.output import TextOutput
from aerie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Update:
    """What a step added to one request; `finish_reason` is set on the last one."""

    request_id: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: str | None = None  # why it failed, where finish_reason is "error"


@dataclass
class OpenText:
    """A text that grows. `log` alone says how far it has come: all else follows from it."""

    output: TextOutput
    log: list[Update] = field(default_factory=list)
    n_tokens: int = 0  # in the log
    n_handed: int = 0  # updates that were handed out
    is_torn: bool = False  # an interruption may have left `output` ahead of the log

    @property
    def is_over(self) -> bool:
        """Its last update is there."""
        return bool(self.log) and self.log[-1].finish_reason is not None


class Texts:
    """Grows every open text. May be interrupted anywhere (Ctrl-C) and called again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.by_id: dict[int, OpenText] = {}
        self._tokenizer = tokenizer
        self._events: deque[Event] = deque()  # not turned into text yet

    def open(self, request_id: int, params: SamplingParams) -> None:
        """Begin a text; stop strings that cannot be are refused here."""
        self.by_id[request_id] = OpenText(TextOutput(self._tokenizer, params.stop))

    def grow(self, core: EngineCore, events: Iterable[Event]) -> list[Update]:
        """Take in what was decided; the updates not yet handed out, text by text."""
        self._events.extend(events)
        touched = dict.fromkeys(event.request_id for event in self._events)
        for request_id in touched:
            text = self.by_id.get(request_id)
            if text is not None and not text.is_over:  # abandoned meanwhile, or told already
                self._grow(core, core.request(request_id), text)
        # Last, so that whatever an interruption leaves undone is taken up again.
        self._events.clear()
        return [update for request_id in touched for update in self._hand_out(request_id)]

    def _grow(self, core: EngineCore, request: Request, text: OpenText) -> None:
        try:
            if text.is_torn:
                self._replay(request, text)
            text.is_torn = True
            update = _next_update(core, request, text)
        except Exception as error:  # of this text: no other ends with it
            ended = core.fail(request.job.request_id, f"{type(error).__name__}: {error}")
            update = Update(ended.request_id, "", (), ended.reason, ended.error)
        if update.text or update.token_ids or update.finish_reason:
            text.log.append(update)
        text.n_tokens += len(update.token_ids)
        text.is_torn = False

    def _replay(self, request: Request, text: OpenText) -> None:
        """Decode the tokens of the log again, and forget the rest."""
        text.output = TextOutput(self._tokenizer, request.params.stop)
        text.n_tokens = 0
        for update in text.log:
            text.output.push(update.token_ids)
            text.n_tokens += len(update.token_ids)

    def _hand_out(self, request_id: int) -> list[Update]:
        text = self.by_id.get(request_id)
        if text is None:
            return []
        new = text.log[text.n_handed :]
        text.n_handed = len(text.log)
        return new


def _next_update(core: EngineCore, request: Request, text: OpenText) -> Update:
    """The tokens that the log lacks, as text; where a stop string ends it, the request ends."""
    request_id = request.job.request_id
    tokens = tuple(request.tokens[len(request.job.prompt) + text.n_tokens :])
    delta = text.output.push(tokens)
    if delta.stop is not None:
        core.stop(request_id, len(tokens) - delta.n_tokens)
        return Update(request_id, delta.text, tokens[: delta.n_tokens], "stop")
    if request.ended is None:
        return Update(request_id, delta.text, tokens)
    last = text.output.finish()
    reason = "stop" if last.stop is not None else request.ended.reason
    return Update(request_id, delta.text + last.text, tokens, reason, request.ended.error)


def as_list(prompts: Any) -> list[Any]:
    """One prompt or several: a text, ids in a list or array, or a sequence of either."""
    if isinstance(prompts, str | bytes | bytearray | memoryview):
        return [prompts]
    if hasattr(prompts, "tolist"):
        listed = prompts.tolist()
        prompts = listed if isinstance(listed, list) else [listed]
    if isinstance(prompts, dict) or not isinstance(prompts, Iterable):
        raise UsageError(f"prompts is {prompts!r:.60}, must be a text, token ids or a list of them")
    found = list(prompts)
    is_one = bool(found) and hasattr(found[0], "__index__") and not getattr(found[0], "shape", ())
    return [found] if is_one else found
