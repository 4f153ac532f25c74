"""What `scripts/peers` prints of rows, and what it makes of another client's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.serve.peer import Load
from scripts.peers.peer_tables import print_tables
from scripts.peers.vllm_client import row_of

GREEDY = {"temperature": 0.0}


def decode(lane: str, group: int, speed: float, ids: list[list[int]]) -> dict[str, Any]:
    place = {"point": "2x64", "group": group, "turn": 0, "run": "a", "sampling": GREEDY}
    seconds = {"fresh_s": 0.2, "one_s": 0.1, "full_s": 1.0}
    figures = {"tokens_per_second": speed, "acceptance_length": 3.5, "ids": ids}
    return {"kind": "decode", "lane": lane, **place, **seconds, **figures}


def served(lane: str, speed: float, first: float) -> dict[str, Any]:
    found = {
        "duration": 2.0,
        "total_output_tokens": 400,
        "total_input_tokens": 2048,
        "output_throughput": speed,
        "median_ttft_ms": first,
        "p99_ttft_ms": 2 * first,
        "median_itl_ms": 5.0,
        "p99_itl_ms": 10.0,
        "failed": 1,
        "spec_decode_acceptance_length": 4.5,
    }
    row = row_of(Load("greedy", 8, 64), found)
    return {"kind": "served", "lane": lane, "run": "a", "group": 0, **row}


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phases = {"reading": 1.0, "recording": 2.5}
    ready = {"kind": "ready", "run": "a", "sampling": GREEDY, "seconds": 4.0, "phases": phases}
    rows = [{**ready, "lane": "aerie planner"}]
    for group in range(8):
        rows.append(decode("vllm chain7", group, 100.0, [[1, 2], [3, 4]]))
        rows.append(decode("aerie planner", group, 150.0, [[1, 2], [3, 5]]))
    sampled = {"sampling": {"temperature": 0.8}}
    for lane, speed in (("vllm plain", 35.0), ("vllm chain7", 50.0), ("aerie planner", 70.0)):
        rows.append({**decode(lane, 0, speed, [[1, 2], [3, 4]]), **sampled})
    rows += [served("vllm chain7", 1000.0, 50.0), served("aerie planner", 1500.0, 40.0)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print_tables([path])
    said = capsys.readouterr().out
    for line in (
        "| ready | 4.0 (reading 1.0, recording 2.5) |",
        "| | vllm chain7 | aerie planner | vllm plain |",
        "| 2x64 | 100 (100..100), 3.50 | 150 (150..150), 3.50 | - |",
        '| 2x64 {"temperature": 0.8} | 50 (50..50), 3.50 | 70 (70..70), 3.50 | 35',
        "| 2x64 | 16 of 16 | 8 of 16 | - |",
        "fastest of vLLM at 2x64: vllm chain7",
        "| 2x64 | aerie planner | vllm chain7 | 8 | 1.500 (1.500..1.500) |",
        '| 2x64 {"temperature": 0.8} | aerie planner | vllm chain7 | 1 | 1.400',
        "aerie planner over the fastest chain at each point, greedy: geometric mean 1.500",
        "| greedy 8 | 1000, 4.50; 1 | 1500, 4.50; 1 |",
        "| greedy 8 | aerie planner | vllm chain7 | 1 | 0.800 (0.800..0.800) |",
    ):
        assert line in said, f"{line}\n{said}"
    assert "| aerie planner | vllm plain | 1 |" not in said, "plain decoding is no rival of drafts"
    assert "gap by its tokens" not in said, "this client does not count the tokens of a chunk"
