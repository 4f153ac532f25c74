"""What a request may say: strict types, bounds on both sides, unknown fields refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aerie.engine.params import SamplingParams
from aerie.server.problems import ApiError

Text = Annotated[str, Field(max_length=4 * 1024 * 1024)]
# One wrong id is enough: a complaint about each of a million takes twenty seconds.
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 21, fail_fast=True)
]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Stop | Annotated[list[Stop], Field(max_length=16)] | None
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
StopIds = Annotated[list[int], Field(max_length=48)]
MOST_TOKENS = 1 << 21
MOST_PROMPTS = 64


class Strict(BaseModel):
    """No conversion, no unknown field, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """Only with `stream`."""

    include_usage: bool = False


class ResponseFormat(Strict):
    """Text only: grammars are not served."""

    type: Literal["text"]


class Choosing(Strict):
    """How tokens are chosen: the same words and bounds in every form of a completion."""

    n: int = Field(1, ge=1, le=16)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=1 << 18)  # -1 and 0: off
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    stop: Stops = None
    ignore_eos: bool = False


class Sampling(Choosing):
    """What both of OpenAI's completions have in common."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field({}, max_length=1024)
    seed: Seed | None = None
    stop_token_ids: StopIds = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculative: bool = True  # False: without drafts; the same tokens
    show_rounds: bool = False  # with `stream`: every round's tree, as events named `round`
    response_format: ResponseFormat | None = None
    user: str | None = Field(None, max_length=256)  # taken, and used for nothing

    @property
    def has_usage(self) -> bool:
        """Whether a stream closes with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def params(self, max_tokens: int, logprobs: bool) -> SamplingParams:
        """The engine's own form."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={_token_id(name): bias for name, bias in self.logit_bias.items()},
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids),
            stop=stop,
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            speculative=self.speculative,
        )


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    prompt: Text | TokenIds | Annotated[list[Text | TokenIds], Field(max_length=MOST_PROMPTS)]
    # The chosen token's own; alternatives are not computed.
    logprobs: int | None = Field(None, ge=0, le=0)
    echo: Literal[False] = False


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=0)


class TokenizeRequest(Strict):
    """POST /tokenize."""

    model: str | None = None
    prompt: Text
    add_special_tokens: bool = True


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


class Problem(BaseModel):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str | None


class ProblemBody(BaseModel):
    """Every answer that is an error."""

    error: Problem


def is_one_prompt(prompt: object) -> bool:
    """A text or a list of ids; anything else is a list of prompts."""
    if not isinstance(prompt, list):
        return True
    return not prompt or isinstance(prompt[0], int)


def _token_id(name: str) -> int:
    if not name.isascii() or not name.isdigit() or len(name) > 9:
        raise ApiError(400, f"logit_bias: {name[:20]!r} is not a token id", "logit_bias")
    return int(name)
