"""Serving: arrivals are served in full, percentiles are of what was seen, energy may be unknown."""

from __future__ import annotations

import ctypes
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.bytes import prompt_flops, weight_bytes
from aerie.bench.profile.serving import REHEARSAL, arrivals, run_serving
from aerie.bench.profile.session import Session, Sizes
from aerie.bench.provenance import Meter, Spent, open_meter, spend
from aerie.bench.record import percentiles
from aerie.bench.round.setup import RoundSetup

SETUP = RoundSetup("cpu", "float32", None, "pytorch")


def test_percentiles() -> None:
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p99": 3.0}
    assert percentiles([float(n) for n in range(101)]) == {"p50": 50.0, "p99": 99.0}


def test_arrivals_are_the_same_every_time() -> None:
    first, second = (arrivals(REHEARSAL, 4096, 0.1) for _ in range(2))
    assert first == second
    assert [len(entry.prompt) for entry in first] == [32, 64, 32, 64, 32]
    assert first[0].at == 0 and all(a.at < b.at for a, b in pairwise(first))


def test_both_scenarios_are_written(tmp_path: Path) -> None:
    session = Session(SETUP, tmp_path, (), "tree3", Sizes(), True)
    record = run_serving(session)
    assert record["ok"]
    assert [(e["policy"], e["requests"], e["tokens"]) for e in record["mixed"]] == [
        ("plain", 5, 60),
        ("tree3", 5, 60),
    ]
    assert all(e["joules_per_token"] is None for e in record["mixed"])
    assert {entry["context"] for entry in record["ttft"]} == {48, 96}
    assert all(entry["ceiling_ms"] > 0 for entry in record["ttft"])
    written = json.loads((tmp_path / "cpu_serving.json").read_text(encoding="utf-8"))
    assert written["provenance"]["source_sha256"] and len(written["ttft"]) == 8
    assert "| tree3 | 5 |" in (tmp_path / "cpu_serving.md").read_text(encoding="utf-8")


def test_ceiling_of_a_prompt_counts_products_attention_and_one_row_of_logits() -> None:
    target = SETUP.load().target
    weights = weight_bytes(target) / 4
    head = target.geometry.vocab_size * target.geometry.hidden_size
    n = 100
    products = 2.0 * n * (weights - head) + 2.0 * head
    assert products < prompt_flops(target, n) < 1.2 * products


class FakeLibrary:
    """NVML with a counter that grows by half a joule every time it is read."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.reads = 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> int:
        self.reads += 1
        value._obj.value = 500 * self.reads
        return self.status


def test_energy_of_a_stretch_of_work() -> None:
    meter = Meter(FakeLibrary(), ctypes.c_void_p())
    spent = spend(meter, 0.0001, lambda: 10)
    assert spent.joules == pytest.approx(0.5)
    assert spent.joules_per_token == pytest.approx(0.5 / spent.n_tokens, abs=1e-4)
    assert open_meter("cpu") is None
    refused = Meter(FakeLibrary(status=3), ctypes.c_void_p())
    assert spend(refused, 0.0001, lambda: 1).joules_per_token is None
    assert Spent(0, 1.0, 3.0).joules_per_token is None
