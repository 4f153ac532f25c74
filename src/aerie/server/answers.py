"""What goes back: OpenAI's bodies and chunks, usage, and speculation where clients look for it."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aerie.by_context import ByContext
from aerie.completion import Completion
from aerie.near_ties import NearTies
from aerie.requests.request import Statistics
from aerie.server.fields import StreamOptions
from aerie.server.samples import Ask, Piece, prompt_tokens
from aerie.server.scores import (
    Offsets,
    Scores,
    chat_logprobs,
    completion_logprobs,
    prompt_offsets,
    vllm_prompt_logprobs,
)
from aerie.server.speech import Speech, joined
from aerie.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return data(compact(body))


def data(content: bytes) -> bytes:
    """A server-sent event of some JSON."""
    return b"data: " + content + b"\n\n"


def compact(body: object) -> bytes:
    """JSON at once."""
    return json.dumps(body, separators=(",", ":")).encode()


def written(body: object) -> bytes:
    """JSON piece by piece: the encoder that does it at once would stop the event loop."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return "".join(encoder.iterencode(body)).encode()


def round_event(index: int, tree: dict[str, Any]) -> bytes:
    """A round's tree under a name of its own, which clients of OpenAI's API pass over."""
    return b"event: round\n" + event({"index": index, **tree})


