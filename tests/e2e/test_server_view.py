"""The live view: rounds as the server tells them, the page that draws them, in a real browser."""

import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser import Page, browsed, find_browser
from tests.e2e.contrast import faint_texts
from tests.e2e.server_process import TREE, Served, served
from tests.laws.tree import ROOT

STATIC = ROOT / "src/aerie/server/static"
EXAMPLES = json.loads((STATIC / "view/examples.json").read_text(encoding="utf-8"))
KEY = "a-key-of-the-view"
BEARER = {"authorization": f"Bearer {KEY}"}
# Colours of what was accepted, wherever the page may have put them.
GREEN = """(() => {
  const greens = ["--accepted", "--accepted-box"].map((name) => {
    const probe = document.createElement("i");
    probe.style.color = getComputedStyle(document.documentElement).getPropertyValue(name);
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  });
  return [...document.body.querySelectorAll("*")].filter((element) => {
    const { backgroundColor, color, fill, stroke } = getComputedStyle(element);
    return [backgroundColor, color, fill, stroke].some((colour) => greens.includes(colour));
  }).map((element) => element.closest(".accepted") !== null);
})()"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved") / "rounds.jsonl"


@pytest.fixture(scope="module")
def server(saved: Path) -> Iterator[Served]:
    options = ("--api-key", KEY, "--save-rounds", str(saved))
    with served("--numerics", "exact", *options, *TREE) as found:
        yield found


@pytest.fixture(scope="module")
def static_files() -> Iterator[str]:
    """The page's files alone, where there is no server of ours."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Quiet, directory=str(STATIC))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{files.server_address[1]}/view.html"
        files.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser: apt-get install chromium runs this test")
    with browsed(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """The one page; requests that were refused are all it may report: no script, no policy."""
    browser.problems.clear()
    yield browser
    assert all(problem["entry"]["source"] == "network" for problem in browser.problems)


def opened(page: Page, server: Served, address: str = f"/#key={KEY}") -> Page:
    """The page, loaded anew, its example drawn."""
    page.dress(1280, 900, "light")
    page.call("Page.navigate", url="about:blank")
    page.call("Page.navigate", url=f"http://127.0.0.1:{server.port}{address}")
    page.wait_for("document.querySelector('#text .round[aria-current]') !== null")
    if KEY in address:
        page.wait_for("document.querySelectorAll('#about li').length > 3")
        wait_until_idle(page)
    return page


def wait_until_idle(page: Page) -> None:
    page.wait_for("document.body.ariaBusy === 'false'")


def words(page: Page, name: str) -> str:
    return str(page.look(f"document.getElementById('{name}').textContent"))


def ask_for(page: Page, tokens: int) -> None:
    page.look(f"document.getElementById('tokens').value = {tokens}")


def rounds_and_text(server: Served, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """The rounds of a completion, and its text."""
    asked = {"prompt": "def read_lines(path):\n", "stream": True, "show_rounds": True, **options}
    rounds, text = [], ""
    for block in server.call("POST", "/v1/completions", asked, BEARER).body.split("\n\n"):
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
        spelled += "".join(path) + told["bonus"]["text"]
    # The last round may have decided more than was asked for.
    assert text and spelled.startswith(text)
    assert len(rounds) < 40


def test_rounds_are_told_to_streams_that_ask(server: Served) -> None:
    rounds, text = rounds_and_text(server, max_tokens=5, show_rounds=False)
    assert text and not rounds
    asked = {"prompt": "a", "show_rounds": True}
    refused = server.call("POST", "/v1/completions", asked, BEARER)
    assert refused.status == 400 and refused.body["error"]["param"] == "show_rounds"


def test_the_page_is_open_and_loads_nothing_from_elsewhere(server: Served) -> None:
    files = [file for file in STATIC.rglob("*") if file.is_file()]
    paths = {f"/{file.relative_to(STATIC).as_posix()}" for file in files} - {"/view.html"}
    for path in {"/", *paths}:
        page = server.call("GET", path)
        assert page.status == 200
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for file in files:
        source = file.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 300, file.name
        addresses = set(re.findall(r"https?://[^\s\"'<>]+", source))
        assert addresses <= {"http://www.w3.org/2000/svg"}, file.name
        banned = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
        assert not [word for word in banned if word in source], file.name


def test_about_says_what_is_served(server: Served) -> None:
    assert server.call("GET", "/about").status == 401
    about = server.call("GET", "/about", headers=BEARER).body
    assert (about["model"], about["dtype"], about["device"]) == ("aerie-pair", "float32", "cpu")
    assert (about["policy"], about["engine"]) == ("fixed", "direct")
    assert about["tree"] == {"top_k": 2, "depth": 3, "nodes": 8}
    assert about["context"] > 0 and "why_no_rounds" not in about


def test_the_page_asks_for_the_key_and_keeps_it(page: Page, server: Served) -> None:
    opened(page, server, "/")
    for given, is_wrong in (("a-wrong-key", False), (KEY, True)):
        page.wait_for("document.querySelector('dialog[open]') !== null")
        assert page.look("!document.getElementById('key-refused').hidden") == is_wrong
        page.look(f"document.getElementById('key').value = '{given}'")
        page.look("document.querySelector('dialog button[value=use]').click()")
    page.wait_for("document.querySelectorAll('#about li').length > 3")
    assert page.look("sessionStorage.getItem('aerie-key')") == KEY
    page.look("sessionStorage.clear()")
    opened(page, server, f"/#key={KEY}&run")
    assert page.look("location.hash") == "#run"
    assert words(page, "origin") == "Decoded here, by aerie-pair"


def test_the_first_screen_shows_an_example(page: Page, server: Served) -> None:
    opened(page, server)
    first = EXAMPLES["examples"][0]
    assert words(page, "text") == EXAMPLES["asked"]["prompt"] + first["text"]
    assert words(page, "n-passes") == f"{len(first['rounds'])} target passes"
    assert "aerie-pair" in words(page, "about") and "2 wide, 3 deep" in words(page, "about")
    hrefs = page.look("[...document.querySelectorAll('#links a')].map((a) => a.pathname)")
    assert hrefs == ["/openapi.json", "/metrics", "/v1/models"]
    for link in hrefs:
        assert server.call("GET", link, headers=BEARER).status == 200
    # Every round but the last, which may be cut short: its accepted tokens, then the target's own.
    kinds = page.look(
        "[...document.querySelectorAll('#text .round')].map((round) =>"
        " [...round.children].map((token) => token.className))"
    )
    told = [["accepted"] * entry["n_accepted"] + ["own"] for entry in first["rounds"]]
    assert kinds[:-1] == told[:-1]
    assert page.look("document.querySelector('#tree g').getAttribute('class')") == "root"
    greens = page.look(GREEN)
    assert len(greens) > 50 and all(greens)


def test_keys_work_anywhere_but_where_somebody_types(page: Page, server: Served) -> None:
    opened(page, server)
    page.look("document.querySelector('#text .round').click()")
    for key, number in (("j", 2), ("ArrowRight", 3), ("k", 2), ("ArrowLeft", 1), ("ArrowLeft", 1)):
        page.press(key)
        assert words(page, "round-name").startswith(f"Round {number} of"), key
    # The focus went along, and one press of Tab reaches the text.
    assert page.look("document.activeElement === document.querySelector('#text .round')")
    assert page.look("document.querySelectorAll('#text .round[tabindex=\"0\"]').length") == 1
    page.look("document.getElementById('speed').value = 20")
    page.press(" ")
    page.wait_for("document.getElementById('round-name').textContent.startsWith('Round 4 ')")
    page.press(" ")
    assert words(page, "play") == "Play"
    shown = words(page, "round-name")
    page.look("document.getElementById('prompt').focus()")
    page.press("j")
    assert page.look("document.getElementById('prompt').value").endswith("j")
    assert words(page, "round-name") == shown
    ask_for(page, 4000)
    page.press("Enter", ctrl=True)
    page.wait_for("document.querySelectorAll('#text .round').length > 2")
    page.press("Escape")
    wait_until_idle(page)
    assert page.look("document.getElementById('problem').hidden")


def test_a_decoding_and_a_race(page: Page, server: Served) -> None:
    opened(page, server)
    ask_for(page, 24)
    page.look("document.getElementById('run').click()")
    page.wait_for("document.getElementById('n-tokens').textContent === '24 tokens'")
    wait_until_idle(page)
    n_passes = int(words(page, "n-passes").split()[0])
    last = "document.querySelector('#text .round:last-child').matches('[aria-current]')"
    assert page.look(last) and words(page, "round-name") == f"Round {n_passes} of {n_passes}"
    assert 6 <= n_passes < 24
    assert words(page, "n-saved") == f"{24 - n_passes} passes saved"
    assert page.look("document.querySelectorAll('#depths .row').length") > 1
    # Bars stand on the line of their labels; a round without an accepted token is no success.
    assert page.look(
        "[...document.querySelectorAll('#depths .row')].every((row) => {"
        " const [a, b] = [...row.children].map((e) => e.getBoundingClientRect());"
        " return Math.abs(a.y + a.height / 2 - b.y - b.height / 2) < 2; })"
    )
    first = "document.querySelector('#depths .row')"
    assert page.look(f"{first}.querySelector('.depth').textContent") == "0"
    assert page.look(f"{first}.querySelector('.accepted')") is None
    page.call("Emulation.setEmulatedMedia", features=[])  # with all that moves
    page.look("document.getElementById('race').click()")
    page.wait_for("document.getElementById('verdict').textContent.includes('times plain')")
    wait_until_idle(page)
    said = words(page, "verdict")
    assert f"{n_passes} passes instead of 24, each of them" in said
    assert "The same text in all 6 runs." in said
    assert ("Slower" in said) == (float(said.split()[0]) < 1)
    lanes = page.look("[...document.querySelectorAll('article')].map((lane) => lane.innerText)")
    for shown, passes in zip(lanes, (24, n_passes), strict=True):
        assert f"{passes} passes" in shown and shown.count("·") == 2, shown
    page.look("document.getElementById('prompt').removeAttribute('required')")
    page.look("document.getElementById('prompt').value = ''")
    page.look("document.getElementById('run').click()")
    page.wait_for("!document.getElementById('problem').hidden")
    assert "empty" in words(page, "problem")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_at_any_width(page: Page, server: Served, scheme: str) -> None:
    opened(page, server)
    page.look("document.getElementById('race-box').hidden = false")
    for width in (1280, 375):
        page.dress(width, 800, scheme)
        assert page.look("document.documentElement.scrollWidth") <= width
        n_texts, faint = faint_texts(page)
        assert n_texts > 100 and not faint
    # A control: a grey that was too faint is found.
    page.look("document.documentElement.style.setProperty('--faint', '#808080')")
    assert faint_texts(page)[1]
    tree = "document.getElementById('tree')"
    assert page.look(f"{tree}.scrollWidth > {tree}.clientWidth && {tree}.tabIndex === 0")


def test_it_says_why_nothing_was_drafted(page: Page, server: Served) -> None:
    opened(page, server)
    about = {"policy": "planner", "reason": "the best draft costs 3 ms"}
    page.look(
        f"import('/view/about.js').then((m) => m.showWhy({json.dumps(about)},"
        " { bare: 1, rounds: [1] }, true))"
    )
    said = words(page, "why")
    assert said.startswith("The planner drafted nothing.The best draft costs 3 ms.A tree")


def test_a_character_of_several_tokens_stays_whole(page: Page, server: Served) -> None:
    opened(page, server)
    halves = [{"text": "\ufffd", "bytes": list(part)} for part in (b"\xc3", b"\xa4")]
    nodes = [{"is_accepted": True}, {**halves[0], "is_accepted": True}]
    told = {"nodes": nodes, "n_accepted": 1, "bonus": halves[1]}
    plain = {"nodes": nodes[:1], "n_accepted": 0, "bonus": {"text": "<end>"}}
    parts = page.look(
        "import('/view/decoding.js').then(({ Decoding }) => { const own = new Decoding('');"
        f" for (const told of {json.dumps([told, plain, told])}) own.takeRound(told);"
        " return own.takeText('\u00e4\u00e4').map((part) => [part.number, part.kind, part.text]);"
        " })"
    )
    assert parts == [[0, "own", "\u00e4"], [2, "own", "\u00e4"]]


def pick(page: Page, file: Path) -> None:
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    found = page.call("DOM.querySelector", nodeId=root, selector="#saved")["nodeId"]
    page.call("DOM.setFileInputFiles", files=[str(file)], nodeId=found)


def test_saved_rounds_are_replayed_without_a_server(
    page: Page, server: Served, static_files: str, saved: Path, tmp_path: Path
) -> None:
    rounds, text = rounds_and_text(server, max_tokens=16, temperature=0, ignore_eos=True)
    told = [{name: own[name] for name in own if name != "index"} for own in rounds]
    lines, until = [""], time.monotonic() + 10
    while json.loads(lines[-1] or "{}").get("rounds") != told:
        assert time.monotonic() < until, lines[-1]
        lines = saved.read_text(encoding="utf-8").splitlines()
    copy = tmp_path / "copy.jsonl"
    copy.write_text(f"{lines[-1]}\n{json.dumps({**json.loads(lines[-1]), 'text': ''})}\n" + "{cut")
    page.call("Page.navigate", url="about:blank")
    page.call("Page.navigate", url=static_files)
    page.wait_for("document.querySelector('#problem:not([hidden])') !== null")  # no server is here
    pick(page, copy)
    page.wait_for("document.getElementById('origin').textContent.startsWith('Saved on')")
    prompt = json.loads(lines[-1])["prompt"]  # as the target saw it
    assert prompt.endswith("def read_lines(path):\n") and words(page, "text") == prompt + text
    assert words(page, "n-passes") == f"{len(rounds)} target passes"
    assert page.look("document.querySelectorAll('#text .round').length") == len(rounds)
    assert page.look("document.getElementById('problem').hidden")
    assert page.look("document.getElementById('samples').options.length") == 2
    page.look("document.getElementById('samples').value = 1")
    page.look("document.getElementById('samples').dispatchEvent(new Event('change'))")
    assert words(page, "text") == prompt
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "a", "text": "b"}\n')
    pick(page, other)
    page.wait_for("!document.getElementById('problem').hidden")
    assert words(page, "problem") == "other.jsonl: line 1 is no saved sample: rounds are missing"
