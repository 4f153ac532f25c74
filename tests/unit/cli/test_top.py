"""`aerie top`: what it reads from a page of metrics, and the frame it makes of two of them."""

import json
import math
from typing import Any

import pytest
from rich.console import Console

from aerie.cli import scrape as scrape_module
from aerie.cli.scrape import Scrape, added, parse, percentile, scrape
from aerie.cli.top import frame
from aerie.completion import Completion
from aerie.requests.params import SamplingParams
from aerie.requests.request import Statistics
from aerie.server.metrics import Metrics, Standing
from aerie.server.samples import Ask, End

URL = "http://127.0.0.1:8000"
ABOUT = {"model": "a model", "policy": "planner", "reason": "drafts pay"}


def look(metrics: Metrics, when: float) -> Scrape:
    page = metrics.page(Standing(3, 2, 0.25, 700, 0, 0)).decode()
    return Scrape(when, "ready", ABOUT, *parse(page))


def drawn(*looks: Scrape) -> str:
    console = Console(width=140, record=True, quiet=False, file=None, highlight=False)
    with console.capture() as captured:
        console.print(frame(URL, list(looks)))
    return captured.get()


def cells(text: str, row: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(row))
    return [cell for cell in line.strip().removeprefix(row).split("   ") if cell.strip()]


def test_two_looks_make_a_frame() -> None:
    metrics = Metrics("a model", "vllm")
    before = look(metrics, 10.0)
    metrics.entered(40)
    metrics.first_text(0.05)
    metrics.grew(6, None)
    for _ in range(9):
        metrics.grew(6, 0.02)
    statistics = Statistics(num_drafts=10, num_accepted_tokens=20)
    statistics.near_ties.count(("1024", "1"), 60, 3)
    completion = Completion("", tuple(range(60)), "stop", 0, statistics)
    metrics.ended(Ask((1,), SamplingParams(), 0), End(0, completion), 0.0, None)
    metrics.refused(429)
    shown = drawn(before, look(metrics, 12.0))
    assert shown.splitlines()[0].split() == ["aerie", "top", URL, "a", "model", "ready"]
    assert cells(shown, "tokens/s out")[0].strip() == "30.0"
    assert cells(shown, "tokens/s in")[0].strip() == "20.0"
    assert cells(shown, "rounds/s")[0].strip() == "5.0"
    assert cells(shown, "acceptance")[0].strip() == "3.00"
    assert cells(shown, "near ties")[0].strip() == "5.0e-02 of 60 tokens"
    assert cells(drawn(before), "near ties")[0].strip() == "-"
    assert "3 running, 2 waiting" in shown and "700 tokens pending" in shown
    assert "█████░" in shown and "25.0 %" in shown and "last 2.0 s" in shown
    assert "p50 18 ms" in cells(shown, "gap")[0] and "p99 60 ms" in cells(shown, "first token")[0]
    assert "stop 1" in shown and "429 1" in shown and "policy planner: drafts pay" in shown
    # Nothing in between, a first look, and a server that was started anew.
    quiet = drawn(look(metrics, 12.0), look(metrics, 13.0))
    assert "p50 -" in cells(quiet, "gap")[0] and cells(quiet, "acceptance")[0].strip() == "-"
    assert cells(drawn(look(metrics, 12.0)), "tokens/s out")[0].strip() == "-"
    old = look(metrics, 12.0)
    old.values["uptime_seconds"] = 1e6
    assert cells(drawn(old, look(Metrics("a model"), 13.0)), "tokens/s out")[0].strip() == "-"


def test_percentiles_lie_within_their_bucket() -> None:
    buckets = [(0.1, 0.0), (0.2, 10.0), (0.4, 20.0), (math.inf, 20.0)]
    assert percentile(buckets, 0.5) == pytest.approx(0.2)
    assert percentile(buckets, 0.75) == pytest.approx(0.3)
    assert percentile([(0.1, 0.0), (math.inf, 5.0)], 0.5) == 0.1
    assert percentile(added(buckets, buckets), 0.5) is None and percentile([], 0.5) is None


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (json.dumps({"status": "failed", "reason": "killed"}), "failed: killed"),
        (json.dumps({"status": "loading"}), "loading"),
        ("<html>", "no answer"),
        (json.dumps(["ready"]), "no answer"),
    ],
)
def test_who_does_not_serve_says_so(
    health: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(url: str, key: Any) -> str:
        return health

    monkeypatch.setattr(scrape_module, "_get", get)
    found = scrape(URL, None)
    assert words in found.status and not found.values
    assert words in drawn(found)
