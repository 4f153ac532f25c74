"""Complaints: the innermost field by its path, and words that say what to send."""

import json
import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from aerie.server import problems
from aerie.server.bodies import MOST_NAMES, MOST_NAMES_IN_ALL, BoundedRoute
from aerie.server.fields import ChatRequest, CompletionRequest


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    app.router.route_class = BoundedRoute
    problems.install(app)

    @app.post("/complete")
    async def complete(asked: CompletionRequest) -> str:
        return "taken"

    @app.post("/chat")
    async def chat(asked: ChatRequest) -> str:
        return "taken"

    return TestClient(app, raise_server_exceptions=False)


def nested(depth: int) -> Any:
    inner: Any = 1
    for _ in range(depth):
        inner = [inner]
    return inner


WRONG: dict[str, tuple[Any, str | None, str]] = {
    "inner field": ({"stream_options": {"x": 1}}, "stream_options.x", "does not honour"),
    "many stops": ({"stop": ["b"] * 17}, "stop", "at most 16 entries"),
    "a long stop": ({"stop": ["a", "b" * 257]}, "stop[1]", "at most 256 characters"),
    "many prompts": ({"prompt": ["a"] * 65}, "prompt", "at most 64 entries"),
    "a negative id": ({"prompt": [3, -1]}, "prompt[1]", "greater than or equal to 0"),
    "an id in a list": ({"prompt": ["a", [1, "x"]]}, "prompt[1][1]", "valid integer"),
    "no kind fits": ({"prompt": {}}, "prompt", "valid string or a valid list"),
    "nothing": ({"prompt": None}, "prompt", "valid string or a valid list"),
    "a bias": ({"logit_bias": {"5": "x"}}, "logit_bias.5", "valid number"),
    "deep": ({"prompt": nested(900)}, "prompt[0][0]", "valid integer"),
    "a long name": ({"x" * 5000: 1}, "x" * 120 + "…", "does not honour"),
    "a list": ([1], None, "body: Input should be a JSON object"),
    "many names": ({f"x{i}": 1 for i in range(MOST_NAMES)}, None, "names"),
    "many biases": ({"logit_bias": dict.fromkeys(map(str, range(3000)), 1)}, "logit_bias", "names"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_innermost_field_is_named(client: TestClient, name: str) -> None:
    body, param, words = WRONG[name]
    sent = {"prompt": "a", **body} if isinstance(body, dict) else body
    answer = client.post("/complete", json=sent)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and words in error["message"]
    assert len(error["message"]) < 600


def test_words_with_braces_are_told_as_they_are(client: TestClient) -> None:
    tool = {"type": "function", "function": {"name": "{a b}"}}
    messages = [{"role": "user", "content": "a"}]
    reply = client.post("/chat", json={"messages": messages, "tools": [tool]})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == "tools[0].function.name"
    assert "{1,64}" in error["message"]


def test_names_are_counted_before_they_are_parsed(client: TestClient) -> None:
    many = {"prompt": "a", "x": [{"y": 1}] * (MOST_NAMES_IN_ALL + 1)}
    error = client.post("/complete", json=many).json()["error"]
    assert f"at most {MOST_NAMES_IN_ALL} names" in error["message"]
    text = json.dumps({f"x{i}": 1 for i in range(MOST_NAMES_IN_ALL)})
    assert client.post("/complete", json={"prompt": text}).json() == "taken"


def test_a_missing_field_is_named(client: TestClient) -> None:
    error = client.post("/complete", json={}).json()["error"]
    assert error["param"] == "prompt" and "required" in error["message"]
    error = client.post("/chat", json={"messages": nested(50)}).json()["error"]
    assert error["param"] == "messages[0]"


def test_a_body_that_is_no_json_object_is_told_how_to_be_one(client: TestClient) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers in ({}, form, {"content-type": "text/plain"}):
        answer = client.post("/complete", content=b'{"prompt": "a"}', headers=headers)
        assert answer.status_code == 400
        assert "Content-Type: application/json" in answer.json()["error"]["message"]
    json_type = {"content-type": "application/json"}
    for content, words in (
        (b"", "empty"),
        (b"null", "JSON object"),
        (b'"a"', "JSON object"),
        (b'{"prompt"', "not JSON"),
        (b"[" * 10**5, "not JSON"),
    ):
        answer = client.post("/complete", content=content, headers=json_type)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [-1] * 300_000},
        {"prompt": [["x"] * 100_000] * 3},
        {"prompt": "a", "logit_bias": {str(i): "x" for i in range(100_000)}},
        {"prompt": "a", **{f"x{i}": 1 for i in range(100_000)}},
        {"prompt": "a", "stop": [1] * 300_000},
        {"prompt": "a", "stop_token_ids": ["x"] * 300_000},
    ],
    ids=["ids", "lists of ids", "biases", "names", "stops", "stop ids"],
)
def test_many_mistakes_cost_no_more_than_one(client: TestClient, body: Any) -> None:
    """Complaints about each of them took 4 to 20 seconds, and no other request was served."""
    content = json.dumps(body).encode()
    began = time.process_time()
    assert client.post(
        "/complete", content=content, headers={"content-type": "application/json"}
    ).is_client_error
    assert time.process_time() - began < 0.8


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (429, "rate_limit_error"), (503, "server_error")],
)
def test_the_kind_of_an_error_follows_its_status(status: int, kind: str) -> None:
    error = problems.ApiError(status, "x" * 10_000, "n", "code").body()["error"]
    assert isinstance(error, dict) and error["type"] == kind and len(error["message"]) < 600


def test_paths_of_this_machine_stay_here() -> None:
    words = problems.public_words("cannot read '/opt/models/x/config.json'\nsecond line")
    assert words == "cannot read '…'"