@dataclass(frozen=True)
class Form:
    """How an endpoint writes a choice; everything else the two have in common."""

    kind: str  # of the body's `object`
    chunk_kind: str
    prefix: str  # of its id
    is_chat: bool

    def whole(self, text: str) -> dict[str, Any]:
        """The text of a finished choice."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"message": message} if self.is_chat else {"text": text}

    def part(self, text: str) -> dict[str, Any]:
        """The text of a chunk."""
        return {"delta": {"content": text} if text else {}} if self.is_chat else {"text": text}


COMPLETION = Form("text_completion", "text_completion", "cmpl", is_chat=False)
CHAT = Form("chat.completion", "chat.completion.chunk", "chatcmpl", is_chat=True)


@dataclass(frozen=True)
class Answer:
    """One response: its form, its name, and what it is an answer to."""

    form: Form
    model: str
    asks: tuple[Ask, ...]
    tokenizer: Tokenizer
    usage: StreamOptions = field(default_factory=StreamOptions)
    n_best: int | None = None  # of `prompt_logprobs`; None: it was not asked for
    n_tokens: Counter[int] = field(default_factory=Counter)  # by choice, of a stream so far
    offsets: dict[int, Offsets] = field(default_factory=dict)  # of choices that have begun
    speeches: tuple[Speech, ...] = ()  # of each choice, where texts are parsed
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def body(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The whole answer at once."""
        choices = [self._choice(index, whole) for index, whole in enumerate(completions)]
        return {**self._head(self.form.kind), "choices": choices, **self._taken(completions)}

    def openings(self) -> list[dict[str, Any]]:
        """The first chunk of each choice of a chat: its role."""
        role = {"delta": {"role": "assistant", "content": ""}}
        n_choices = len(self.asks) if self.form.is_chat else 0
        return [self._chunk(index, role, None, None) for index in range(n_choices)]

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """What a step added to a choice; nothing where nothing can be shown."""
        index = piece.index
        self.n_tokens[index] += len(piece.token_ids)
        text, logprobs = self._told(piece)
        if self.speeches:
            deltas = self.speeches[index].push(text, piece.token_ids)
            parts = [{"delta": delta} for delta in deltas]
        else:
            parts = [self.form.part(text)] if text else []
        if not parts and any((logprobs or {}).values()):
            parts = [self.form.part("")]
        scores = (logprobs, *(None for _ in parts[1:]))  # all of them with the first part
        return [
            self._chunk(index, part, own, None) for part, own in zip(parts, scores, strict=False)
        ]

    def lasts(self, index: int, completion: Completion) -> list[dict[str, Any]]:
        """What a choice had held back, and why it ended."""
        reason, rest = completion.finish_reason, []
        if self.speeches:
            rest = [{"delta": delta} for delta in self.speeches[index].finish()]
            reason = self.speeches[index].reason(reason)
        chunks = [self._chunk(index, part, None, None) for part in rest]
        return [*chunks, self._chunk(index, self.form.part(""), None, reason)]

    def closings(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        """A chunk without choices that says what it took, if that was asked for."""
        if not self.usage.include_usage:
            return []
        head = self._head(self.form.chunk_kind)
        return [{**head, "choices": [], **self._taken(completions)}]

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        scored, prompt_scored = completion.logprobs or (), completion.prompt_logprobs or ()
        piece = Piece(index, completion.text, completion.token_ids, scored, True, prompt_scored)
        text, logprobs = self._told(piece)
        content, reason = self.form.whole(text), completion.finish_reason
        if self.speeches:
            own = self.speeches[index]
            content = {"message": joined([*own.push(text, completion.token_ids), *own.finish()])}
            reason = own.reason(reason)
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        if self.n_best is not None:
            ids, scores = self.asks[index].prompt, (None, *prompt_scored)
            found = vllm_prompt_logprobs(self.tokenizer, ids, scores, self.n_best)
            choice["prompt_logprobs"] = found
        return choice

    def _told(self, piece: Piece) -> tuple[str, dict[str, Any] | None]:
        """The text of a piece and its log-probabilities, the prompt's before the first if asked.

        A whole answer is one piece, so that a stream has the values of the whole.
        """
        ask, ids = self.asks[piece.index], piece.token_ids
        scores: Scores = piece.scored
        echoed = ask.echoed if piece.is_first else None
        text, n_best = (echoed or "") + piece.text, ask.params.logprobs
        if n_best is None:
            return text, None
        if self.form.is_chat:
            return text, chat_logprobs(self.tokenizer, ids, piece.scored)
        if piece.index not in self.offsets:
            self.offsets[piece.index] = Offsets(self.tokenizer, len(ask.echoed or ""))
        offsets = [*self.offsets[piece.index].push(ids)]
        if echoed is not None:
            ids, scores = (*ask.prompt, *ids), (None, *piece.prompt_scored, *scores)
            offsets = [*prompt_offsets(self.tokenizer, ask.prompt, echoed), *offsets]
        return text, completion_logprobs(self.tokenizer, ids, scores, offsets, n_best)

    def _taken(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Usage, and how speculation went."""
        n_prompt = prompt_tokens(self.asks)
        n_output = sum(len(completion.token_ids) for completion in completions)
        statistics = [completion.statistics for completion in completions]
        cached = {"cached_tokens": sum(own.reused_tokens for own in statistics)}
        usage = {**_usage(n_prompt, n_output), "prompt_tokens_details": cached}
        close = NearTies()
        for own in statistics:
            close.add(own.near_ties)
        counts = {"speculative_decoding": speculation(statistics), "near_ties": close.rate}
        return {"usage": usage, "metrics": counts}

    def _chunk(
        self, index: int, content: dict[str, Any], logprobs: Any, reason: str | None
    ) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}
        chunk = {**self._head(self.form.chunk_kind), "choices": [choice]}
        if self.usage.continuous_usage_stats:
            chunk["usage"] = _usage(len(self.asks[index].prompt), self.n_tokens[index])
        return chunk

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.form.prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def _usage(n_prompt: int, n_output: int) -> dict[str, Any]:
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_output,
        "total_tokens": n_prompt + n_output,
    }


def speculation(statistics: Sequence[Statistics]) -> dict[str, Any]:
    """Counts of all samples together; the histogram is over the accepted depth of a round."""
    n_drafts = sum(own.num_drafts for own in statistics)
    n_draft_tokens = sum(own.num_draft_tokens for own in statistics)
    n_accepted = sum(own.num_accepted_tokens for own in statistics)
    deepest = max((depth for own in statistics for depth in own.accepted_by_depth), default=0)
    reached = [n_drafts] + [
        sum(own.accepted_by_depth.get(depth, 0) for own in statistics)
        for depth in range(1, deepest + 2)
    ]
    n_previewed, judged, held = (
        sum(getattr(own.previews, name) for own in statistics)
        for name in ("tokens", "judged", "held")
    )
    return {
        **({"num_previewed_tokens": n_previewed} if judged else {}),
        **({"preview_agreement": round(held / judged, 4)} if judged else {}),
        "mean_acceptance_length": round(1 + n_accepted / n_drafts, 4) if n_drafts else 1.0,
        "draft_acceptance_rate": round(n_accepted / n_draft_tokens, 4) if n_draft_tokens else 0.0,
        "acceptance_histogram": [here - deeper for here, deeper in itertools.pairwise(reached)],
        "acceptance_by_context": ByContext.total(own.by_context for own in statistics).lengths(),
        "num_spec_steps": n_drafts,
        "num_accepted_draft_tokens": n_accepted,
        "num_draft_tokens": n_draft_tokens,
        "num_target_passes": sum(own.target_passes for own in statistics),
    }
