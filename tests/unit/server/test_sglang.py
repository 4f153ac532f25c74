"""SGLang's form of a request: one prompt or several, options for all or for each."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from aerie.config import EngineConfig
from aerie.requests.params import SamplingParams
from aerie.server.problems import ApiError
from aerie.server.samples import Ask
from aerie.server.sglang import GenerateRequest, server_info


def asked(**said: Any) -> GenerateRequest:
    return GenerateRequest.model_validate(said)


def asks(*sample_indices: int) -> list[Ask]:
    return [Ask((1,), SamplingParams(), index) for index in sample_indices]


def test_options_for_each_prompt_make_a_completion_of_each() -> None:
    first, second = asked(
        text=["a", "b"],
        sampling_params=[{"max_new_tokens": 3, "temperature": 0, "sampling_seed": 9}, {"n": 2}],
        return_logprob=True,
    ).completions()
    assert (first.prompt, first.max_tokens, first.temperature, first.seed) == ("a", 3, 0, 9)
    assert (second.prompt, second.max_tokens, second.n, second.seed) == ("b", 128, 2, None)
    assert first.logprobs == second.logprobs == 0


def test_options_for_all_prompts_make_one_completion() -> None:
    (only,) = asked(input_ids=[[1], [2, 3]], sampling_params={"top_k": 1 << 30}).completions()
    assert only.prompt == [[1], [2, 3]] and only.top_k == 0


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["a", "b"], "rid": ["x", "y", "z"]}, "rid"),
        ({"input_ids": [1], "rid": ["x"]}, "rid"),
    ],
)
def test_lists_that_do_not_fit_are_refused_by_name(said: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        asked(**said).completions()
    assert (error.value.status, error.value.param) == (400, param)


def test_names_are_the_clients_own() -> None:
    assert asked(text="a", rid="mine").names(asks(0)) == ("mine",)
    several = asked(text=["a", "b"], rid=["x", "y"], sampling_params={"n": 2})
    assert several.names(asks(0, 1, 0, 1)) == ("x", "x", "y", "y")
    numbered = asked(text="a", rid="mine", sampling_params={"n": 2})
    assert numbered.names(asks(0, 1)) == ("mine_0", "mine_1")
    made_up = asked(text=["a", "b"]).names(asks(0, 0))
    assert len(set(made_up)) == 2 and all(made_up)


def test_acceptance_length_is_that_of_all_requests_so_far() -> None:
    registry = CollectorRegistry()
    drafts = Counter("aerie_spec_decode_num_drafts", "rounds", registry=registry)
    accepted = Counter("aerie_spec_decode_num_accepted_tokens", "tokens", registry=registry)
    limits = SimpleNamespace(context=8)
    facts: Any = SimpleNamespace(config=EngineConfig(), limits=limits, n_pages=2, page_size=16)

    def told() -> list[dict[str, Any]]:
        return server_info("a-name", facts, registry)["internal_states"]

    assert told() == [{"avg_spec_accept_length": None}]
    drafts.inc(8)
    assert told() == [{"avg_spec_accept_length": 1.0}]
    accepted.inc(20)
    assert told() == [{"avg_spec_accept_length": 3.5}]
