"""`aerie serve` as clients meet it: a real process, OpenAI's own client, and raw HTTP."""

import hashlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from aerie import Engine, SamplingParams
from aerie.bench.record import read_rows
from aerie.bench.serve.peer import read_peer_contract, write_prompts
from aerie.text.grammar import JsonSchema, Regex
from tests.e2e.server_process import READY_SECONDS, TREE, Served, served
from tests.e2e.test_commands import aerie
from tests.laws.tree import ROOT

PROMPTS = (
    "def read_lines(path):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef walk(top):\n",
)
NAME = "aerie-pair"
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--numerics", "exact", *TREE) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def plain() -> Engine:
    """Without speculation, in this process: what every answer must be equal to."""
    return Engine.load(numerics="exact", speculation={"method": "none"})


def test_greedy_and_sampled_texts_are_those_of_plain_decoding(
    client: openai.OpenAI, plain: Engine
) -> None:
    for temperature in (0.0, 0.8):
        params = SamplingParams(max_tokens=40, temperature=temperature, seed=7)
        for prompt in PROMPTS:
            (want,) = plain.generate(prompt, params)
            got = client.completions.create(
                model=NAME, prompt=prompt, max_tokens=40, temperature=temperature, seed=7
            )
            assert got.choices[0].text == want.text
            assert got.choices[0].finish_reason == want.finish_reason
            assert got.usage is not None
            assert got.usage.completion_tokens == len(want.token_ids)
            assert got.usage.prompt_tokens == len(plain.tokenizer.encode(prompt))


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.7},
        {"presence_penalty": 0.6},
        {"frequency_penalty": 0.9},
        {"logit_bias": {"10": 4.0, "11": -100.0}},
        {"stop": ["return"]},
        {"extra_body": {"top_k": 5}},
        {"extra_body": {"min_p": 0.2}},
        {"extra_body": {"repetition_penalty": 1.3}},
        {"extra_body": {"stop_token_ids": [10, 199]}},
        {"extra_body": {"ignore_eos": True}},
        {"extra_body": {"speculative": False}},
    ],
    ids=str,
)
def test_every_option_under_speculation_is_plain_decoding(
    client: openai.OpenAI, plain: Engine, options: dict[str, Any]
) -> None:
    own = {**options, **options.get("extra_body", {})}
    own.pop("extra_body", None)
    if "logit_bias" in own:
        own["logit_bias"] = {int(name): bias for name, bias in own["logit_bias"].items()}
    for name in ("stop", "stop_token_ids"):
        if name in own:
            own[name] = tuple(own[name])
    params = SamplingParams(max_tokens=32, temperature=0.9, seed=3, **own)
    (want,) = plain.generate(PROMPTS[0], params)
    got = client.completions.create(
        model=NAME, prompt=PROMPTS[0], max_tokens=32, temperature=0.9, seed=3, **options
    )
    assert got.choices[0].text == want.text
    spoken = got.model_extra["metrics"]["speculative_decoding"]
    assert (spoken["num_spec_steps"] > 0) == own.get("speculative", True)


def test_a_stream_joins_to_the_whole_and_closes_as_openai_does(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": PROMPTS[1]}],
        "max_tokens": 48,
        "seed": 5,
        "stop": ["self.items"],
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    spoken = chunks[-1].model_extra["metrics"]["speculative_decoding"]
    assert spoken == whole.model_extra["metrics"]["speculative_decoding"]
    histogram = spoken["acceptance_histogram"]
    assert sum(histogram) == spoken["num_spec_steps"] > 0
    weighted = sum(depth * count for depth, count in enumerate(histogram))
    assert weighted == spoken["num_accepted_draft_tokens"]


POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "maximum": 99, "minimum": 0},
        "größe": {"enum": ["蓝"]},
    },
    "required": ["x", "größe"],
    "additionalProperties": False,
}


