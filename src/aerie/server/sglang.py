"""SGLang's own form of a completion: `/generate`, with `meta_info` where its tools look."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

import aerie
from aerie.api import Completion, Engine
from aerie.server.answers import speculation
from aerie.server.fields import (
    MOST_PROMPTS,
    MOST_TOKENS,
    Choosing,
    CompletionRequest,
    Seed,
    StopIds,
    Strict,
    Text,
    TokenIds,
    is_one_prompt,
)
from aerie.server.problems import ApiError
from aerie.server.samples import Ask, Piece


class SglangSampling(Choosing):
    """`sampling_params`."""

    max_new_tokens: int = Field(128, ge=1, le=MOST_TOKENS)
    stop_token_ids: StopIds | None = None
    sampling_seed: Seed | None = None


class GenerateRequest(Strict):
    """POST /generate."""

    text: Text | Annotated[list[Text], Field(max_length=MOST_PROMPTS)] | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Field(max_length=MOST_PROMPTS)] | None = None
    sampling_params: SglangSampling = Field(
        default_factory=lambda: SglangSampling.model_validate({})
    )
    return_logprob: bool = False
    stream: bool = False

    def completion(self) -> CompletionRequest:
        """The same, as the engine's other clients say it."""
        prompt = self._prompt
        if prompt is None or (self.text is not None and self.input_ids is not None):
            raise ApiError(400, "give text or input_ids, one of the two", "text")
        own = self.sampling_params.model_dump(exclude={"max_new_tokens", "sampling_seed"})
        return CompletionRequest.model_validate(
            {
                **own,
                "stop_token_ids": own["stop_token_ids"] or [],
                "prompt": prompt,
                "seed": self.sampling_params.sampling_seed,
                "stream": self.stream,
                "logprobs": 0 if self.return_logprob else None,
            }
        )

    @property
    def is_one(self) -> bool:
        """One object is answered, not a list."""
        return is_one_prompt(self._prompt) and self.sampling_params.n == 1

    @property
    def _prompt(self) -> object:
        return self.text if self.text is not None else self.input_ids


@dataclass(frozen=True)
class SglangAnswer:
    """Text and ids grow from chunk to chunk: SGLang streams what there is, not what was added."""

    id: str
    asks: tuple[Ask, ...]
    is_one: bool
    began: float = field(default_factory=time.monotonic)
    so_far: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def body(self, completions: Sequence[Completion]) -> Any:
        """Everything at once."""
        found = [self._whole(index, completion) for index, completion in enumerate(completions)]
        return found[0] if self.is_one else found

    def openings(self) -> list[dict[str, Any]]:
        """Nothing is said before there is text."""
        return []

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """All of a sample until now."""
        text, ids = self.so_far.get(piece.index, ("", ()))
        text, ids = text + piece.text, ids + piece.token_ids
        self.so_far[piece.index] = (text, ids)
        info = {**self._info(piece.index, len(ids)), "finish_reason": None}
        return {"index": piece.index, "text": text, "output_ids": list(ids), "meta_info": info}

    def last(self, index: int, completion: Completion) -> dict[str, Any]:
        """The whole sample and what it took."""
        return {"index": index, **self._whole(index, completion)}

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
        if completion.logprobs is not None:
            pairs = zip(completion.logprobs, ids, strict=True)
            info["output_token_logprobs"] = [[value, token_id, None] for value, token_id in pairs]
        return {"text": completion.text, "output_ids": ids, "meta_info": info}

    def _info(self, index: int, n_tokens: int) -> dict[str, Any]:
        n_prompt = len(self.asks[index].prompt)
        return {"id": self.id, "prompt_tokens": n_prompt, "completion_tokens": n_tokens}


def server_info(name: str, engine: Engine) -> dict[str, Any]:
    """GET /server_info: what SGLang's tools read of a server's configuration."""
    config, core = engine.core.config, engine.core
    speculation = config.speculation
    limits = speculation.limits
    is_off = speculation.method == "none"
    return {
        "version": aerie.__version__,
        "served_model_name": name,
        "context_length": core.limits.context,
        "max_running_requests": config.scheduler.max_batch,
        "max_total_num_tokens": core.parts.memory.ledger.n_slots,
        "speculative_algorithm": None if is_off else speculation.method.upper(),
        "speculative_policy": speculation.chosen_policy,
        "speculative_num_steps": None if is_off else limits.depth,
        "speculative_eagle_topk": None if is_off else limits.top_k,
        "speculative_num_draft_tokens": None if is_off else limits.nodes,
    }
