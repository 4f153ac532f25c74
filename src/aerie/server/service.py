"""From a checked request to an answer: prompts to ids, samples through the engine, text out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request, Response

from aerie.api import Engine
from aerie.server.answers import CHAT, COMPLETION, Answer, Form
from aerie.server.fields import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Sampling,
    TokenizeRequest,
    is_one_prompt,
)
from aerie.server.metrics import Metrics, Standing
from aerie.server.problems import ApiError
from aerie.server.reading import Reader, too_long
from aerie.server.renderer import Renderer
from aerie.server.rounds import CAPTURED
from aerie.server.running import Run, Stream, unless_left
from aerie.server.samples import Ask, Loaded
from aerie.server.settings import ServerSettings
from aerie.server.sglang import GenerateRequest, SglangAnswer
from aerie.server.worker import Worker

# Generated when nothing is said: what OpenAI's completions do, and a page of conversation.
COMPLETION_TOKENS, CHAT_TOKENS = 16, 1024


@dataclass(frozen=True)
class Service:
    """The parts every path needs."""

    worker: Worker
    settings: ServerSettings
    metrics: Metrics
    reader: Reader
    renderer: Renderer

    async def complete(self, asked: CompletionRequest, request: Request) -> Response:
        """POST /v1/completions."""
        loaded = self.named(asked.model)

        async def prepare() -> Answer:
            prompts = await self._encode(loaded, asked.prompt)
            asks = _asks(loaded.engine, asked, prompts, asked.max_tokens or COMPLETION_TOKENS)
            return self._openai(COMPLETION, asked, asks)

        return await self._send(asked, await unless_left(request, prepare()), request)

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        """POST /v1/chat/completions."""
        loaded = self.named(asked.model)
        most = asked.max_completion_tokens or asked.max_tokens or CHAT_TOKENS

        async def prepare() -> Answer:
            text = await self.renderer.render(loaded.template, asked.messages)
            prompt = await self.reader.encode(loaded.engine, text, "messages", False)
            asks = _asks(loaded.engine, asked, [prompt], most, "messages")
            return self._openai(CHAT, asked, asks)

        return await self._send(asked, await unless_left(request, prepare()), request)

    async def generate(self, asked: GenerateRequest, request: Request) -> Response:
        """POST /generate."""
        owns, loaded = asked.completions(), self.worker.ready()

        async def prepare() -> SglangAnswer:
            asks: tuple[Ask, ...] = ()
            for own in owns:
                prompts = await self._encode(loaded, own.prompt)
                asks += _asks(loaded.engine, own, prompts, own.max_tokens or COMPLETION_TOKENS)
            return SglangAnswer(asked.names(asks), asks, asked.is_one)

        return await self._send(owns[0], await unless_left(request, prepare()), request)

    async def tokenize(self, asked: TokenizeRequest, request: Request) -> dict[str, Any]:
        """POST /tokenize."""
        engine = self.named(asked.model).engine
        work = self.reader.encode(engine, asked.prompt, "prompt", asked.add_special_tokens)
        ids = await unless_left(request, work)
        return {"count": len(ids), "max_model_len": engine.core.limits.context, "tokens": ids}

    async def detokenize(self, asked: DetokenizeRequest) -> dict[str, Any]:
        """POST /detokenize."""
        engine = self.named(asked.model).engine
        most = engine.core.limits.context
        if len(asked.tokens) > most:
            raise too_long(str(len(asked.tokens)), most, "tokens")
        return {"prompt": await asyncio.to_thread(engine.tokenizer.decode, asked.tokens, False)}

    def standing(self) -> Standing:
        """How things stand, for whoever watches."""
        core = self.worker.ready().engine.core
        ledger = core.parts.memory.ledger
        usage = 1 - (ledger.n_free + ledger.n_idle) / (ledger.n_pages - 1)
        n_running, n_waiting = self.worker.counts()
        pending, reading = self.worker.pending_tokens, self.reader.waiting
        return Standing(n_running, n_waiting, round(max(usage, 0.0), 4), pending, reading)

    def _check_rounds(self, asked: Sampling) -> None:
        if not asked.show_rounds:
            return
        if not asked.stream:
            raise ApiError(400, "show_rounds needs stream", "show_rounds")
        if self.worker.ready().engine.core.rounds is not None:
            raise ApiError(400, CAPTURED, "show_rounds")

    def named(self, model: str | None) -> Loaded:
        """What serves a model of that name; None is the only one there is."""
        loaded = self.worker.ready()
        if model not in (None, self.settings.name):
            raise ApiError(
                404,
                f"the model {model!r:.100} is not served, {self.settings.name!r} is",
                "model",
                "model_not_found",
            )
        return loaded

    async def _encode(self, loaded: Loaded, prompt: Any) -> list[Sequence[int]]:
        """One or several prompts, as text or as ids."""
        found: list[Sequence[int]] = []
        for entry in [prompt] if is_one_prompt(prompt) else prompt:
            if not entry:
                raise ApiError(400, "the prompt is empty: give at least one token", "prompt")
            if isinstance(entry, str):
                found.append(await self.reader.encode(loaded.engine, entry, "prompt"))
            else:
                found.append(entry)
        return found

    async def _send(
        self, asked: Sampling, answer: Answer | SglangAnswer, request: Request
    ) -> Response:
        self._check_rounds(asked)
        group = await self.worker.enter(answer.asks, asked.show_rounds)
        run = Run(self.worker, self.metrics, group, answer, request)
        return Stream(run) if asked.stream else await run.whole()

    def _openai(self, form: Form, asked: Sampling, asks: tuple[Ask, ...]) -> Answer:
        tokenizer = self.worker.ready().engine.tokenizer
        name, has_logprobs = self.settings.name, _has_logprobs(asked)
        return Answer(form, name, asks, tokenizer, has_logprobs, asked.usage)


def _asks(
    engine: Engine,
    asked: Sampling,
    prompts: Sequence[Sequence[int]],
    most: int,
    param: str = "prompt",
) -> tuple[Ask, ...]:
    """Every sample of every prompt; none is counted with more than the context can hold."""
    limits, params = engine.core.limits, asked.params(most, _has_logprobs(asked))
    ledger = engine.core.parts.memory.ledger
    n_slots = (ledger.n_pages - 1) * ledger.page_size
    found: list[Ask] = []
    for prompt in prompts:
        if len(prompt) >= limits.context:
            raise too_long(str(len(prompt)), limits.context, param)
        for name, ids in ((param, prompt), ("stop_token_ids", params.stop_token_ids)):
            _refuse_unknown(name, ids, limits.vocabulary)
        _refuse_unknown("logit_bias", tuple(params.logit_bias), limits.vocabulary)
        room = limits.context - len(prompt)
        own = replace(params, max_tokens=min(params.max_tokens, room))
        if len(prompt) + own.max_tokens > n_slots:
            raise too_long(f"{len(prompt)} and may get {own.max_tokens} more", n_slots, param)
        found += [Ask(prompt, own, sample) for sample in range(asked.n)]
    return tuple(found)


def _refuse_unknown(name: str, ids: Sequence[int], vocabulary: int) -> None:
    largest = max(ids, default=0)
    if largest >= vocabulary:
        message = f"{name}: token id {largest} is outside the vocabulary of {vocabulary}"
        raise ApiError(400, message, name, "invalid_token_id")


def _has_logprobs(asked: Sampling) -> bool:
    """A chat says true, a completion says 0, which equals False in Python and is none."""
    logprobs = getattr(asked, "logprobs", None)
    return logprobs is not None and logprobs is not False
