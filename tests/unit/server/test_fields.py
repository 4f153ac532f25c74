"""Numbers of a request: what they become in the engine, and where their bounds are."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from aerie.engine.params import SamplingParams
from aerie.server.fields import EVERY_TOKEN, LEAST, CompletionRequest


def params(**said: Any) -> SamplingParams:
    return CompletionRequest.model_validate({"prompt": "a", **said}).params(4, logprobs=False)


@pytest.mark.parametrize("top_p", [0, 0.0, 1e-300, 9.9e-7])
def test_a_nucleus_below_every_probability_is_greedy(top_p: float) -> None:
    asked = params(top_p=top_p, temperature=0.7, seed=1)
    assert (asked.temperature, asked.top_p) == (0.0, 1.0)


def test_a_nucleus_at_the_bound_is_sampled() -> None:
    asked = params(top_p=LEAST, temperature=0.7)
    assert (asked.temperature, asked.top_p) == (0.7, LEAST)


@pytest.mark.parametrize("top_k", [-1, 0, EVERY_TOKEN, None])
def test_each_way_to_say_every_token_is_off(top_k: int | None) -> None:
    assert params(top_k=top_k).top_k == 0


def test_the_least_that_is_taken_is_far_from_nothing_in_float32() -> None:
    assert np.float32(LEAST) > 0 and np.float32(100) / np.float32(LEAST) < np.inf
    assert params(repetition_penalty=LEAST).repetition_penalty == LEAST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", 0),
        ("top_p", -1e-300),
        ("top_p", 1.1),
        ("temperature", -1e-300),
        ("top_k", EVERY_TOKEN + 1),
        ("top_k", True),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1 << 31]),
        ("logprobs", 1),
        ("max_tokens", 0),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as error:
        params(**{name: value})
    assert error.value.errors()[0]["loc"][0] == name
