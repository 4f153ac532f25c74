"""SamplingParams: what one request asks for, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from aerie.config.values import READERS, Reader, read_integer, read_number, require
from aerie.errors import UsageError
from aerie.text.grammar import Constraint

INT64 = 1 << 63
MAX_STOPS = 64  # stop ids of one request, as K7's card allows; the host clips at the others
MOST_LOGPROBS = 20  # alternatives of one token
# Penalties, biases and probabilities are computed in float32: what vanishes or overflows there
# would be another request than the one that was asked for.
LEAST, FLOAT32 = 1e-6, 3.4028234663852886e38


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    The same seed gives the same tokens whatever tree, batch or chunk size was used (in fast
    numerics: but for near ties, which are counted). Numbers may be NumPy's or torch's, lists any
    sequence, one stop string a plain string; None is the default.
    """

    max_tokens: int = 128
    temperature: float = 0.0  # below 1e-6 it is greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: drawn for the request, and reported with its result
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0  # no stop token before so many; stop strings count from the first
    logprobs: int | None = None  # of every token, and of so many alternatives; True: its own alone
    prompt_logprobs: int | None = None  # the same of the prompt, from its second token on
    n: int = 1
    grammar: Constraint | None = (
        None  # what the text must be like: `JsonSchema`, `Regex`, `Grammar`
    )
    speculative: bool = True  # False: no draft of its own is verified; the tokens are the same

    def __post_init__(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if isinstance(value, bool):
                object.__setattr__(self, name, 0 if value else None)
        for entry in fields(self):
            value, read = getattr(self, entry.name), _READERS[str(entry.type)]
            known = entry.default if value is None else read(entry.name, value)
            if value is None and entry.name == "logit_bias":
                known = {}
            object.__setattr__(self, entry.name, known)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            inside = value is None or low <= value <= high
            require(inside, f"{name} is {value!r}, limit {low}..{high}")
        is_scored = self.prompt_logprobs is not None
        require(
            self.max_tokens > 0 or is_scored, "max_tokens is 0, limit 1 without prompt_logprobs"
        )
        require(self.min_tokens <= self.max_tokens, "min_tokens is above max_tokens")
        if self.temperature < LEAST:
            object.__setattr__(self, "temperature", 0.0)
        require(all(self.stop), "a stop string is empty")

    @property
    def floor(self) -> int:
        """Tokens before which sampling allows no end; masks see to it where there is a grammar."""
        return 0 if self.grammar is not None else self.min_tokens

    @property
    def is_scoring(self) -> bool:
        """Whether nothing is generated: the prompt alone is scored."""
        return self.max_tokens == 0

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        neutral = (1.0, 0.0, 0.0)
        asked = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return asked != neutral


class _Bias(dict[int, float]):
    """A bias that was read: parameters of many prompts are copies of each other."""


def _read_bias(name: str, value: Any) -> _Bias:
    """Token id to bias; -inf forbids a token, every other bias must be a float32."""
    if isinstance(value, _Bias):
        return value
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r:.60}, must map token ids to numbers")
    found = {read_integer(f"a key of {name}", k): read_number(name, v) for k, v in value.items()}
    for token, bias in found.items():
        is_possible = bias == -math.inf or abs(bias) <= FLOAT32
        require(is_possible, f"{name} of token {token} is {bias}, beyond float32 or not a number")
    return _Bias(found)


def _read_grammar(name: str, value: Any) -> Constraint:
    if not isinstance(value, Constraint):
        known = "a JsonSchema, a Regex or a Grammar"
        raise UsageError(f"{name} is {value!r:.60}, must be {known} of aerie.text.grammar")
    return value


def _read_strings(name: str, value: Any) -> tuple[str, ...]:
    """One string, or several in any container."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise UsageError(f"{name} is {value!r:.60}, must be a string or a list of strings")
    found = tuple(value)
    for entry in found:
        require(isinstance(entry, str), f"an entry of {name} is {entry!r:.60}, must be a string")
    return found


_READERS: Mapping[str, Reader] = {
    **READERS,
    "Mapping[int, float]": _read_bias,
    "tuple[str, ...]": _read_strings,
    "Constraint | None": _read_grammar,
}

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 0, 1 << 21),
    ("min_tokens", 0, 1 << 21),
    ("logprobs", 0, MOST_LOGPROBS),
    ("prompt_logprobs", 0, MOST_LOGPROBS),
    ("temperature", 0.0, 100.0),
    ("top_k", 0, 1 << 18),
    ("top_p", LEAST, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", LEAST, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("seed", -INT64, INT64 - 1),
    ("n", 1, 128),
)
