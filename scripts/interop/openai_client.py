"""OpenAI's own client against a server: completions and chats, whole and streamed.

python openai_client.py URL MODEL
"""

from __future__ import annotations

import sys

import openai
from checks import Checks, conclude

PROMPT = "def read_lines(path):\n"
MESSAGES = [{"role": "user", "content": "class Stack:\n    def __init__(self):\n"}]
# Fields that a program may well send and that ask for nothing.
NEUTRAL = {
    "metadata": {"team": "a"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "b",
    "safety_identifier": "c",
    "service_tier": "auto",
    "store": False,
    "tool_choice": "none",
    "tools": [],
    "user": "d",
}


def completions(client: openai.OpenAI, model: str) -> Checks:
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 32, "temperature": 0.8, "seed": 7}
    whole = client.completions.create(**asked)
    stream = list(
        client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    stopped = client.completions.create(**asked, stop=["\n"])
    several = client.completions.create(**{**asked, "prompt": [PROMPT, "x ="]}, n=2)
    likely = client.completions.create(**asked, logprobs=0).choices[0].logprobs
    nothing = client.completions.create(
        **asked, best_of=1, echo=False, suffix=None, logit_bias=None, user="d"
    )
    greedy = client.completions.create(**{**asked, "top_p": 0})
    return [
        ("a completion", whole.choices[0].text),
        ("its stream is the same text", text == whole.choices[0].text),
        ("its stream closes with usage", stream[-1].usage == whole.usage),
        ("a stop string ends it", "\n" not in stopped.choices[0].text),
        ("two prompts, two samples each", len(several.choices) == 4),
        ("log-probabilities", likely is not None and len(likely.token_logprobs or ()) == 32),
        ("fields that ask for nothing", nothing.choices == whole.choices),
        ("top_p of 0 is greedy", greedy.choices[0].text),
    ]


def chats(client: openai.OpenAI, model: str) -> Checks:
    asked = {"model": model, "messages": MESSAGES, "max_completion_tokens": 32, "seed": 7}
    whole = client.chat.completions.create(**asked)
    stream = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    nothing = client.chat.completions.create(**asked, **NEUTRAL)
    extra = whole.model_extra or {}
    speculation = extra["metrics"]["speculative_decoding"]
    return [
        ("a chat", whole.choices[0].message.content),
        ("its stream is the same text", "".join(pieces) == whole.choices[0].message.content),
        ("its stream closes with usage", stream[-1].usage == whole.usage),
        ("fields that ask for nothing", nothing.choices == whole.choices),
        ("acceptance length", speculation["mean_acceptance_length"]),
    ]


def scores(client: openai.OpenAI, model: str) -> Checks:
    """A prompt that is read again, and nothing written behind it."""
    asked = {"model": model, "prompt": "def add(a, b):", "max_tokens": 0, "logprobs": 1}
    (choice,) = client.completions.create(**asked, echo=True).choices
    own = choice.logprobs.token_logprobs
    return [
        ("a prompt is told again", choice.text == asked["prompt"]),
        ("its tokens are scored", own[0] is None and all(value <= 0 for value in own[1:])),
    ]


def refusals(client: openai.OpenAI, model: str) -> Checks:
    try:
        client.completions.create(model=model, prompt="a", best_of=2)
    except openai.BadRequestError as error:
        return [("best_of is refused by name", error.param == "best_of" and str(error))]
    return [("best_of is refused", False)]


def main() -> None:
    url, model = sys.argv[1:]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        served = [entry.id for entry in client.models.list()]
        results: Checks = [("the model is listed", model in served)]
        results.append(("the model is found by its name", client.models.retrieve(model).id))
        results += completions(client, model)
        results += chats(client, model)
        results += scores(client, model)
        results += refusals(client, model)
    conclude(results)


if __name__ == "__main__":
    main()
