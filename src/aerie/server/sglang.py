"""SGLang's own form of a completion: `/generate`, with `meta_info` where its tools look."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from prometheus_client import CollectorRegistry
from pydantic import Field

import aerie
from aerie.completion import Completion
from aerie.server.answers import speculation
from aerie.server.fields import (
    MOST_PROMPTS,
    MOST_TOKENS,
    Best,
    Choosing,
    CompletionRequest,
    Seed,
    StopIds,
    Strict,
    Text,
    TokenIds,
    is_one_prompt,
)
from aerie.server.neutral import NEUTRAL, Values
from aerie.server.problems import ApiError
from aerie.server.samples import Ask, Facts, Piece
from aerie.server.scores import sglang_logprobs

Name = Annotated[str, Field(max_length=256)]


class SglangSampling(Choosing):
    """`sampling_params`."""

    max_new_tokens: int = Field(128, ge=0, le=MOST_TOKENS)
    min_new_tokens: int = Field(0, ge=0, le=MOST_TOKENS)
    stop_token_ids: StopIds = Field([])
    sampling_seed: Seed | None = None
    json_schema: Text | None = None
    regex: Text | None = None
    ebnf: Text | None = None


class GenerateRequest(Strict):
    """POST /generate."""

    neutral: ClassVar[Mapping[str, Values]] = NEUTRAL

    text: Text | Annotated[list[Text], Field(max_length=MOST_PROMPTS)] | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Field(max_length=MOST_PROMPTS)] | None = None
    # A list has one for each prompt.
    sampling_params: (
        SglangSampling | Annotated[list[SglangSampling], Field(max_length=MOST_PROMPTS)]
    ) = Field(default_factory=lambda: SglangSampling.model_validate({}))
    rid: Name | Annotated[list[Name], Field(max_length=MOST_PROMPTS)] | None = None
    return_logprob: bool = False
    # From which token of the prompt on; -1: of the output alone. Nothing without return_logprob.
    logprob_start_len: int = Field(-1, ge=-1, le=MOST_TOKENS)
    top_logprobs_num: Best = 0
    stream: bool = False

    def completions(self) -> list[CompletionRequest]:
        """The same, as the engine's other clients say it: one, or one for each prompt."""
        if (self.text is None) == (self.input_ids is None):
            raise ApiError(400, "give text or input_ids, one of the two", "text")
        if self.top_logprobs_num and not self.return_logprob:
            raise ApiError(400, "top_logprobs_num needs return_logprob", "top_logprobs_num")
        prompt: Any = self._prompt
        n_prompts = None if is_one_prompt(prompt) else len(prompt)
        for name in ("sampling_params", "rid"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != n_prompts:
                message = f"{name} is a list of {len(value)}: give one entry for each of the list"
                raise ApiError(400, f"{message} of prompts, or no list", name)
        if not isinstance(self.sampling_params, list):
            return [self._completion(prompt, self.sampling_params)]
        return list(map(self._completion, prompt, self.sampling_params))

    def _completion(self, prompt: object, sampling: SglangSampling) -> CompletionRequest:
        own = sampling.model_dump(include=set(Choosing.model_fields) | {"stop_token_ids"})
        n_best = self.top_logprobs_num if self.return_logprob else None
        return CompletionRequest.model_validate(
            {
                **own,
                "prompt": prompt,
                "max_tokens": sampling.max_new_tokens,
                "min_tokens": sampling.min_new_tokens,
                "seed": sampling.sampling_seed,
                "guided_json": sampling.json_schema,
                "guided_regex": sampling.regex,
                "guided_grammar": sampling.ebnf,
                "stream": self.stream,
                "logprobs": n_best,
                "prompt_logprobs": None if self.logprob_start_len < 0 else n_best,
            }
        )

    def scored_from(self, asks: Sequence[Ask]) -> int | None:
        """The first token of each prompt that is told with a score; None: the output's alone."""
        start = self.logprob_start_len
        if start < 0 or not self.return_logprob:
            return None
        shortest = min(len(ask.prompt) for ask in asks)
        if start >= shortest:
            message = f"logprob_start_len is {start}, a prompt has {shortest} tokens: begin earlier"
            raise ApiError(400, message, "logprob_start_len")
        return start

    def names(self, asks: Sequence[Ask]) -> tuple[str, ...]:
        """What `meta_info.id` calls each sample: by `rid`, else by a name of its own."""
        given = uuid.uuid4().hex if self.rid is None else self.rid
        if self.is_one and isinstance(given, str):
            return (given,)
        if isinstance(given, str):
            return tuple(f"{given}_{index}" for index in range(len(asks)))
        starts = itertools.accumulate(ask.sample_index == 0 for ask in asks)
        return tuple(given[n_prompts - 1] for n_prompts in starts)

    @property
    def is_one(self) -> bool:
        """One object is answered, not a list."""
        is_single = isinstance(self.sampling_params, SglangSampling) and self.sampling_params.n == 1
        return is_one_prompt(self._prompt) and is_single

    @property
    def _prompt(self) -> object:
        return self.text if self.text is not None else self.input_ids


@dataclass(frozen=True)
class SglangAnswer:
    """Text and ids grow from chunk to chunk: SGLang streams what there is, not what was added."""

    names: tuple[str, ...]  # of the samples
    asks: tuple[Ask, ...]
    is_one: bool
    start: int | None = None  # of the prompt's tokens that are told with their scores
    began: float = field(default_factory=time.monotonic)
    so_far: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def body(self, completions: Sequence[Completion]) -> Any:
        """Everything at once."""
        found = [self._whole(index, completion) for index, completion in enumerate(completions)]
        return found[0] if self.is_one else found

    def openings(self) -> list[dict[str, Any]]:
        """Nothing is said before there is text."""
        return []

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """All of a sample until now; nothing where no more can be shown than before."""
        text, ids = self.so_far.get(piece.index, ("", ()))
        text, ids = text + piece.text, ids + piece.token_ids
        self.so_far[piece.index] = (text, ids)
        if not piece.text and not piece.scored:
            return []
        info = {**self._info(piece.index, len(ids)), "finish_reason": None}
        return [{"index": piece.index, "text": text, "output_ids": list(ids), "meta_info": info}]

    def lasts(self, index: int, completion: Completion) -> list[dict[str, Any]]:
        """The whole sample and what it took."""
        return [{"index": index, **self._whole(index, completion)}]

    def closings(self, completions: Sequence[Completion]) -> list[dict[str, Any]]:
        """Every last chunk has said it already."""
        return []

    def _whole(self, index: int, completion: Completion) -> dict[str, Any]:
        statistics = completion.statistics
        counts = speculation([statistics])
        ids = list(completion.token_ids)
        ended: dict[str, Any] = {"type": completion.finish_reason}
        if completion.finish_reason == "length":
            ended["length"] = len(ids)
        info = {
            **self._info(index, len(ids)),
            "finish_reason": ended,
            "cached_tokens": statistics.reused_tokens,
            "e2e_latency": round(time.monotonic() - self.began, 6),
            "spec_verify_ct": statistics.target_passes,
            "spec_accept_length": counts["mean_acceptance_length"],
            "spec_accept_rate": counts["draft_acceptance_rate"],
            "spec_accept_token_num": counts["num_accepted_draft_tokens"],
            "spec_draft_token_num": counts["num_draft_tokens"],
        }
        info |= self._scores(index, completion)
        return {"text": completion.text, "output_ids": ids, "meta_info": info}

    def _scores(self, index: int, completion: Completion) -> dict[str, Any]:
        """Of the prompt from `start` on, whose first token has none here, and of the output."""
        if completion.logprobs is None:
            return {}
        has_best = bool(self.asks[index].params.logprobs)
        ids, found = self.asks[index].prompt, {}
        if self.start is not None:
            scores = (None, *(completion.prompt_logprobs or ())[self.start :])
            found = sglang_logprobs("input", ids[self.start :], scores, has_best)
        own = sglang_logprobs("output", completion.token_ids, completion.logprobs, has_best)
        return found | own

    def _info(self, index: int, n_tokens: int) -> dict[str, Any]:
        n_prompt = len(self.asks[index].prompt)
        name = self.names[index]
        return {"id": name, "prompt_tokens": n_prompt, "completion_tokens": n_tokens}


def server_info(name: str, facts: Facts, counted: CollectorRegistry) -> dict[str, Any]:
    """GET /server_info: what SGLang's tools read of a server's configuration."""
    speculation = facts.config.speculation
    limits = speculation.limits
    is_off = speculation.method == "none"
    return {
        "version": aerie.__version__,
        "served_model_name": name,
        "context_length": facts.limits.context,
        "max_running_requests": facts.config.scheduler.max_batch,
        "max_total_num_tokens": facts.n_pages * facts.page_size,
        "speculative_algorithm": None if is_off else speculation.method.upper(),
        "speculative_policy": speculation.chosen_policy,
        "speculative_num_steps": None if is_off else limits.depth,
        "speculative_eagle_topk": None if is_off else limits.top_k,
        "speculative_num_draft_tokens": None if is_off else limits.nodes,
        "internal_states": [{"avg_spec_accept_length": _acceptance_length(counted)}],
    }


def _acceptance_length(counted: CollectorRegistry) -> float | None:
    """Of every request that has ended, the bonus token included; None before the first draft."""
    drafts = counted.get_sample_value("aerie_spec_decode_num_drafts_total")
    accepted = counted.get_sample_value("aerie_spec_decode_num_accepted_tokens_total")
    return round(1 + accepted / drafts, 4) if drafts and accepted is not None else None
