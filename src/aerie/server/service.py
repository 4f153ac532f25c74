"""From a checked request to an answer: prompts to ids, samples through the engine, text out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request, Response

from aerie.server.answers import CHAT, COMPLETION, Answer, Form
from aerie.server.chats import held_to_calls, offered_tools, prompt_text, speeches
from aerie.server.fields import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Sampling,
    TokenizeRequest,
    is_one_prompt,
)
from aerie.server.host import Another
from aerie.server.keeping import Keeper, Keeping
from aerie.server.metrics import Metrics, Standing
from aerie.server.notes import note_of
from aerie.server.problems import ApiError
from aerie.server.reading import Reader, too_long
from aerie.server.renderer import Renderer
from aerie.server.running import Run, Stream, unless_left
from aerie.server.samples import Ask, Facts
from aerie.server.scores import prompt_pieces
from aerie.server.settings import ServerSettings
from aerie.server.sglang import GenerateRequest, SglangAnswer
from aerie.server.worker import Worker
from aerie.text.tokenizer import Tokenizer

# Generated when nothing is said: what OpenAI's completions do, and a page of conversation.
COMPLETION_TOKENS, CHAT_TOKENS = 16, 1024
MOST_PROMPT_SCORES = 1 << 19  # of one request: some 60 MB; fifteen alternatives of 32K tokens


@dataclass(frozen=True)
class Service:
    """The parts every path needs."""

    worker: Worker
    settings: ServerSettings
    metrics: Metrics
    reader: Reader
    renderer: Renderer
    keeper: Keeper | None = None
    another: Another | None = None  # an engine with other weights, which begins to load

    async def complete(self, asked: CompletionRequest, request: Request) -> Response:
        """POST /v1/completions."""
        facts = self.named(asked.model)
        asked.check()

        async def prepare() -> Answer:
            asks = await self._complete(facts, asked)
            if asked.echo:
                asks = await asyncio.to_thread(_echoing, facts.tokenizer, asked, asks)
            return replace(self._openai(COMPLETION, asked, asks), n_best=asked.prompt_logprobs)

        return await self._send(asked, await unless_left(request, prepare()), request)

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        """POST /v1/chat/completions."""
        facts = self.named(asked.model)
        asked.check()
        most = asked.max_completion_tokens or asked.max_tokens or CHAT_TOKENS
        tools = offered_tools(facts, asked)

        async def prepare() -> Answer:
            text = await prompt_text(self.renderer, facts, asked, tools)
            prompt = await self.reader.encode(facts, text, "messages", False)
            asks = held_to_calls(asked, _asks(facts, asked, [prompt], most, "messages"))
            spoken = speeches(facts, asked, asks)
            return replace(self._openai(CHAT, asked, asks), speeches=spoken)

        return await self._send(asked, await unless_left(request, prepare()), request)

    async def generate(self, asked: GenerateRequest, request: Request) -> Response:
        """POST /generate."""
        owns, facts = asked.completions(), self.worker.ready()

        async def prepare() -> SglangAnswer:
            asks: tuple[Ask, ...] = ()
            for own in owns:
                asks += await self._complete(facts, own)
            start = asked.scored_from(asks)
            return SglangAnswer(asked.names(asks), asks, asked.is_one, start)

        return await self._send(owns[0], await unless_left(request, prepare()), request)

    async def tokenize(self, asked: TokenizeRequest, request: Request) -> dict[str, Any]:
        """POST /tokenize."""
        facts = self.named(asked.model)
        work = self.reader.encode(facts, asked.prompt, "prompt", asked.add_special_tokens)
        ids = await unless_left(request, work)
        return {"count": len(ids), "max_model_len": facts.limits.context, "tokens": ids}

    async def detokenize(self, asked: DetokenizeRequest) -> dict[str, Any]:
        """POST /detokenize."""
        facts = self.named(asked.model)
        most = facts.limits.context
        if len(asked.tokens) > most:
            raise too_long(str(len(asked.tokens)), most, "tokens")
        return {"prompt": await asyncio.to_thread(facts.tokenizer.decode, asked.tokens, False)}

    def standing(self) -> Standing:
        """How things stand, for metrics and the log."""
        numbers = self.worker.numbers
        usage = 1 - numbers.n_free_pages / (self.worker.ready().n_pages - 1)
        return Standing(
            num_requests_running=numbers.n_running + self.worker.n_retiring,
            num_requests_waiting=numbers.n_waiting,
            kv_cache_usage_perc=round(max(usage, 0.0), 4),
            pending_tokens=self.worker.pending_tokens,
            reading_characters=self.reader.waiting,
            graphs_recorded=numbers.n_graphs,
        )

    def named(self, model: str | None) -> Facts:
        """What serves a model of that name; None is the only one there is."""
        facts = self.worker.ready()
        if model not in (None, self.settings.name):
            raise ApiError(
                404,
                f"the model {model!r:.100} is not served, {self.settings.name!r} is",
                "model",
                "model_not_found",
            )
        return facts

    async def _complete(self, facts: Facts, asked: CompletionRequest) -> tuple[Ask, ...]:
        prompts = await self._encode(facts, asked.prompt)
        most = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
        return _asks(facts, asked, prompts, most)

    async def _encode(self, facts: Facts, prompt: Any) -> list[Sequence[int]]:
        """One or several prompts, as text or as ids."""
        found: list[Sequence[int]] = []
        for entry in [prompt] if is_one_prompt(prompt) else prompt:
            if not entry:
                raise ApiError(400, "the prompt is empty: give at least one token", "prompt")
            if isinstance(entry, str):
                found.append(await self.reader.encode(facts, entry, "prompt"))
            else:
                found.append(entry)
        return found

    async def _send(
        self, asked: Sampling, answer: Answer | SglangAnswer, request: Request
    ) -> Response:
        is_kept = self.keeper is not None
        group = await self.worker.enter(answer.asks, asked.show_rounds or is_kept)
        kept = self._keeping(answer.asks, request)
        run = Run(self.worker, self.metrics, group, answer, request, asked.show_rounds, kept)
        return Stream(run) if asked.stream else await run.whole()

    def _keeping(self, asks: Sequence[Ask], request: Request) -> Keeping | None:
        if self.keeper is None:
            return None
        request_id = note_of(request.scope).request_id
        return Keeping(self.keeper, request_id, asks, self.worker.ready().tokenizer)

    def _openai(self, form: Form, asked: Sampling, asks: tuple[Ask, ...]) -> Answer:
        tokenizer = self.worker.ready().tokenizer
        return Answer(form, self.settings.name, asks, tokenizer, asked.usage)


def _asks(
    facts: Facts,
    asked: Sampling,
    prompts: Sequence[Sequence[int]],
    most: int,
    param: str = "prompt",
) -> tuple[Ask, ...]:
    """Every sample of every prompt; none is counted with more than the context can hold."""
    limits, params, n_slots = facts.limits, asked.params(most), facts.n_slots
    found: list[Ask] = []
    _refuse_unknown("stop_token_ids", params.stop_token_ids, limits.vocabulary)
    _refuse_unknown("logit_bias", tuple(params.logit_bias), limits.vocabulary)
    for prompt in map(tuple, prompts):
        if len(prompt) >= limits.context:
            raise too_long(str(len(prompt)), limits.context, param)
        _refuse_unknown(param, prompt, limits.vocabulary)
        room = limits.context - len(prompt)
        most = min(params.max_tokens, room)
        own = replace(params, max_tokens=most, min_tokens=min(params.min_tokens, most))
        if len(prompt) + own.max_tokens > n_slots:
            raise too_long(f"{len(prompt)} and may get {own.max_tokens} more", n_slots, param)
        found += [Ask(prompt, own, sample) for sample in range(asked.n)]
    _refuse_many_scores(found)
    return tuple(found)


def _refuse_many_scores(asks: Sequence[Ask]) -> None:
    """Of the prompts of one request: they are there at once, and all of them are kept."""
    n_scores = sum(ask.n_prompt_scores for ask in asks)
    if n_scores > MOST_PROMPT_SCORES:
        message = f"{n_scores} log-probabilities of prompts, the limit is {MOST_PROMPT_SCORES}"
        advice = "ask for fewer alternatives or samples, or send fewer or shorter prompts"
        raise ApiError(400, f"{message}: {advice}", "logprobs")


def _echoing(
    tokenizer: Tokenizer, asked: CompletionRequest, asks: Sequence[Ask]
) -> tuple[Ask, ...]:
    """The same, each with the text of its prompt: as it was sent, or as its tokens spell it."""
    said: Any = [asked.prompt] if is_one_prompt(asked.prompt) else asked.prompt
    texts = [
        entry if isinstance(entry, str) else "".join(prompt_pieces(tokenizer, entry))
        for entry in said
    ]
    return tuple(replace(ask, echoed=texts[index // asked.n]) for index, ask in enumerate(asks))


def _refuse_unknown(name: str, ids: Sequence[int], vocabulary: int) -> None:
    largest = max(ids, default=0)
    if largest >= vocabulary:
        message = f"{name}: token id {largest} is outside the vocabulary of {vocabulary}"
        raise ApiError(400, message, name, "invalid_token_id")
