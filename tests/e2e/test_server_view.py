"""The live view: rounds as the server tells them, the page that draws them, in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser import browsed, find_browser
from tests.e2e.server_process import TREE, Served, served
from tests.laws.tree import ROOT

STATIC = ROOT / "src/aerie/server/static"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("--numerics", "exact", *TREE) as found:
        yield found


def rounds_and_text(server: Served, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """The rounds of a completion, and its text."""
    asked = {"prompt": "def read_lines(path):\n", "stream": True, "show_rounds": True, **options}
    rounds, text = [], ""
    for block in server.call("POST", "/v1/completions", asked).body.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines.get("event") == "round":
            rounds.append(json.loads(lines["data"]))
        elif lines.get("data", "[DONE]") != "[DONE]":
            text += json.loads(lines["data"])["choices"][0]["text"]
    return rounds, text


def test_rounds_spell_the_text(server: Served) -> None:
    rounds, text = rounds_and_text(server, max_tokens=40, temperature=0, ignore_eos=True)
    spelled = ""
    for told in rounds:
        nodes = told["nodes"]
        assert nodes[0]["parent"] == -1 and nodes[0]["is_accepted"]
        for index, node in enumerate(nodes[1:], 1):
            assert 0 <= node["parent"] < index
            assert node["score"] <= nodes[node["parent"]]["score"]
            assert not node["is_accepted"] or nodes[node["parent"]]["is_accepted"]
        path = [node["text"] for node in nodes[1:] if node["is_accepted"]]
        assert len(path) == told["n_accepted"]
        spelled += "".join(path) + told["bonus"]
    # The last round may have decided more than was asked for.
    assert text and spelled.startswith(text)
    assert len(rounds) < 40


def test_rounds_are_told_to_streams_that_ask(server: Served) -> None:
    rounds, text = rounds_and_text(server, max_tokens=5, show_rounds=False)
    assert text and not rounds
    asked = {"prompt": "a", "show_rounds": True}
    refused = server.call("POST", "/v1/completions", asked)
    assert refused.status == 400 and refused.body["error"]["param"] == "show_rounds"


def test_the_page_loads_nothing_from_elsewhere(server: Served) -> None:
    for path in ("/", "/view.js", "/view.css", "/icon.svg"):
        page = server.call("GET", path)
        assert page.status == 200
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for file in STATIC.iterdir():
        source = file.read_text(encoding="utf-8")
        addresses = set(re.findall(r"https?://[^\s\"'<>]+", source))
        assert addresses <= {"http://www.w3.org/2000/svg"}, file.name
        banned = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
        assert not [word for word in banned if word in source], file.name


def test_a_browser_draws_the_rounds(server: Served, tmp_path: Path) -> None:
    program = find_browser()
    if program is None:
        pytest.skip("no browser: apt-get install chromium runs this test")
    with browsed(program, tmp_path) as page:
        page.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
        page.wait_for("document.readyState === 'complete' && document.title.includes('aerie')")
        page.look("document.getElementById('tokens').value = 60")
        page.look("document.getElementById('run').click()")
        page.wait_for("document.getElementById('n-tokens').textContent === '60'")
        page.wait_for("document.getElementById('stop').disabled")
        n_rounds = int(page.look("document.getElementById('n-rounds').textContent"))
        assert 15 <= n_rounds < 60
        assert page.look("document.querySelectorAll('#text .part').length") <= n_rounds
        assert page.look("document.querySelectorAll('#tree .own').length") == 2
        assert page.look("document.querySelectorAll('#depths .bar').length") > 1
        page.look("document.querySelector('#text .part').click()")
        assert page.look("document.getElementById('round-name').textContent").startswith("1 of")
        page.look("document.getElementById('race').click()")
        page.wait_for("document.getElementById('verdict').textContent.includes('times plain')")
        assert "60 tokens, the same text" in page.look(
            "document.getElementById('verdict').textContent"
        )
        page.wait_for("document.getElementById('stop').disabled")
        page.look("document.getElementById('prompt').value = ''")
        page.look("document.getElementById('run').click()")
        page.wait_for("!document.getElementById('problem').hidden")
        assert "empty" in page.look("document.getElementById('problem').textContent")
        # The refused request is the only thing the browser reports: no script, no policy.
        assert [p["entry"]["source"] for p in page.problems] == ["network"]
