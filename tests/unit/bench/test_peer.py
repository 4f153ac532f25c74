"""Beside other engines: figures of a load are those of its streams, ratios are of one group."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.peers import are_rivals, best_chains, geometric_means, ratios
from aerie.bench.record import append_row, read_rows
from aerie.bench.serve.load import (
    Arrival,
    Heard,
    Reply,
    read_counters,
    read_stream,
    read_whole,
)
from aerie.bench.serve.peer import (
    Load,
    PromptTerms,
    drafted,
    gaps_of,
    read_peer_contract,
    summarise,
    write_prompts,
)
from aerie.errors import UsageError

LOAD = Load("greedy", 2, 4)


def line(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n"


def event(text: str, n_tokens: int | None) -> bytes:
    usage = {} if n_tokens is None else {"usage": {"completion_tokens": n_tokens}}
    return line({"choices": [{"text": text}], **usage})


def stream(*lines: bytes) -> Heard:
    """Lines that come a second after each other."""
    return Heard(tuple((float(at), own) for at, own in enumerate(lines, 1)), len(lines) + 0.5)


def test_arrivals_are_events_that_bring_tokens() -> None:
    total = {"completion_tokens": 5, "prompt_tokens": 7}
    heard = stream(
        event("", 0),  # the role
        event("ab", 2),
        b"\n",
        event("", 3),  # a part of a character
        event("c", 5),
        event("", 5),  # why it ended
        line({"choices": [], "usage": total}),
        b"data: [DONE]\n",
    )
    reply = read_stream(heard)
    assert (reply.text, reply.n_tokens, reply.n_prompt) == ("abc", 5, 7)
    assert reply.arrivals == (Arrival(2.0, 2), Arrival(4.0, 1), Arrival(5.0, 2))
    assert reply.first_seconds == 2.0


def test_without_counts_texts_are_arrivals() -> None:
    reply = read_stream(stream(event("ab", None), event("", None), event("c", None)))
    assert reply.arrivals == (Arrival(1.0, None), Arrival(3.0, None))
    assert reply.n_tokens is None


def test_an_error_in_a_stream_is_no_answer() -> None:
    with pytest.raises(UsageError, match="out of memory"):
        read_stream(stream(event("a", 1), line({"error": {"message": "out of memory"}})))


def test_a_whole_answer_arrives_at_once() -> None:
    body = {"choices": [{"text": "ab"}], "usage": {"completion_tokens": 2, "prompt_tokens": 3}}
    reply = read_whole(Heard(((0.5, json.dumps(body).encode()),), 0.75))
    assert reply == Reply("ab", 0.75, (Arrival(0.75, 2),), 2, 3)
    assert reply.first_seconds == 0.75


def reply(*arrivals: tuple[float, int | None]) -> Reply:
    stamped = tuple(Arrival(at, n) for at, n in arrivals)
    return Reply("x", 9.0, stamped, sum(n or 0 for _, n in arrivals), 10)


def test_gaps_belong_to_the_tokens_that_end_them() -> None:
    gaps = gaps_of(reply((1.0, 1), (1.5, 5), (1.7, 1)))
    assert [gap.n_tokens for gap in gaps] == [5, 1]
    assert [gap.ms for gap in gaps] == pytest.approx([500, 200])


def test_figures_of_a_load() -> None:
    replies = [reply((0.1, 1), (0.3, 4)), reply((0.2, 2), (0.5, 3)), reply((0.4, 5))]
    found = summarise(LOAD, [*replies, "the server answers 500"], 2.0)
    assert (found["tokens"], found["tokens_per_second"]) == (15, 7.5)
    assert found["ttft_ms"] == {"p50": 200.0, "p99": 400.0}
    assert found["gap_ms"] == {"p50": 250.0, "p99": 300.0}
    assert found["gap_per_token_ms"] == {"p50": 75.0, "p99": 100.0}
    assert (found["errors"], found["messages"]) == (1, ["the server answers 500"])
    assert len(found["requests"]) == 3 and found["prompt_tokens"] == 30


def test_figures_that_are_unknown_are_none() -> None:
    silent = summarise(LOAD, [reply((0.1, None), (0.3, None))], 1.0)
    assert silent["gap_ms"] == {"p50": 200.0, "p99": 200.0}
    assert silent["gap_per_token_ms"] is None
    assert summarise(LOAD, ["refused"], 1.0)["ttft_ms"] is None


@pytest.mark.parametrize(
    "page",
    [
        "# TYPE aerie_spec_decode_num_drafts_total counter\n"
        "aerie_spec_decode_num_drafts_total 4.0\n"
        "aerie_spec_decode_num_accepted_tokens_total 10.0\n"
        "aerie_prefix_cache_hits_total 32.0\n",
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 4.0\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 10.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3.0\n'
        'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 32.0\n'
        'vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 5.0\n'
        'vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9\n',
    ],
)
def test_both_servers_count_drafts(page: str) -> None:
    counted = {"num_drafts": 4, "num_accepted_tokens": 10, "prefix_cache_hits": 32}
    assert read_counters(page) == counted
    assert drafted(read_counters(page))["acceptance_length"] == 3.5


def test_servers_need_not_count() -> None:
    assert drafted(read_counters("")) == {"counters": {}, "acceptance_length": None}


@pytest.mark.parametrize("path", sorted(Path("evidence/contracts/peers").glob("*.toml")), ids=str)
def test_contracts_can_be_read(path: Path) -> None:
    contract = read_peer_contract(path)
    assert contract.name == path.stem
    assert contract.of_turn(0) == (contract.first, *contract.of_turn(1))


def test_contract_asks_what_the_comparison_claims() -> None:
    contract = read_peer_contract(Path("evidence/contracts/peers/serve.toml"))
    assert (contract.new_tokens, contract.prompts.tokens, contract.first.requests) == (
        200,
        1024,
        16,
    )
    greedy = {load.clients: load.requests for load in contract.loads if load.name == "greedy"}
    assert greedy == {1: 32, 8: 64, 32: 128, 64: 192}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 'x'", "PromptTerms needs the key 'tokens'"),
        ("[prompts]\ntokens = 8\ntexts = 1\nwords = 2", "words"),
        ("[prompts]\ntokens=8\ntexts=1\n[first]\nname='a'\nclients=3\nrequests=2", "2 requests"),
        ("name = ", "is not TOML"),
    ],
)
def test_wrong_contracts_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        read_peer_contract(path)


def test_no_prompt_begins_like_another() -> None:
    terms = PromptTerms(tokens=24, texts=2)
    prompts = [text for turn in range(2) for text in write_prompts(terms, 5, turn)]
    assert len({text.splitlines()[0] for text in prompts}) == 10
    assert prompts[0].partition("\n")[2] == prompts[2].partition("\n")[2]
    assert prompts == [text for turn in range(2) for text in write_prompts(terms, 5, turn)]


def row(
    lane: str, group: int, speed: float, point: str = "1x512", run: str = "a"
) -> dict[str, Any]:
    place = {"point": point, "run": run, "group": group}
    return {"lane": lane, "tokens_per_second": speed, **place}


def test_ratios_are_of_one_group_of_one_run() -> None:
    rows = [row("vllm chain7", group, 100.0 + group) for group in range(8)]
    rows += [row("aerie planner", group, 2 * (100.0 + group)) for group in range(8)]
    rows += [row("aerie planner", 0, 999.0, run="b"), row("aerie planner", 8, 999.0)]
    (found,) = ratios(rows)
    assert (found.lane, found.base, found.n_groups) == ("aerie planner", "vllm chain7", 8)
    assert (found.value.low, found.value.median, found.value.high) == (2.0, 2.0, 2.0)


def test_turns_of_a_group_count_as_their_median() -> None:
    rows = [row("vllm plain", 0, 10.0), *(row("aerie plain", 0, speed) for speed in (9, 12, 90))]
    assert ratios(rows)[0].value.median == pytest.approx(1.2)


def test_rivals_do_the_same() -> None:
    assert are_rivals("aerie plain", "vllm plain") and are_rivals("aerie planner", "vllm chain3")
    assert not are_rivals("aerie planner", "vllm plain")
    assert not are_rivals("aerie plain", "vllm chain3")
    assert not are_rivals("vllm chain3", "vllm chain7")
    assert not are_rivals("aerie planner", "aerie chain7")


def test_best_chain_and_mean_over_points() -> None:
    rows = [row("vllm chain3", 0, 10.0), row("vllm chain7", 0, 20.0), row("vllm plain", 0, 50.0)]
    rows += [row("aerie planner", 0, 40.0)]
    rows += [row("vllm chain3", 0, 10.0, "8x1024"), row("aerie planner", 0, 80.0, "8x1024")]
    assert best_chains(rows) == {"1x512": "vllm chain7", "8x1024": "vllm chain3"}
    assert geometric_means(ratios(rows)) == {("aerie planner", False): pytest.approx(math.sqrt(16))}


def test_rows_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for group in range(2):
        append_row(path, row("aerie plain", group, 1.0))
    assert [own["group"] for own in read_rows([path])] == [0, 1]