def test_structured_output_is_valid_and_plain_constrained_decoding_s(
    server: Served, client: openai.OpenAI, plain: Engine
) -> None:
    pytest.importorskip("llguidance", reason="grammars need llguidance: the extra `grammar`")
    named = {"name": "point", "schema": POINT, "strict": True}
    asked: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": PROMPTS[0]}],
        "max_tokens": 48,
        "seed": 5,
        "response_format": {"type": "json_schema", "json_schema": named},
    }
    whole = client.chat.completions.create(**asked)
    found = json.loads(whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"
    assert set(found) == {"x", "größe"} and 0 <= found["x"] <= 99
    chunks = client.chat.completions.create(**asked, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    for grammar, said in (
        (JsonSchema(POINT), {"guided_json": POINT}),
        (Regex("[a-z]{4,9}!"), {"structured_outputs": {"regex": "[a-z]{4,9}!"}}),
    ):
        params = SamplingParams(max_tokens=32, temperature=0.9, seed=3, grammar=grammar)
        (want,) = plain.generate(PROMPTS[0], params)
        got = client.completions.create(
            model=NAME, prompt=PROMPTS[0], max_tokens=32, temperature=0.9, seed=3, extra_body=said
        )
        assert got.choices[0].text == want.text
        assert got.choices[0].finish_reason == want.finish_reason == "stop"
    wrong = {"prompt": "a", "guided_json": {"type": "array", "uniqueItems": True}}
    reply = server.call("POST", "/v1/completions", wrong)
    assert reply.status == 400 and "uniqueItems" in reply.body["error"]["message"]


def test_samples_and_prompts_of_one_request(client: openai.OpenAI, plain: Engine) -> None:
    ids = plain.tokenizer.encode(PROMPTS[0])
    params = SamplingParams(max_tokens=12, temperature=0.9, seed=11, n=2)
    want = [c.text for c in plain.generate([PROMPTS[0], PROMPTS[1]], params)]
    got = client.completions.create(
        model=NAME, prompt=list(PROMPTS[:2]), n=2, max_tokens=12, temperature=0.9, seed=11
    )
    assert [choice.text for choice in got.choices] == want
    assert [choice.index for choice in got.choices] == [0, 1, 2, 3]
    by_ids = client.completions.create(
        model=NAME, prompt=ids, n=2, max_tokens=12, temperature=0.9, seed=11
    )
    assert [choice.text for choice in by_ids.choices] == want[:2]


def test_logprobs_belong_to_the_tokens(client: openai.OpenAI, plain: Engine) -> None:
    params = SamplingParams(max_tokens=10, logprobs=True)
    (want,) = plain.generate(PROMPTS[2], params)
    expected = [own.logprob for own in want.logprobs or ()]
    got = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": PROMPTS[2]}],
        max_tokens=10,
        temperature=0,
        logprobs=True,
        stream=True,
    )
    entries = [
        entry
        for chunk in got
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert [entry.logprob for entry in entries] == expected
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == want.text
    whole = client.completions.create(
        model=NAME, prompt=PROMPTS[2], max_tokens=10, temperature=0, logprobs=0
    )
    found = whole.choices[0].logprobs
    assert found is not None and found.token_logprobs == expected


def test_many_at_once_are_what_each_is_alone(client: openai.OpenAI) -> None:
    def ask(number: int) -> str:
        return (
            client.completions.create(
                model=NAME,
                prompt=PROMPTS[number % 3],
                max_tokens=8 + 5 * number,
                temperature=0.7,
                seed=number,
            )
            .choices[0]
            .text
        )

    alone = [ask(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == alone


def test_sglangs_form_says_the_same(server: Served, plain: Engine) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.6, seed=9, ignore_eos=True, logprobs=True)
    (want,) = plain.generate(PROMPTS[0], params)
    sampling = {"max_new_tokens": 24, "temperature": 0.6, "sampling_seed": 9, "ignore_eos": True}
    asked = {"text": PROMPTS[0], "sampling_params": sampling, "return_logprob": True}
    got = server.call("POST", "/generate", asked).body
    assert (got["text"], tuple(got["output_ids"])) == (want.text, want.token_ids)
    info = got["meta_info"]
    assert info["finish_reason"] == {"type": "length", "length": 24}
    assert [row[1] for row in info["output_token_logprobs"]] == got["output_ids"]
    assert info["spec_verify_ct"] < 24 and info["spec_accept_length"] > 1
    blocks = server.call("POST", "/generate", {**asked, "stream": True}).body.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(block[6:]) for block in blocks[:-2]]
    assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(chunks))
    assert chunks[-1]["text"] == want.text and chunks[-1]["meta_info"]["finish_reason"]
    ids = plain.tokenizer.encode(PROMPTS[0])
    several = {"input_ids": [ids, ids], "sampling_params": {**sampling, "n": 2}}
    assert len(server.call("POST", "/generate", several).body) == 4
    for wrong in (
        {},
        {"text": "a", "input_ids": [1]},
        {"text": ["a"] * 65},
        {"text": "a", "sampling_params": {"x": 1}},
        {"text": "a", "sampling_params": {"stop": ["b"] * 17}},
        {"text": "a", "sampling_params": {"stop_token_ids": [1] * 4097}},
    ):
        assert server.call("POST", "/generate", wrong).status == 400
    assert server.call("GET", "/server_info").body["speculative_num_steps"] == 3


REFUSED: dict[str, tuple[str, str, Any, int, str | None]] = {
    "no body": ("POST", "/v1/completions", b"", 400, None),
    "half a body": ("POST", "/v1/completions", b'{"prompt": "a', 400, None),
    "deep": ("POST", "/v1/completions", b'{"prompt": ' + b"[" * 100_000, 400, None),
    "a list": ("POST", "/v1/completions", [1], 400, None),
    "no prompt": ("POST", "/v1/completions", {}, 400, "prompt"),
    "empty prompt": ("POST", "/v1/completions", {"prompt": ""}, 400, "prompt"),
    "no ids": ("POST", "/v1/completions", {"prompt": []}, 400, "prompt"),
    "unknown id": ("POST", "/v1/completions", {"prompt": [4096]}, 400, "prompt"),
    "unknown bias": (
        "POST",
        "/v1/completions",
        {"prompt": "a", "logit_bias": {"9999": 1}},
        400,
        "logit_bias",
    ),
    "negative id": ("POST", "/v1/completions", {"prompt": [-1]}, 400, "prompt[0]"),
    "too long": ("POST", "/v1/completions", {"prompt": [5] * 40_000}, 400, "prompt"),
    "long text": ("POST", "/v1/completions", {"prompt": "a b " * 975_000}, 400, "prompt"),
    "long chat": (
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a b " * 200_000}]},
        400,
        "messages",
    ),
    "long to tokenise": ("POST", "/tokenize", {"prompt": "a b " * 200_000}, 400, "prompt"),
    "long to spell": ("POST", "/detokenize", {"tokens": [5] * 40_000}, 400, "tokens"),
    "text as number": ("POST", "/v1/completions", {"prompt": "a", "n": "1"}, 400, "n"),
    "truth as number": ("POST", "/v1/completions", {"prompt": "a", "n": True}, 400, "n"),
    "huge seed": ("POST", "/v1/completions", {"prompt": "a", "seed": 10**30}, 400, "seed"),
    "hot": ("POST", "/v1/completions", {"prompt": "a", "temperature": 3}, 400, "temperature"),
    "not a number": (
        "POST",
        "/v1/completions",
        b'{"prompt": "a", "temperature": NaN}',
        400,
        "temperature",
    ),
    "typo": ("POST", "/v1/completions", {"prompt": "a", "temprature": 1}, 400, "temprature"),
    "tools": (
        "POST",
        "/v1/chat/completions",
        # The pair's own template writes none.
        {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]},
        400,
        "tools",
    ),
    "grammar": (
        "POST",
        "/v1/completions",
        {"prompt": "a", "response_format": {"type": "xml"}},
        400,
        "response_format",
    ),
    "surrogate": ("POST", "/v1/completions", b'{"prompt": "\\ud800"}', 400, None),
    "no role": ("POST", "/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, None),
    "bias of no token": (
        "POST",
        "/v1/completions",
        {"prompt": "a", "logit_bias": {"x": 1}},
        400,
        "logit_bias",
    ),
    "other model": ("POST", "/v1/completions", {"prompt": "a", "model": "x"}, 404, "model"),
    "no path": ("GET", "/v2/completions", None, 404, None),
    "no method": ("GET", "/v1/completions", None, 405, None),
    "large": ("POST", "/tokenize", {"prompt": "a" * 5_000_000}, 413, None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_openais_shape_and_harm_nobody(server: Served, name: str) -> None:
    method, path, body, status, param = REFUSED[name]
    reply = server.call(method, path, body)
    assert reply.status == status, reply.body
    assert set(reply.body) == {"error"}
    error = reply.body["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    if "long" in name:
        assert error["code"] == "context_length_exceeded"
    assert "Traceback" not in error["message"] and "/src/" not in error["message"]
    assert reply.headers["x-request-id"]
    assert server.call("GET", "/health").status == 200


def test_small_paths(server: Served, plain: Engine) -> None:
    assert server.call("GET", "/version").body["version"]
    assert server.call("HEAD", "/health").status == 200
    assert server.call("HEAD", "/metrics").status == 200
    (model,) = server.call("GET", "/v1/models").body["data"]
    assert model["id"] == NAME and model["max_model_len"] > 30_000
    assert abs(model["created"] - time.time()) < 3600
    assert server.call("GET", f"/v1/models/{NAME}").body == model
    assert server.call("GET", "/v1/models/some/other").status == 404
    found = server.call("POST", "/tokenize", {"prompt": PROMPTS[0]}).body
    assert found["tokens"] == plain.tokenizer.encode(PROMPTS[0]) and found["count"] > 0
    text = server.call("POST", "/detokenize", {"tokens": found["tokens"][1:]}).body["prompt"]
    assert text == PROMPTS[0]
    other = server.call("GET", "/health", headers={"host": "elsewhere.example"})
    assert other.status == 400


@pytest.mark.parametrize("is_stream", [True, False])
def test_who_leaves_is_cancelled(server: Served, is_stream: bool) -> None:
    body = {"prompt": "x = 1\n", "max_tokens": 30_000, "ignore_eos": True, "stream": is_stream}
    connection = server.connect()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    answer = connection.getresponse() if is_stream else None
    if answer is not None:
        assert answer.readline().startswith(b"data: ")
    until = time.monotonic() + 20
    while not server.metric("aerie_num_requests_running"):
        assert time.monotonic() < until
        time.sleep(0.02)
    if answer is not None:
        answer.close()
    connection.close()
    server.wait_for_nobody()


def test_a_key_is_asked_for_and_the_queue_has_an_end() -> None:
    limits = ("--max-pending-tokens", "40", "--request-seconds", "1")
    with served("--api-key", "a-long-secret", *limits, *TREE) as guarded:
        assert guarded.call("GET", "/health").status == 200
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            refused = guarded.call("GET", path)
            assert refused.status == 401 and refused.body["error"]["code"] == "invalid_api_key"
        key = {"authorization": "Bearer a-long-secret"}
        assert guarded.call("GET", "/v1/models", headers=key).status == 200
        wrong = guarded.call("GET", "/v1/models", headers={"authorization": "Bearer a-long"})
        assert wrong.status == 401
        for path in ("/", "/view.js"):
            assert guarded.call("GET", path).status == 200
        asked = {"prompt": "x = 1\n", "max_tokens": 100}
        never = guarded.call("POST", "/v1/completions", asked, key)
        assert never.status == 400 and "retry-after" not in never.headers
        asked["max_tokens"] = 20
        assert guarded.call("POST", "/v1/completions", asked, key).status == 200
        _late_clients_are_cut_off(guarded.port)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "no-such-folder"), "neither a directory nor a hub id"),
        (("--host", "0.0.0.0"), "--api-key"),
    ],
    ids=str,
)
def test_what_cannot_be_served_ends_with_one_clear_line(
    arguments: tuple[str, ...], words: str
) -> None:
    run = aerie("serve", "--port", "0", *arguments)
    assert run.returncode == 2
    assert words in run.stderr.splitlines()[-1] and "Traceback" not in run.stderr


