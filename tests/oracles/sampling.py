"""The target's own token of one row, one token at a time: penalties, filters, noise, argmax."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.oracles.philox import gumbel, noise_word

GREEDY_BELOW = 1e-6
f32 = np.float32


@dataclass(frozen=True)
class Request:
    """What a request asks of its sampler; the defaults switch everything off."""

    temperature: float = 1.0
    seed: int = 0
    sample_index: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    bias: dict[int, float] = field(default_factory=dict)
    stops: Sequence[int] = ()
    floor: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def penalised(request: Request, logits: Sequence[float], path: Sequence[int]) -> list[np.float32]:
    """Repetition, frequency, presence and bias, every step rounded to float32."""
    said = Counter([*request.output, *path])
    seen = set(said) | set(request.prompt)
    values = []
    for token, logit in enumerate(logits):
        x = f32(logit)
        if token in seen:
            r = f32(request.repetition)
            x = x / r if x > 0 else x * r
        x = x - f32(f32(request.frequency) * f32(said[token]))
        if said[token]:
            x = x - f32(request.presence)
        values.append(f32(x + f32(request.bias.get(token, 0.0))))
    return values


def filtered(request: Request, values: Sequence[np.float32]) -> list[int]:
    """Ids that top-k, then top-p over what is left, then min-p keep; best first."""
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    kept = [token for token in order if values[token] > -math.inf]
    if request.top_k:
        kept = kept[: request.top_k]
    top = float(values[kept[0]])
    weights = [math.exp(float(values[token]) - top) for token in kept]
    total = sum(weights)
    before, inside = 0.0, []
    for token, weight in zip(kept, weights, strict=True):
        if before < float(f32(request.top_p)) and weight >= float(f32(request.min_p)):
            inside.append(token)
        before += weight / total
    return inside


def target_token(
    request: Request, logits: Sequence[float], path: Sequence[int], position: int
) -> int:
    """argmax of the filtered values plus their noise; the lowest id on ties."""
    values = penalised(request, logits, path)
    # Tokens are numbered by position: this one stands right behind `position`.
    if position + 1 < request.floor:
        values = [f32(-math.inf) if t in request.stops else x for t, x in enumerate(values)]
    if request.is_greedy:
        return max(range(len(values)), key=lambda token: (values[token], -token))
    values = [f32(value / f32(request.temperature)) for value in values]

    def noisy(token: int) -> tuple[np.float32, int]:
        word = noise_word(request.seed, position, request.sample_index, token)
        return f32(values[token] + f32(gumbel(word))), -token

    return max(filtered(request, values), key=noisy)


def probabilities(logits: Sequence[float], temperature: float) -> list[float]:
    """Softmax in the rounding of the contract; a one-hot row when greedy."""
    values = [f32(logit) for logit in logits]
    if temperature < GREEDY_BELOW:
        best = max(range(len(values)), key=lambda token: (values[token], -token))
        return [float(token == best) for token in range(len(values))]
    scaled = [f32(value / f32(temperature)) for value in values]
    top = max(scaled)
    weights = [math.exp(float(f32(value - top))) for value in scaled]
    total = math.fsum(weights)
    return [float(f32(weight / total)) for weight in weights]
