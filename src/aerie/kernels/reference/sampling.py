"""One request's sampling rules: penalties, bias, temperature, filters, keyed noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.kernels.cards.verdict import GREEDY_TEMPERATURE, POSSIBLE, Sampled
from aerie.kernels.noise import gumbel
from aerie.kernels.numpy_types import Bools, Floats, Ints

# What an absent option means.
_OFF: dict[str, Any] = {
    "sample_index": 0,
    "top_k": 0,
    "top_p": np.float32(1.0),
    "min_p": np.float32(0.0),
    "repetition_penalty": np.float32(1.0),
    "presence_penalty": np.float32(0.0),
    "frequency_penalty": np.float32(0.0),
}


@dataclass(frozen=True)
class Sampler:
    """The options of one request, every absent one at its neutral value."""

    temperature: np.float32
    seed: int | None
    options: Mapping[str, Any]
    prompt_counts: Ints | None
    output_counts: Ints | None
    logit_bias: Floats | None
    stop_tokens: Ints | None
    floor_position: int

    @classmethod
    def of_request(cls, b: int, call: Sampled) -> Sampler:
        """Pick request b's entry of every option that was given."""

        def own(name: str, neutral: Any = None) -> Any:
            array = getattr(call, name)
            return neutral if array is None else array[b]

        return cls(
            temperature=call.temperature[b],
            seed=own("seed"),
            options={name: own(name, neutral) for name, neutral in _OFF.items()},
            prompt_counts=own("prompt_counts"),
            output_counts=own("output_counts"),
            logit_bias=own("logit_bias"),
            stop_tokens=own("stop_tokens"),
            floor_position=int(own("floor_position", 0)),
        )

    def is_greedy(self) -> bool:
        """Whether the token is the plain argmax."""
        return bool(self.temperature < np.float32(GREEDY_TEMPERATURE))

    def is_possible(self) -> bool:
        """Whether every option lies in its range; NaN fails each comparison."""
        return bool(
            0 <= self.temperature < np.inf
            and (self.is_greedy() or self.seed is not None)
            and all(rule(self.options[name]) for name, rule in POSSIBLE.items())
        )

    def adjust(self, logits: Floats, path: list[int], position: int) -> Floats:
        """Penalties over committed and path tokens, bias, floor and temperature, in float32."""
        produced = np.zeros(len(logits), np.int64)
        if self.output_counts is not None:
            produced += self.output_counts
        for token in path:
            produced[token] += 1
        seen = produced > 0
        if self.prompt_counts is not None:
            seen |= self.prompt_counts > 0
        repetition = self.options["repetition_penalty"]
        with np.errstate(over="ignore", invalid="ignore"):
            scores = logits.copy()
            penalised = np.where(scores > 0, scores / repetition, scores * repetition)
            scores = np.where(seen, penalised, scores)
            scores = scores - self.options["frequency_penalty"] * produced.astype(np.float32)
            scores = scores - np.where(
                produced > 0, self.options["presence_penalty"], np.float32(0)
            )
            if self.logit_bias is not None:
                scores = scores + self.logit_bias
            if self.stop_tokens is not None and position + 1 < self.floor_position:
                stops = self.stop_tokens
                scores[stops[(stops >= 0) & (stops < len(scores))]] = -np.inf
            return scores if self.is_greedy() else scores / self.temperature

    def choose(self, scores: Floats, position: int) -> int:
        """Filter, add the noise of (seed, position), take the best; lowest id on ties."""
        sums = self._with_noise(scores, position)
        return int(np.argmax(np.where(self._filter(scores), sums, -np.inf)))

    def is_near_tie(self, scores: Floats, token: int, position: int, reach: np.float32) -> bool:
        """Whether another id that is kept comes as close to the token's sum as `reach`."""
        sums = self._with_noise(scores, position)
        with np.errstate(over="ignore", invalid="ignore"):
            is_close = (sums >= sums[token] - reach) & (sums <= sums[token]) & (sums > -np.inf)
        is_close[token] = False
        return bool((is_close & self._filter(scores)).any())

    def reach(self, logit: np.float32, limit: np.float32) -> np.float32:
        """What a logit may move among the scores, by the power of two below its size."""
        power = (logit.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return limit * power if self.is_greedy() else limit * power / self.temperature

    def _with_noise(self, scores: Floats, position: int) -> Floats:
        if self.is_greedy():
            return scores
        assert self.seed is not None
        noise = gumbel(len(scores), int(self.seed), position, int(self.options["sample_index"]))
        with np.errstate(over="ignore", invalid="ignore"):
            return scores + noise

    def _filter(self, scores: Floats) -> Bools:
        kept = np.ones(len(scores), np.bool_)
        if self.is_greedy():
            return kept
        order = np.argsort(-scores, kind="stable")
        top_k = int(self.options["top_k"])
        if 0 < top_k < len(scores):
            kept[order[top_k:]] = False
        with np.errstate(over="ignore", invalid="ignore"):
            mass = np.exp((scores - scores.max()).astype(np.float64))
        if self.options["top_p"] < 1:
            in_order = np.where(kept, mass, 0.0)[order]
            running = np.cumsum(in_order)
            before = np.concatenate([[0.0], running[:-1]])
            kept[order] &= before < float(self.options["top_p"]) * running[-1]
        if self.options["min_p"] > 0:
            kept &= mass >= float(self.options["min_p"])
        return kept