def _late_clients_are_cut_off(port: int) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-long-secret\r\n"
    body = b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    for sent, answer in ((b"", b""), (head, b""), (head + body, b"HTTP/1.1 408 ")):
        assert exchanged(port, sent)[: len(answer) or None] == answer


def exchanged(port: int, sent: bytes, is_half_closed: bool = False) -> bytes:
    """What comes back until the server closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(sent)
            if is_half_closed:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            return received
    return received


def posted(body: dict[str, Any], *lines: str, host: str = "Host: localhost") -> bytes:
    content = json.dumps(body).encode()
    head = ["POST /v1/completions HTTP/1.1", host, "Content-Type: application/json", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content


def test_clients_that_send_and_close_get_their_answer(server: Served) -> None:
    for is_stream in (False, True):
        asked = {"prompt": "x = 1\n", "max_tokens": 20, "ignore_eos": True, "stream": is_stream}
        answer = exchanged(server.port, posted(asked), is_half_closed=True)
        assert b"HTTP/1.1 200 OK" in answer
        assert (b"data: [DONE]" if is_stream else b'"completion_tokens":20') in answer


STRANGE = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n", 400),
    "a large head": (posted({"prompt": "a"}, "X: " + "a" * 70_000), 431),
    "many lines": (posted({"prompt": "a"}, *(f"X{i}: {i}" for i in range(8_000))), 431),
    "a long path": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    "half a large head": (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000, 431),
    "two hosts": (posted({"prompt": "a"}, "Host: localhost"), 400),
    "a host that is none": (posted({"prompt": "a"}, host="Host: localhost:80@evil"), 400),
    "no host": (posted({"prompt": "a"}, host="X: y"), 400),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_request_is_refused_in_openais_shape(server: Served, name: str) -> None:
    sent, status = STRANGE[name]
    head, _, body = exchanged(server.port, sent).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert lines["connection"] == "close"
    until = time.monotonic() + 5
    while f"request {lines['x-request-id']}: {status}, 127.0.0.1" not in server.log:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_body_that_is_too_large_is_not_read_on(server: Served) -> None:
    head = posted({}).replace(b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 999999999\r\n\r\n")
    n_sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head)
        try:
            while True:
                n_sent += connection.send(b"a" * (1 << 16))
                assert n_sent < 64 << 20, "the server goes on reading"
        except (ConnectionResetError, BrokenPipeError):
            pass
    # A client that stops when it is refused reads why.
    answer = exchanged(server.port, head)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"connection: close" in answer.lower()


def test_a_long_text_delays_nobody(server: Served) -> None:
    """Three clients send 0.9 MB each and leave; one of them could stop a stream for seconds."""
    body = posted({"prompt": "a b " * 240_000, "max_tokens": 1})
    gaps: list[float] = []

    def watch(until: float) -> None:
        asked = {"prompt": "x = 1\n", "max_tokens": 30_000, "ignore_eos": True}
        with server.stream(asked) as stream:
            last = time.monotonic()
            while last < until and stream.readline():
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch, time.monotonic() + 3)
        while not gaps:
            time.sleep(0.01)
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                connection.sendall(body)
                time.sleep(0.3)
        began = time.monotonic()
        assert server.call("GET", "/health").status == 200
        assert time.monotonic() - began < 1
        watching.result()
    assert max(gaps) < 1, sorted(gaps)[-5:]
    server.wait_for_nobody()


def test_more_tokens_than_the_context_are_taken_as_the_context(server: Served) -> None:
    asked = {"prompt": "x = 1\n", "max_tokens": 1_200_000, "ignore_eos": True}
    with server.stream(asked) as answer:
        assert answer.status == 200 and answer.readline().startswith(b"data: ")
        assert server.metric("aerie_pending_tokens") < 40_000
    server.wait_for_nobody()


def test_every_request_is_a_line_and_the_page_is_mentioned(server: Served) -> None:
    asked = {"prompt": "x = 1\n", "max_tokens": 9, "ignore_eos": True}
    reply = server.call("POST", "/v1/completions", asked)
    name = reply.headers["x-request-id"]
    until = time.monotonic() + 5
    while name not in (log := server.log):
        assert time.monotonic() < until
        time.sleep(0.02)
    (line,) = (line for line in log.splitlines() if name in line)
    assert "POST /v1/completions" in line and "completion=9 acceptance=" in line
    assert "live page: http://127.0.0.1:" in log and "policy fixed" in log
    assert ": 200, 127.0.0.1 GET /health" not in log and "Traceback" not in log


@pytest.mark.slow
def test_a_full_terminal_does_not_stop_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "aerie", "serve", "--port", str(port), *TREE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(command, env=environment, stdout=full, stderr=full)
    server = Served(process, port, Path("/dev/null"))
    try:
        until = time.monotonic() + READY_SECONDS
        while True:
            assert time.monotonic() < until and process.poll() is None
            try:
                if server.call("GET", "/health").status == 200:
                    break
            except ConnectionRefusedError:
                time.sleep(0.1)
        asked = {"prompt": "x = 1\n", "max_tokens": 3}
        assert server.call("POST", "/v1/completions", asked).status == 200
    finally:
        process.kill()
        process.wait()


def test_a_signal_lets_what_runs_finish() -> None:
    with served("--metrics-compat", "vllm", *TREE) as ending:
        page = ending.call("GET", "/metrics").body
        labels = f'{{engine="0",model_name="{NAME}"}}'
        for name in (
            "spec_decode_num_drafts_total",
            "num_requests_waiting",
            "time_to_first_token_seconds_count",
            "inter_token_latency_seconds_count",
            "e2e_request_latency_seconds_count",
            "request_queue_time_seconds_count",
        ):
            assert f"vllm:{name}{labels} " in page and f"aerie_{name} " in page
        assert ending.metric("aerie_uptime_seconds") > 0
        asked = {"prompt": "x = 1\n", "max_tokens": 400, "ignore_eos": True}
        with ending.stream(asked) as stream:
            assert stream.readline().startswith(b"data: ")
            ending.process.terminate()
            until = time.monotonic() + 10
            while (health := ending.call("GET", "/health")).status == 200:
                assert time.monotonic() < until
            # It goes on listening: a client learns that there is nothing to wait for here.
            assert health.status == 503 and health.body["status"] == "draining"
            refused = ending.call("POST", "/v1/completions", {"prompt": "a"})
            assert refused.status == 503 and refused.headers["retry-after"] == "1"
            rest = stream.read().decode()
        assert rest.rstrip().endswith("data: [DONE]") and '"finish_reason":"length"' in rest
        assert ending.process.wait(timeout=30) in (0, -15)


def test_peer_contract_is_run_against_a_server(
    server: Served, plain: Engine, tmp_path: Path
) -> None:
    path, out = Path("evidence/contracts/peers/rehearsal.toml"), tmp_path / "rows.jsonl"
    contract = read_peer_contract(ROOT / path)
    url = server.url.removesuffix("/v1")
    run = aerie("bench", "peer", "--url", url, "--contract", str(path), "--out", str(out), "--json")
    assert run.returncode == 0, run.stderr
    rows = read_rows([out])
    assert json.loads(run.stdout)["rows"] == rows
    assert [row["point"] for row in rows] == ["first 2", "greedy 2", "sampled 1"]
    for row, load in zip(rows, contract.of_turn(0), strict=True):
        assert row["errors"] == 0 and row["tokens"] == load.requests * contract.new_tokens
        assert all(row[name]["p99"] > 0 for name in ("ttft_ms", "gap_ms", "gap_per_token_ms"))
        assert row["acceptance_length"] > 1 and row["counters"]["graphs_recorded"] == 0
        assert row["lane"] == "aerie" and row["made"]["source_sha256"] and row["server"]
    prompts = write_prompts(contract.prompts, 2 + 4, 0)
    params = SamplingParams(max_tokens=contract.new_tokens, ignore_eos=True)
    digests = [
        hashlib.sha256(own.text.encode()).hexdigest()[:16]
        for own in plain.generate(prompts, params)
    ]
    sent = [request["text_sha256"] for row in rows[:2] for request in row["requests"]]
    assert sent == digests
