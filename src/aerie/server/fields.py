"""What a request may say: strict types, bounds on both sides, unknown fields refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from aerie.requests.params import MOST_LOGPROBS, SamplingParams
from aerie.server.neutral import NEUTRAL, Values, is_neutral
from aerie.server.problems import ApiError
from aerie.server.structured import find_grammar
from aerie.server.tools import NamedTool, Tool, ToolChoice, Tools, check_tools
from aerie.text.grammar import Constraint

Text = Annotated[str, Field(max_length=4 * 1024 * 1024)]
# One wrong id is enough: a complaint about each of a million takes twenty seconds.
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 21, fail_fast=True)
]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Stop | Annotated[list[Stop], Field(max_length=16)] | None
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
StopIds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=1 << 12)]
Best = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]  # alternatives of a token
MOST_TOKENS = 1 << 21
MOST_PROMPTS = 64
LEAST = 1e-6  # of what is divided by or summed up to: far from what float32 takes for 0
EVERY_TOKEN = 1 << 30  # SGLang's own default of top_k
# -1, 0 and EVERY_TOKEN: off
TopK = Annotated[
    int,
    Field(ge=-1, le=1 << 18),
    BeforeValidator(lambda k: 0 if k == EVERY_TOKEN else k),
]


def _describe(schema: dict[str, Any]) -> None:
    """Say in the schema that null is taken; neutral fields are not told, there are too many."""
    null, own = {"type": "null"}, schema.get("properties", {})
    for name in own.keys() - set(schema.get("required", ())):
        if null not in own[name].get("anyOf", ()):
            own[name] = {"anyOf": [own[name], null]}


class Strict(BaseModel):
    """No conversion, no unknown field, no NaN; null means that nothing was said."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=_describe
    )
    neutral: ClassVar[Mapping[str, Values]] = {}

    @model_validator(mode="before")
    @classmethod
    def _pass_over(cls, said: Any) -> Any:
        """Leave out what asks for nothing."""
        if not isinstance(said, dict):
            return said
        return {name: value for name, value in said.items() if not cls._asks_nothing(name, value)}

    @classmethod
    def _asks_nothing(cls, name: str, value: object) -> bool:
        own = cls.model_fields.get(name)
        if own is not None:
            return value is None and not own.is_required()
        return name in cls.neutral and is_neutral(value, cls.neutral[name])


class StreamOptions(Strict):
    """Only with `stream`."""

    neutral: ClassVar[Mapping[str, Values]] = {"include_obfuscation": (False,)}

    include_usage: bool = False
    continuous_usage_stats: bool = False  # in every chunk: what its choice has taken so far


class Choosing(Strict):
    """How tokens are chosen: the same words and bounds in every form of a completion."""

    neutral: ClassVar[Mapping[str, Values]] = NEUTRAL

    n: int = Field(1, ge=1, le=16)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)  # below LEAST one token is left: greedy
    top_k: TopK = 0
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=LEAST, le=10)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field({}, max_length=1024)
    stop: Stops = None
    ignore_eos: bool = False


class Structured(Choosing):
    """What a text must be like; one of these at most."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None  # vLLM's, and what it was called before:
    guided_json: dict[str, Any] | Text | None = None
    guided_regex: Text | None = None
    guided_grammar: Text | None = None
    guided_choice: Annotated[list[Text], Field(max_length=1024)] | None = None

    def find_grammar(self) -> Constraint | None:
        """The one that is asked for."""
        names = Structured.model_fields.keys() - Choosing.model_fields.keys()
        return find_grammar({name: getattr(self, name) for name in sorted(names)})


class Sampling(Structured):
    """What both of OpenAI's completions have in common."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    seed: Seed | None = None
    stop_token_ids: StopIds = []
    min_tokens: int = Field(0, ge=0, le=MOST_TOKENS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculative: bool = (
        True  # False: without drafts; the same tokens, fast numerics up to near ties
    )
    show_rounds: bool = False  # with `stream`: every round's tree, as events named `round`

    @property
    def usage(self) -> StreamOptions:
        """What a stream says about its usage."""
        return self.stream_options or StreamOptions()

    @property
    def n_best(self) -> int | None:
        """Alternatives of every token to tell with its log-probability; None: nothing of that."""
        return None

    @property
    def n_best_of_prompt(self) -> int | None:
        """The same of the prompt's tokens."""
        return None

    def check(self) -> None:
        """Refuse what fits no other field; each has its bounds already."""
        if self.show_rounds and not self.stream:
            raise ApiError(400, "show_rounds needs stream", "show_rounds")

    def params(self, max_tokens: int) -> SamplingParams:
        """The engine's own form."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        is_greedy = self.top_p < LEAST
        n_best_of_prompt = self.n_best_of_prompt
        if max_tokens == 0 and n_best_of_prompt is None:
            n_best_of_prompt = 0  # the engine generates nothing only to score a prompt
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if is_greedy else self.temperature,
            top_k=max(self.top_k, 0),
            top_p=1.0 if is_greedy else self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={_token_id(name): bias for name, bias in self.logit_bias.items()},
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids),
            stop=stop,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            logprobs=self.n_best,
            prompt_logprobs=n_best_of_prompt,
            grammar=self.find_grammar(),
            speculative=self.speculative,
        )


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    # A beginning-of-text token is added where the tokenizer has one.
    neutral: ClassVar[Mapping[str, Values]] = {**NEUTRAL, "add_special_tokens": (True,)}

    prompt: Text | TokenIds | Annotated[list[Text | TokenIds], Field(max_length=MOST_PROMPTS)]
    max_tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)  # 0: the prompt is read alone
    logprobs: Best | None = None
    prompt_logprobs: Best | None = None
    echo: bool = False  # the prompt before the completion, scored if `logprobs` are asked for

    @property
    def n_best(self) -> int | None:
        """As many as were asked for."""
        return self.logprobs

    @property
    def n_best_of_prompt(self) -> int | None:
        """What either field asks for; each is told its own number."""
        asked = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((n_best for n_best in asked if n_best is not None), default=None)

    def check(self) -> None:
        """As vLLM does: what it says of a prompt is no part of a stream."""
        super().check()
        if self.prompt_logprobs is not None and self.stream:
            message = "prompt_logprobs does not go with stream: leave one of them out, or use echo"
            raise ApiError(400, message, "prompt_logprobs")


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    # The template writes all there are.
    neutral: ClassVar[Mapping[str, Values]] = {**NEUTRAL, "add_special_tokens": (False,)}

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    tools: Tools = []
    tool_choice: ToolChoice | None = None  # None: auto
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "low", "medium", "high"] | None = None
    logprobs: bool = False
    top_logprobs: Best = 0

    @property
    def n_best(self) -> int | None:
        """None unless `logprobs` is true."""
        return self.top_logprobs if self.logprobs else None

    @property
    def effort(self) -> str | None:
        """How much the model is to think; None: nothing was said, which `none` is too."""
        return None if self.reasoning_effort == "none" else self.reasoning_effort

    @property
    def offered(self) -> dict[str, Tool]:
        """Tools that may be called, by name."""
        chosen = () if self.tool_choice == "none" else self.tools
        return {tool.function.name: tool for tool in chosen}

    @property
    def forced(self) -> dict[str, Tool]:
        """Tools of which one must be called; none: none must."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return {choice.function.name: self.offered[choice.function.name]}
        return self.offered if choice == "required" else {}

    def check(self) -> None:
        """As OpenAI does: no alternatives without the token's own, no choice without tools."""
        super().check()
        check_tools(self.tools, self.tool_choice)
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")


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
