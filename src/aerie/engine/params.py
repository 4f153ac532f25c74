"""SamplingParams: what one request asks for, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from aerie.config import require


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    The same seed gives the same tokens whatever tree, batch or chunk size was used.
    """

    max_tokens: int = 128
    temperature: float = 0.0
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
    logprobs: bool = False
    n: int = 1
    speculative: bool = True  # False: no draft of its own is verified; the tokens are the same

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            inside = isinstance(value, int | float) and low <= value <= high
            require(inside, f"{name} is {value!r}, limit {low}..{high}")
        require(self.top_p > 0, f"top_p is {self.top_p}, must be above 0")
        require(self.repetition_penalty > 0, "repetition_penalty must be above 0")
        require(len(self.stop_token_ids) <= 48, "at most 48 stop_token_ids")
        require(all(self.stop), "a stop string is empty")
        require(
            all(not math.isnan(bias) and bias < math.inf for bias in self.logit_bias.values()),
            "a logit_bias is NaN or +inf",
        )

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        neutral = (1.0, 0.0, 0.0)
        asked = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return asked != neutral


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 1, 1 << 21),
    ("temperature", 0.0, 100.0),
    ("top_k", 0, 1 << 18),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.0, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("n", 1, 128),
)
