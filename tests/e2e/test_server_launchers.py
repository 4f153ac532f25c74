"""What a server tells beside the text, bit for bit the same with either launcher and any draft."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from aerie import Engine, SamplingParams
from aerie.api import Completion
from aerie.requests.request import Scored
from aerie.server.running import MANY_SCORED
from tests.e2e.server_process import TREE, Served, served
from tests.e2e.test_commands import aerie
from tests.e2e.test_server_view import rounds_and_text

LAUNCHERS = ("direct", "graphs")
PROMPT = 'def read_lines(path):\n    """Größe."""\n'
SAMPLED = {"max_tokens": 16, "temperature": 0.8, "seed": 7}
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}


@pytest.fixture(scope="module", params=LAUNCHERS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served("--engine", request.param, "--numerics", "exact", *TREE) as found:
        assert found.call("GET", "/about").body["engine"] == request.param
        yield found


@pytest.fixture(scope="module")
def plain() -> Engine:
    """Without speculation, in this process: what every answer must be equal to."""
    return Engine.load(numerics="exact", engine="direct", speculation={"method": "none"})


@pytest.fixture(scope="module")
def want(plain: Engine) -> Completion:
    params = SamplingParams(logprobs=20, prompt_logprobs=20, **SAMPLED)  # type: ignore[arg-type]
    return plain.generate(PROMPT, params)[0]


def own_and_best(scores: tuple[Scored, ...] | None, n_best: int) -> list[tuple[Any, ...]]:
    """Values alone, best first: of the token, and of so many alternatives."""
    return [(own.logprob, *(value for _, value in own.top[:n_best])) for own in scores or ()]


def ask(server: Served, path: str = "/v1/completions", **body: Any) -> Any:
    reply = server.call("POST", path, body)
    assert reply.status == 200, reply.body
    return reply.body


def streamed(server: Served, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
    """Its chunks, without the last line."""
    blocks = ask(server, path, stream=True, **body).split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("n_best", [0, 20])
def test_completions_are_scored_as_plain_decoding_scores_them(
    server: Served, want: Completion, speculative: bool, n_best: int
) -> None:
    asked = {"prompt": PROMPT, "logprobs": n_best, "speculative": speculative, **SAMPLED}
    (choice,) = ask(server, **asked)["choices"]
    told = choice["logprobs"]
    assert choice["text"] == want.text
    assert told["token_logprobs"] == [own.logprob for own in want.logprobs or ()]
    for best, row in zip(
        told["top_logprobs"] or [], own_and_best(want.logprobs, n_best), strict=bool(n_best)
    ):
        assert sorted(best.values(), reverse=True)[:n_best] == list(row[1:])
        assert row[0] in best.values()
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)
    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed(server, **asked)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [entry for part in parts if part for entry in part[name] or ()]
        assert joined == (told[name] or [])


def test_a_finished_text_is_scored_again_as_it_was_decoded(
    server: Served, plain: Engine, want: Completion
) -> None:
    """Re-scoring: the whole text as a prompt, no token asked for."""
    both = (*(want.prompt_logprobs or ()), *(want.logprobs or ()))
    scores = [None, *(own.logprob for own in both)]
    whole = ask(server, prompt=PROMPT, echo=True, logprobs=2, **SAMPLED)
    (choice,) = whole["choices"]
    assert choice["text"] == PROMPT + want.text
    assert choice["logprobs"]["token_logprobs"] == scores
    ids = [*plain.tokenizer.encode(PROMPT), *want.token_ids]
    again = ask(server, prompt=ids, echo=True, logprobs=2, max_tokens=0)
    (found,) = again["choices"]
    assert (found["text"], found["finish_reason"]) == (choice["text"], "length")
    assert found["logprobs"] == choice["logprobs"]
    assert again["usage"]["prompt_tokens"] == len(ids) == again["usage"]["total_tokens"]
    assert again["usage"]["completion_tokens"] == 0
    chunks = streamed(server, prompt=ids, echo=True, logprobs=2, max_tokens=0)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "length"]
    assert chunks[0]["choices"][0]["logprobs"] == found["logprobs"]
    (unscored,) = ask(server, prompt=[PROMPT, "x"], echo=True, max_tokens=0)["choices"][:1]
    assert (unscored["text"], unscored["logprobs"]) == (PROMPT, None)
    (silent,) = ask(server, prompt=PROMPT, max_tokens=0)["choices"]
    assert (silent["text"], silent["finish_reason"]) == ("", "length")


def test_a_long_prompt_is_told_by_a_thread_in_the_same_words(server: Served, plain: Engine) -> None:
    ids = [5 + 37 * place % 4000 for place in range(MANY_SCORED + 50)]
    (expected,) = plain.generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=1))
    asked = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = ask(server, **asked)["choices"]
    values = [own.logprob for own in expected.prompt_logprobs or ()]
    assert choice["logprobs"]["token_logprobs"] == [None, *values]
    first = streamed(server, **asked)[0]["choices"][0]
    assert (first["text"], first["logprobs"]) == (choice["text"], choice["logprobs"])


def test_echo_alone_and_its_stream(server: Served, want: Completion) -> None:
    asked = {"prompt": [PROMPT, PROMPT], "n": 2, "echo": True, **SAMPLED}
    choices = ask(server, **asked)["choices"]
    assert [choice["text"] for choice in choices][::2] == [PROMPT + want.text] * 2
    texts = [""] * 4
    for chunk in streamed(server, **asked):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [choice["text"] for choice in choices]


def test_chats_have_alternatives(server: Served) -> None:
    asked = {**CHAT, **SAMPLED, "logprobs": True, "top_logprobs": 4}
    found = []
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        for speculative in (True, False):
            extra = {"speculative": speculative}
            whole = client.chat.completions.create(model="aerie-pair", extra_body=extra, **asked)
            assert whole.choices[0].logprobs is not None
            content = whole.choices[0].logprobs.content or []
            assert [len(entry.top_logprobs) for entry in content] == [4] * len(content)
            found.append([entry.model_dump() for entry in content])
    assert found[0] == found[1] and len(found[0]) > 4
    chunks = streamed(server, "/v1/chat/completions", **asked)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == found[0]


def test_sglang_and_vllm_are_told_of_prompts_too(
    server: Served, plain: Engine, want: Completion
) -> None:
    sampling = {"max_new_tokens": 16, "temperature": 0.8, "sampling_seed": 7}
    asked = {"text": PROMPT, "sampling_params": sampling, "return_logprob": True}
    asked |= {"top_logprobs_num": 3, "logprob_start_len": 2}
    told = ask(server, "/generate", **asked)["meta_info"]
    ids = plain.tokenizer.encode(PROMPT)
    assert [row[1] for row in told["input_token_logprobs"]] == ids[2:]
    of_prompt, of_output = own_and_best(want.prompt_logprobs, 3), own_and_best(want.logprobs, 3)
    for name, rows in (("input", [None, *of_prompt[2:]]), ("output", of_output)):
        values = [row[0] for row in told[f"{name}_token_logprobs"]]
        best = [row and [entry[0] for entry in row] for row in told[f"{name}_top_logprobs"]]
        assert values == [row and row[0] for row in rows]
        assert best == [row and list(row[1:]) for row in rows]
    last = streamed(server, "/generate", **asked)[-1]["meta_info"]
    assert {name: value for name, value in last.items() if "logprobs" in name} == {
        name: value for name, value in told.items() if "logprobs" in name
    }
    (choice,) = ask(server, prompt=PROMPT, max_tokens=0, prompt_logprobs=3)["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and len(others) == len(ids) - 1
    for token_id, entries, row in zip(ids[1:], others, of_prompt, strict=True):
        assert entries[str(token_id)]["logprob"] == row[0]
        ranked = {entry["rank"]: entry["logprob"] for entry in entries.values()}
        assert [ranked[rank] for rank in (1, 2, 3)] == list(row[1:])


def test_no_stop_token_before_the_least_length(server: Served, plain: Engine) -> None:
    (free,) = plain.generate(PROMPT, SamplingParams(max_tokens=14))
    stops = list(dict.fromkeys(free.token_ids))[:4]
    for least in (0, 9):
        params = SamplingParams(
            max_tokens=14, min_tokens=least, stop_token_ids=tuple(stops), logprobs=0
        )
        (expected,) = plain.generate(PROMPT, params)
        body = {"prompt": PROMPT, "max_tokens": 14, "temperature": 0, "stop_token_ids": stops}
        found = ask(server, **body, min_tokens=least, logprobs=0)
        n_tokens = len(expected.token_ids)
        assert found["usage"]["completion_tokens"] == n_tokens
        assert n_tokens == 1 if not least else n_tokens > least
        told = found["choices"][0]["logprobs"]["token_logprobs"]
        assert told == [own.logprob for own in expected.logprobs or ()]
        sampling = {"max_new_tokens": 14, "temperature": 0, "stop_token_ids": stops}
        own = {"text": PROMPT, "sampling_params": {**sampling, "min_new_tokens": least}}
        assert tuple(ask(server, "/generate", **own)["output_ids"]) == expected.token_ids


def test_rounds_are_shown(server: Served) -> None:
    rounds, text = rounds_and_text(server, max_tokens=40, temperature=0, ignore_eos=True)
    spelled = ""
    for told in rounds:
        path = [node["text"] for node in told["nodes"][1:] if node["is_accepted"]]
        spelled += "".join(path) + told["bonus"]["text"]
    assert text and spelled.startswith(text) and 4 < len(rounds) < 40
    bare, same = rounds_and_text(
        server, max_tokens=12, temperature=0, ignore_eos=True, speculative=False
    )
    assert [len(told["nodes"]) for told in bare] == [1] * 12 and text.startswith(same)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        (
            "/v1/completions",
            {"prompt": [[5] * 9000] * 3, "echo": True, "logprobs": 20, "max_tokens": 0},
            "logprobs",
        ),
        ("/v1/chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 0}, "max_tokens"),
        ("/v1/chat/completions", {**CHAT, "echo": True}, "echo"),
        (
            "/generate",
            {"input_ids": [1, 2], "return_logprob": True, "logprob_start_len": 2},
            "logprob_start_len",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_told_is_refused_by_name(
    server: Served, path: str, body: dict[str, Any], param: str
) -> None:
    reply = server.call("POST", path, body)
    assert (reply.status, reply.body["error"]["param"]) == (400, param), reply.body


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_generate_draws_rounds_and_scores(launcher: str, want: Completion) -> None:
    run = aerie(
        *("generate", PROMPT, "--engine", launcher, "--numerics", "exact", *TREE, "--json"),
        *("--max-new-tokens", "16", "--temperature", "0.8", "--seed", "7"),
        *("--show-tree", "--rounds", "2", "--logprobs", "3"),
    )
    assert run.returncode == 0, run.stderr
    assert "round 2: " in run.stdout and "round 3: " not in run.stdout
    assert "accepted" in run.stdout and "the target's own" in run.stdout
    found = json.loads(run.stdout.splitlines()[-1])
    assert tuple(found["token_ids"]) == want.token_ids
    rows = [(own["logprob"], *(value for _, value in own["top"])) for own in found["logprobs"]]
    assert rows == own_and_best(want.logprobs, 3)
