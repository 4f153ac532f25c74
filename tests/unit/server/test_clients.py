"""What clients of other servers send, through the whole application, with the built-in pair."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from aerie import Engine
from aerie.server.app import build_app, build_service
from aerie.server.engine_loop import Loaded
from aerie.server.fields import ChatRequest, CompletionRequest
from aerie.server.host import ThreadHost
from aerie.server.settings import ServerSettings
from aerie.server.sglang import GenerateRequest, SglangSampling
from aerie.server.worker import Worker
from aerie.text.chat import compile_chat_template
from tests.unit.server.test_neutral import examples, passed_over

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
PROMPT = "def read_lines(path):\n"
MESSAGES = [{"role": "user", "content": "a"}]
SAMPLED = {"temperature": 0.8, "seed": 3, "max_tokens": 12}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    engine = Engine.load(speculation={"top_k": 1, "depth": 3, "nodes": 4})
    template = compile_chat_template({"default": TEMPLATE}, {}, "a test")
    worker = Worker(ThreadHost(lambda: Loaded(engine, template)), 100_000)
    app = build_app(build_service(worker, ServerSettings()))
    with TestClient(app, base_url="http://localhost") as found:
        until = time.monotonic() + 60
        while found.get("/health").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield found


def ask(client: TestClient, path: str, **said: Any) -> Any:
    reply = client.post(path, json=said)
    assert reply.status_code == 200, reply.text
    return reply.json()


def neutral(form: Any) -> dict[str, Any]:
    """Each field of other servers, at the last of its neutral values."""
    return {name: examples(values)[-1] for name, values in passed_over(form).items()}


def test_everything_neutral_at_once_changes_no_token(client: TestClient) -> None:
    plain = ask(client, "/v1/completions", prompt=PROMPT, **SAMPLED)
    said = neutral(CompletionRequest)
    assert len(said) > 150
    full = ask(client, "/v1/completions", prompt=PROMPT, **SAMPLED, **said)
    assert full["choices"] == plain["choices"]
    messages = [{"role": "user", "content": PROMPT}]
    plain = ask(client, "/v1/chat/completions", messages=messages, **SAMPLED)
    said = neutral(ChatRequest)
    full = ask(client, "/v1/chat/completions", messages=messages, **SAMPLED, **said)
    assert full["choices"] == plain["choices"]
    sampling = {"temperature": 0.8, "sampling_seed": 3, "max_new_tokens": 12}
    plain = ask(client, "/generate", text=PROMPT, sampling_params=sampling)
    sampling |= neutral(SglangSampling)
    said = neutral(GenerateRequest)
    full = ask(client, "/generate", text=PROMPT, sampling_params=sampling, **said)
    assert full["output_ids"] == plain["output_ids"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/completions", {"prompt": "a", "best_of": 2}),
        ("/v1/chat/completions", {"messages": MESSAGES, "functions": [{"name": "f"}]}),
        ("/generate", {"text": "a", "lora_path": "adapter"}),
    ],
)
def test_what_is_not_neutral_is_named(client: TestClient, path: str, said: dict[str, Any]) -> None:
    reply = client.post(path, json=said)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == list(said)[-1]
    assert error["param"] in error["message"]


def test_no_nucleus_is_greedy(client: TestClient) -> None:
    greedy = ask(client, "/v1/completions", prompt=PROMPT, temperature=0, max_tokens=12)
    for top_p in (0, 1e-300):
        said = {**SAMPLED, "top_p": top_p}
        assert ask(client, "/v1/completions", prompt=PROMPT, **said)["choices"] == greedy["choices"]


def test_each_prompt_has_its_own_options(client: TestClient) -> None:
    options = [
        {"max_new_tokens": 4, "temperature": 0},
        {"max_new_tokens": 9, "temperature": 0.8, "sampling_seed": 3},
    ]
    both = ask(client, "/generate", text=[PROMPT, "x ="], sampling_params=options, rid=["p", "q"])
    for text, sampling, name, found in zip((PROMPT, "x ="), options, "pq", both, strict=True):
        alone = ask(client, "/generate", text=text, sampling_params=sampling)
        assert found["output_ids"] == alone["output_ids"]
        assert found["meta_info"]["id"] == name


def test_usage_so_far_ends_at_the_whole(client: TestClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    said = {"prompt": PROMPT, **SAMPLED, "stream": True, "stream_options": options}
    lines = client.post("/v1/completions", json=said).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    so_far = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert so_far == sorted(so_far) and so_far[0] > 0
    assert chunks[-2]["usage"]["total_tokens"] == chunks[-1]["usage"]["total_tokens"]


def test_flushing_forgets_the_texts_that_ended(client: TestClient) -> None:
    said = {"prompt": PROMPT * 40, "max_tokens": 2, "temperature": 0}

    def cached() -> int:
        found = ask(client, "/v1/completions", **said)["usage"]["prompt_tokens_details"]
        return int(found["cached_tokens"])

    cached()
    assert cached() > 0
    for path in ("/flush_cache", "/reset_prefix_cache"):
        assert client.post(path, params={"timeout": 60}).status_code == 200
        assert cached() == 0 and cached() > 0


def test_small_paths_of_sglang(client: TestClient) -> None:
    assert client.get("/health_generate").status_code == client.get("/ping").status_code == 200
    info = client.get("/get_model_info").json()
    assert info["model_path"] == "aerie-pair" and info["is_generation"]
    ask(client, "/v1/completions", prompt=PROMPT, max_tokens=12)
    (state,) = client.get("/server_info").json()["internal_states"]
    assert state["avg_spec_accept_length"] > 1
