"""From a checked request to an answer: prompts to ids, samples through the engine, text out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from aerie.api import Completion
from aerie.server.answers import CHAT, COMPLETION, DONE, Answer, Form, event, round_event
from aerie.server.fields import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Sampling,
    TokenizeRequest,
    is_one_prompt,
)
from aerie.server.metrics import Metrics
from aerie.server.problems import ApiError, of_failure
from aerie.server.rounds import CAPTURED
from aerie.server.settings import ServerSettings
from aerie.server.sglang import GenerateRequest, SglangAnswer
from aerie.server.worker import Ask, End, Group, Loaded, Piece, Round, Worker, prompt_tokens

CLIENT_GONE = 499  # nobody reads it
# Generated when nothing is said: what OpenAI's completions do, and a page of conversation.
COMPLETION_TOKENS, CHAT_TOKENS = 16, 1024


@dataclass(frozen=True)
class Service:
    """The parts every path needs."""

    worker: Worker
    settings: ServerSettings
    metrics: Metrics

    async def complete(self, asked: CompletionRequest, request: Request) -> Response:
        """POST /v1/completions."""
        loaded = self._named(asked.model)
        prompts = await self._encode(loaded, asked.prompt)
        asks = _asks(asked, prompts, asked.max_tokens or COMPLETION_TOKENS)
        return await self._send(asked, self._openai(COMPLETION, asked, asks), request)

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        """POST /v1/chat/completions."""
        loaded = self._named(asked.model)
        tokenizer = loaded.engine.tokenizer

        def render() -> list[int]:
            return tokenizer.encode(loaded.template.render(asked.messages), False)

        try:
            async with asyncio.timeout(self.settings.request_seconds):
                prompt = await asyncio.to_thread(render)
        except TimeoutError:
            raise ApiError(400, "the chat template takes too long on these messages") from None
        most = asked.max_completion_tokens or asked.max_tokens or CHAT_TOKENS
        asks = _asks(asked, [prompt], most)
        return await self._send(asked, self._openai(CHAT, asked, asks), request)

    async def generate(self, asked: GenerateRequest, request: Request) -> Response:
        """POST /generate."""
        asks: tuple[Ask, ...] = ()
        for own in (owns := asked.completions()):
            prompts = await self._encode(self.worker.ready(), own.prompt)
            asks += _asks(own, prompts, own.max_tokens or COMPLETION_TOKENS)
        answer = SglangAnswer(asked.names(asks), asks, asked.is_one)
        return await self._send(owns[0], answer, request)

    async def tokenize(self, asked: TokenizeRequest) -> dict[str, Any]:
        """POST /tokenize."""
        engine = self._named(asked.model).engine
        encode = engine.tokenizer.encode
        ids = await asyncio.to_thread(encode, asked.prompt, asked.add_special_tokens)
        return {"count": len(ids), "max_model_len": engine.core.limits.context, "tokens": ids}

    async def detokenize(self, asked: DetokenizeRequest) -> dict[str, Any]:
        """POST /detokenize."""
        decode = self._named(asked.model).engine.tokenizer.decode
        return {"prompt": await asyncio.to_thread(decode, asked.tokens, False)}

    def _check_rounds(self, asked: Sampling) -> None:
        if not asked.show_rounds:
            return
        if not asked.stream:
            raise ApiError(400, "show_rounds needs stream", "show_rounds")
        if self.worker.ready().engine.core.rounds is not None:
            raise ApiError(400, CAPTURED, "show_rounds")

    def _named(self, model: str | None) -> Loaded:
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
        """One or several prompts, as text or as ids; long texts must not hold the event loop."""
        encode = loaded.engine.tokenizer.encode
        found: list[Sequence[int]] = []
        for entry in [prompt] if is_one_prompt(prompt) else prompt:
            if not entry:
                raise ApiError(400, "the prompt is empty: give at least one token", "prompt")
            if isinstance(entry, str):
                found.append(await asyncio.to_thread(encode, entry))
            else:
                found.append(entry)
        return found

    async def _send(
        self, asked: Sampling, answer: Answer | SglangAnswer, request: Request
    ) -> Response:
        began = time.monotonic()
        self._check_rounds(asked)
        group = await self.worker.enter(answer.asks, asked.show_rounds)
        run = _Run(self, group, answer, began)
        if asked.stream:
            return StreamingResponse(run.stream(), media_type="text/event-stream")
        return await run.whole(request)

    def _openai(self, form: Form, asked: Sampling, asks: tuple[Ask, ...]) -> Answer:
        tokenizer = self.worker.ready().engine.tokenizer
        name, has_logprobs = self.settings.name, _has_logprobs(asked)
        return Answer(form, name, asks, tokenizer, has_logprobs, asked.usage)


@dataclass(frozen=True)
class _Run:
    """One request under way."""

    service: Service
    group: Group
    answer: Answer | SglangAnswer
    began: float

    async def whole(self, request: Request) -> Response:
        """Everything at once, unless the client leaves before."""
        result = asyncio.create_task(self._collect())
        left = asyncio.create_task(_disconnect(request))
        try:
            await asyncio.wait((result, left), return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                return Response(status_code=CLIENT_GONE)
            return JSONResponse(self.answer.body(result.result()))
        finally:
            result.cancel()
            left.cancel()
            self.service.worker.leave(self.group)

    async def stream(self) -> AsyncIterator[bytes]:
        """Chunks as they are decided; a client that leaves ends the generator, and the samples."""
        ended: dict[int, Completion] = {}
        try:
            for opening in self.answer.openings():
                yield event(opening)
            async for item in self._items(ended):
                if isinstance(item, End):
                    yield event(self.answer.last(item.index, item.completion))
                elif isinstance(item, Round):
                    yield round_event(item.index, item.tree)
                elif (chunk := self.answer.chunk(item)) is not None:
                    yield event(chunk)
            for closing in self.answer.closings(_in_order(ended)):
                yield event(closing)
            yield DONE
        except ApiError as error:
            # The status is long sent: the stream says it, and ends without [DONE].
            yield event(error.body())
        finally:
            self.service.worker.leave(self.group)

    async def _collect(self) -> list[Completion]:
        ended: dict[int, Completion] = {}
        async for _ in self._items(ended):
            pass
        return _in_order(ended)

    async def _items(self, ended: dict[int, Completion]) -> AsyncIterator[Piece | Round | End]:
        """Pieces and ends of all samples, until the last end; counted on the way."""
        metrics, has_text = self.service.metrics, False
        while len(ended) < len(self.group.asks):
            item = await self.group.items.get()
            if isinstance(item, Exception):
                raise of_failure(item)
            if isinstance(item, Piece) and item.text and not has_text:
                has_text = True
                metrics.first_text(time.monotonic() - self.began)
            if isinstance(item, End):
                _refuse_failed(item.completion)
                ended[item.index] = item.completion
            if isinstance(item, Piece | Round | End):
                yield item
        n_prompt = prompt_tokens(self.group.asks)
        metrics.ended(n_prompt, _in_order(ended), time.monotonic() - self.began)


def _asks(asked: Sampling, prompts: Sequence[Sequence[int]], most: int) -> tuple[Ask, ...]:
    """Every sample of every prompt."""
    params = asked.params(most, _has_logprobs(asked))
    samples = range(asked.n)
    return tuple(Ask(prompt, params, sample) for prompt in prompts for sample in samples)


def _has_logprobs(asked: Sampling) -> bool:
    """A chat says true, a completion says 0, which equals False in Python and is none."""
    logprobs = getattr(asked, "logprobs", None)
    return logprobs is not None and logprobs is not False


def _refuse_failed(completion: Completion) -> None:
    """A sample that the engine gave up on: NaN logits, for one. It failed alone."""
    if completion.error is not None:
        raise ApiError(500, f"this request failed, others go on: {completion.error}")


def _in_order(ended: dict[int, Completion]) -> list[Completion]:
    return [ended[index] for index in sorted(ended)]


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
