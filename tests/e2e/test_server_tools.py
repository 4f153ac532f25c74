"""Tools over HTTP: loops of calls and results in every dialect, whole and streamed, with drafts.

The engine is the built-in pair with forced logits (`scripts/interop/scripted.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from aerie.server.app import build_app, build_service
from aerie.server.engine_loop import Loaded
from aerie.server.host import ThreadHost
from aerie.server.settings import ServerSettings
from aerie.server.worker import Worker
from scripts.interop.scripted import BROKEN, HELLO, MANNERS, conversation, scripted
from scripts.interop.tools import ANSWER, ARGUMENTS, QUESTION, RESULTS, TOOLS

PATH = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "tools": TOOLS}

LITTLE: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2, "drei"]}},
    "additionalProperties": False,
}


class Chats:
    """A served script, and the tokens that it says."""

    def __init__(self, dialect: str, client: TestClient, loaded: Loaded) -> None:
        self.dialect = dialect
        self.client = client
        self.loaded = loaded

    def ask(self, **said: Any) -> dict[str, Any]:
        reply = self.client.post(PATH, json={**ASKED, **said})
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def refused(self, **said: Any) -> tuple[str, str]:
        reply = self.client.post(PATH, json={**ASKED, **said})
        error = reply.json()["error"]
        assert reply.status_code == 400, reply.text
        return error["param"], error["message"]

    def stream(self, **said: Any) -> list[dict[str, Any]]:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        lines = self.client.post(PATH, json={**ASKED, **options, **said}).text.split("\n\n")
        assert lines[-2] == "data: [DONE]"
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    def n_tokens(self, messages: list[dict[str, Any]]) -> int:
        """Of what the script says to these."""
        prompt = self.loaded.template.render(messages, TOOLS)
        words = conversation(self.dialect, prompt)
        return len(self.loaded.engine.tokenizer.encode(words, add_special_tokens=False))


@pytest.fixture(scope="module", params=MANNERS)
def chats(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chats]:
    dialect: str = request.param
    folder: Path = tmp_path_factory.mktemp(dialect)
    loaded = scripted(dialect, lambda prompt: conversation(dialect, prompt), folder)
    with served(dialect, loaded) as own:
        yield own


@contextmanager
def served(dialect: str, loaded: Loaded) -> Iterator[Chats]:
    worker = Worker(ThreadHost(lambda: loaded), 100_000)
    app = build_app(build_service(worker, ServerSettings(name="scripted")))
    with TestClient(app, base_url="http://localhost") as client:
        until = time.monotonic() + 60
        while client.get("/health").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield Chats(dialect, client, loaded)


one_dialect = pytest.mark.parametrize("chats", ["hermes"], indirect=True)
channelled = pytest.mark.parametrize("chats", ["harmony"], indirect=True)


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream, put together as OpenAI's clients do: by index."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    assert call["id"] and call["type"] == "function"
                    assert call["function"]["name"] and call["function"]["arguments"] == ""
                    message["tool_calls"].append({**call["function"], "id": call["id"]})
                else:
                    assert call.keys() == {"index", "function"}
                    more = call["function"]["arguments"]
                    message["tool_calls"][call["index"]]["arguments"] += more
    return message


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """What is the same in a whole answer and in a stream: all but the calls' ids."""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content") or "",
        "tool_calls": [(call["name"], call["arguments"]) for call in calls],
    }


def test_a_loop_of_calls_and_results_ends_in_an_answer(chats: Chats) -> None:
    messages: list[dict[str, Any]] = list(ASKED["messages"])
    called: dict[str, Any] = {}
    for _ in range(4):
        whole = chats.ask(messages=messages, temperature=0.9, seed=5)
        stream = chats.stream(messages=messages, temperature=0.9, seed=5)
        (choice,) = whole["choices"]
        message, reason = choice["message"], choice["finish_reason"]
        assert plain(joined(stream)) == plain(message)
        assert stream[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert stream[-2]["choices"][0]["finish_reason"] == reason
        usage = whole["usage"]
        told = stream[-1]["usage"]
        assert told["completion_tokens"] == usage["completion_tokens"] == chats.n_tokens(messages)
        assert told["prompt_tokens"] == usage["prompt_tokens"]
        counts = whole["metrics"]["speculative_decoding"]
        assert counts["num_accepted_draft_tokens"] > 0
        assert counts["num_target_passes"] < usage["completion_tokens"]
        if not message.get("tool_calls"):
            break
        assert reason == "tool_calls"
        messages.append(message)
        for call in message["tool_calls"]:
            name = call["function"]["name"]
            called[name] = json.loads(call["function"]["arguments"])
            result = {"role": "tool", "tool_call_id": call["id"], "content": RESULTS[name]}
            messages.append(result)
    assert message["content"] == ANSWER and reason == "stop"
    assert called == ARGUMENTS
    if chats.dialect == "harmony":
        assert message["reasoning_content"] == "Easy."


def test_a_malformed_call_is_content(chats: Chats) -> None:
    messages = [{"role": "user", "content": "a broken one"}]
    (choice,) = chats.ask(messages=messages)["choices"]
    assert choice["message"]["content"] == BROKEN[chats.dialect]
    assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]


