"""The captured calls in tests/data/dumps replay on every backend that runs here."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from aerie.kernels import catalogue, load
from aerie.kernels.registry import backend_info, why_unavailable
from aerie.parity.dump import find_dumps, read_dump
from aerie.parity.replay import replay_dumps
from tests.laws.tree import ROOT

DUMPS = ROOT / "tests" / "data" / "dumps"
BACKENDS = ("reference", "numpy", "pytorch", "hls")
# Of the captures made on a CPU, and of those of an accelerator, each a folder of its own.
LARGEST, LARGEST_FOLDER = 2_000_000, 8_000_000


@pytest.mark.parametrize("backend", BACKENDS)
def test_dumps_replay(backend: str) -> None:
    reason = why_unavailable(backend_info(backend))
    if reason:
        pytest.skip(f"dumps on {backend}: {reason}")
    report = replay_dumps(load(backend, data_errors="status"), find_dumps(DUMPS))
    assert not report.failed, "\n".join(f"{r.case}: {r.reason}" for r in report.failed)
    assert set(report.kernels) == set(catalogue())


def test_the_set_is_representative_and_small() -> None:
    dumps = [read_dump(path) for path in find_dumps(DUMPS)]
    live = Counter(dump.card.name for dump in dumps if "call" in dump.provenance)
    assert len(live) >= 10, "most kernels come from a live engine"
    reasons = {reason for dump in dumps for reason in dump.provenance.get("reasons", ())}
    assert {"first", "width-change", "batch-change", "zero-accepted", "finished"} <= reasons
    assert len({dump.outcome for dump in dumps}) >= 10, "refusals are part of the contract"
    # In full, or as short as git writes it: a bare GPU machine is told its commit.
    assert all(re.fullmatch("[0-9a-f]{7,40}", dump.provenance["commit"]) for dump in dumps)
    assert sum(path.stat().st_size for path in DUMPS.glob("*.safetensors")) <= LARGEST
    for folder in DUMPS.iterdir():
        if folder.is_dir():
            size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
            assert size <= LARGEST_FOLDER, folder.name
