"""Running a server: its log for programs, `aerie top`, saved rounds, and new weights meanwhile."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from aerie import Engine, SamplingParams
from tests.e2e.server_process import TREE, Served, served
from tests.e2e.test_commands import aerie
from tests.laws.tree import ROOT

PAIR = ROOT / "src/aerie/assets/pair"
KEY = "a-key-of-operations"
BEARER = {"authorization": f"Bearer {KEY}"}
ASKED = {"prompt": "def f(x):\n", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "rounds.jsonl"


@pytest.fixture(scope="module")
def server(kept: Path) -> Iterator[Served]:
    options = ("--api-key", KEY, "--save-rounds", str(kept), "--metrics-compat", "vllm")
    with served(*options, "--numerics", "exact", *TREE) as found:
        yield found


def complete(server: Served, **options: Any) -> Any:
    reply = server.call("POST", "/v1/completions", {**ASKED, **options}, BEARER)
    assert reply.status == 200, reply.body
    return reply


def kept_lines(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]


def test_rounds_of_everybody_are_saved_and_told_to_who_asks(server: Served, kept: Path) -> None:
    whole = complete(server, n=2)
    stream = complete(server, stream=True)
    assert "event: round" not in stream.body
    until = time.monotonic() + 10
    while len(lines := kept_lines(kept)) < 3:
        assert time.monotonic() < until, lines
        time.sleep(0.02)
    ids = [whole.headers["x-request-id"]] * 2 + [stream.headers["x-request-id"]]
    assert [line["request_id"] for line in lines] == ids
    assert {line["index"] for line in lines[:2]} == {0, 1}
    for line in lines:
        assert line["prompt"].endswith(str(ASKED["prompt"])) and line["tokens"] == 12
        assert line["text"] == whole.body["choices"][line["index"]]["text"]
        paths = ([*tree["nodes"][1:], tree["bonus"]] for tree in line["rounds"])
        decided = (node for path in paths for node in path if node.get("is_accepted", True))
        assert "".join(node["text"] for node in decided).startswith(line["text"])
        assert line["n_rounds"] == len(line["rounds"])


def test_top_shows_it(server: Served) -> None:
    at = ("top", "--once", "--every", "0.1", "--url", f"http://127.0.0.1:{server.port}")
    shown = aerie(*at, "--api-key", KEY)
    assert shown.returncode == 0 and "aerie-pair   ready" in shown.stdout
    assert "tokens/s out" in shown.stdout and "KV memory" in shown.stdout
    refused = aerie(*at)
    assert refused.returncode == 2 and "wants its API key" in refused.stderr


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in target with its last norm turned round: other tokens, nothing else."""
    folder = tmp_path_factory.mktemp("changed") / "target"
    shutil.copytree(PAIR / "target", folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    file = folder / index["weight_map"]["model.norm.weight"]
    weights = load_file(file)
    weights["model.norm.weight"] = -weights["model.norm.weight"]
    save_file(weights, file, {"format": "pt"})
    return folder


def test_new_weights_serve_once_they_are_loaded(server: Served, changed: Path) -> None:
    own: dict[str, Any] = {**ASKED, "max_tokens": 200}
    before = complete(server, **own).body["choices"][0]["text"]
    long = {**own, "stream": True}
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.call, "POST", "/v1/completions", long, BEARER)
        asked = {"model": str(changed), "draft": str(PAIR / "head")}
        reply = server.call("POST", "/admin/reload", asked, BEARER)
        assert (reply.status, reply.body["status"]) == (200, "reloaded"), reply.body
        # What ran finished on the weights it began with.
        events = stream.result().body.split("data: ")[1:-1]
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == before
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    plain = Engine.load(str(changed), numerics="exact", speculation={"method": "none"})
    (want,) = plain.generate(str(ASKED["prompt"]), params)
    text = complete(server).body["choices"][0]["text"]
    assert text == want.text != before[: len(text)]

    # What cannot be loaded changes nothing, and says why.
    (changed / "config.json").unlink()
    for body, status, words in (
        ({}, 401, "API key"),
        ({"model": str(changed)}, 400, "config.json"),
        ({"model": 5}, 400, "string"),
    ):
        headers = {} if status == 401 else BEARER
        refused = server.call("POST", "/admin/reload", body, headers)
        assert refused.status == status and words in refused.body["error"]["message"]
    assert complete(server).body["choices"][0]["text"] == text