@channelled
def test_channels_are_the_same_without_drafts(chats: Chats) -> None:
    assert chats.client.get("/about").json()["chats"] == "harmony"
    for messages in (ASKED["messages"], [{"role": "user", "content": "a broken one"}]):
        for said in ({"reasoning_effort": "high"}, {"tools": [], "tool_choice": None}):
            own = {"messages": messages, **said}
            (drafted,) = chats.ask(**own)["choices"]
            plainly = chats.ask(**own, speculative=False)
            (choice,) = plainly["choices"]
            assert plainly["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
            assert plain(choice["message"]) == plain(drafted["message"])
            assert plain(joined(chats.stream(**own))) == plain(drafted["message"])
            assert choice["finish_reason"] == drafted["finish_reason"]


def test_without_a_parser_a_text_is_as_the_model_wrote_it(tmp_path: Path) -> None:
    def script(prompt: str) -> str:
        return conversation("harmony", prompt)

    loaded = replace(scripted("harmony", script, tmp_path), tool_parser="raw")
    with served("harmony", loaded) as chats:
        assert chats.client.get("/about").json()["chats"] == "template"
        (choice,) = chats.ask()["choices"]
        want = script(loaded.template.render(ASKED["messages"], TOOLS))
        assert choice["message"] == {"role": "assistant", "content": want, "refusal": None}
        assert joined(chats.stream())["content"] == want and choice["finish_reason"] == "stop"
        assert chats.refused(reasoning_effort="high")[0] == "reasoning_effort"


@one_dialect
def test_no_tools_no_calls(chats: Chats) -> None:
    for said in ({"tool_choice": "none"}, {"tools": [], "tool_choice": None}):
        (choice,) = chats.ask(**said)["choices"]
        assert choice["message"]["content"] == HELLO and choice["finish_reason"] == "stop"


@one_dialect
def test_one_call_of_each_of_two_samples_with_scores(chats: Chats) -> None:
    asked = {"n": 2, "logprobs": True, "parallel_tool_calls": False, "stop": ["never said"]}
    whole = chats.ask(**asked)
    calls = [call for own in whole["choices"] for call in own["message"]["tool_calls"]]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        ARGUMENTS["weather"]
    ] * 2
    assert calls[0]["id"] != calls[1]["id"]
    n_tokens = chats.n_tokens(ASKED["messages"])
    assert [len(own["logprobs"]["content"]) for own in whole["choices"]] == [n_tokens] * 2
    assert whole["usage"]["completion_tokens"] == 2 * n_tokens


@one_dialect
def test_a_call_that_is_cut_off_is_content(chats: Chats) -> None:
    (choice,) = chats.ask(max_tokens=24)["choices"]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]
    content = "I look.\n<tool_call>\n" + '{"name": "weather", "arguments": {"city": "'
    assert choice["message"]["content"].startswith(content)


@one_dialect
def test_a_call_that_must_be_made_is_made_and_streams_its_arguments(chats: Chats) -> None:
    pytest.importorskip("llguidance")
    named = {"type": "function", "function": {"name": "add"}}
    for choice, word, names in (("required", "both", ["weather", "add"]), (named, "add", ["add"])):
        messages = [{"role": "user", "content": f"You must call {word}."}]
        chunks = chats.stream(messages=messages, tool_choice=choice)
        calls = joined(chunks)["tool_calls"]
        assert [call["name"] for call in calls] == names
        assert [json.loads(call["arguments"]) for call in calls] == [ARGUMENTS[n] for n in names]
        assert len([c for c in chunks if c["choices"]]) > 2 + 3 * len(names)
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
        assert chunks[-1]["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0


@one_dialect
def test_no_script_is_needed_to_make_a_call(chats: Chats) -> None:
    """The script wants to talk, and the grammar lets it call alone."""
    pytest.importorskip("llguidance")
    tool = {"name": "add", "parameters": {**LITTLE, "required": ["a"]}}
    asked = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    messages = [{"role": "user", "content": "hello"}]
    whole = chats.ask(messages=messages, **asked, parallel_tool_calls=False, temperature=0)
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["a"] in LITTLE["properties"]["a"]["enum"]


@one_dialect
def test_what_cannot_be_is_refused_by_name(chats: Chats) -> None:
    named = {"type": "function", "function": {"name": "other"}}
    assert chats.refused(tools=[*TOOLS, TOOLS[1]])[0] == "tools"
    assert "'other'" in chats.refused(tool_choice=named)[1]
    assert chats.refused(tools=[], tool_choice="required")[0] == "tool_choice"
    assert chats.refused(tools=[{"type": "web_search"}])[0] == "tools[0].type"
    assert chats.refused(functions=[{"name": "f"}])[0] == "functions"
    assert chats.refused(response_format={"type": "json_object"})[0] == "response_format"
    listed = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
    assert chats.refused(tools=[listed])[0] == "tools[0].function.parameters.type"
    spaced = {"type": "function", "function": {"name": "a b"}}
    assert chats.refused(tools=[spaced])[0] == "tools[0].function.name"
    message = {"role": "assistant", "tool_calls": [{"function": {}}]}
    assert "messages[0].tool_calls[0]" in chats.refused(messages=[message])[1]
