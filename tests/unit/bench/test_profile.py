"""A profile's pieces: traces, modelled bytes, engines that take over KV, ranges, tuned choices."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from aerie.attention.triton import TileKey, load_tiles
from aerie.bench.bytes import Load, round_traffic, step_bytes, total_bytes
from aerie.bench.kernels.attention import label
from aerie.bench.profile.session import POLICIES, Point, Session, Sizes, room_at
from aerie.bench.profile.stages import run_stage
from aerie.bench.profile.tuning import check_tiles
from aerie.bench.ranges import NAMES, with_ranges
from aerie.bench.round.setup import RoundSetup
from aerie.bench.trace import OUTSIDE, KernelSpan, Trace, read_trace, trace_rounds
from aerie.config import GraphConfig
from aerie.models.inflate.embed import LargePair

SETUP = RoundSetup("cpu", "float32", None, "pytorch")


@pytest.fixture(scope="module")
def pair() -> LargePair:
    return SETUP.load()


def event(cat: str, name: str, start: float, us: float, correlation: int = -1) -> dict[str, Any]:
    args = {} if correlation < 0 else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": us, "args": args}


EVENTS = [
    event("cuda_runtime", "cudaGraphLaunch", 1, 5, 7),
    event("cuda_runtime", "cudaGraphLaunch", 13, 5, 8),
    event("cuda_runtime", "cudaLaunchKernel", 30, 1, 9),
    event("kernel", "_dot_kernel", 100, 50, 7),
    event("kernel", "attend_kernel", 140, 20, 7),
    event("kernel", "_gemv_kernel", 170, 10, 8),
    event("gpu_memcpy", "Memcpy DtoH", 180, 20, 9),
    {"ph": "M", "name": "process_name"},
]


def test_kernels_belong_to_the_graph_that_launched_them() -> None:
    spans = [("verify", (0.0, 0.1)), ("draft", (0.1, 0.2))]
    trace = read_trace(EVENTS, spans, 1)
    assert [entry.phase for entry in trace.intervals] == ["verify", "verify", "draft", OUTSIDE]
    assert [entry.part for entry in trace.intervals[:3]] == ["linear", "attention", "linear"]
    assert trace.span_us == 100
    assert trace.busy_us == 90  # 100 to 160 with an overlap, then 170 to 200
    assert trace.busy_share == pytest.approx(0.9)
    assert trace.by("part") == {
        ("linear",): (2.0, 60.0),
        ("attention",): (1.0, 10.0),
        ("bookkeeping",): (1.0, 20.0),
    }
    assert {e.phase for e in read_trace(EVENTS, spans[:1], 1).intervals} == {OUTSIDE}
    found = trace.summary()
    assert found["shares"] == {"attention": 0.2, "bookkeeping": 0.2, "linear": 0.6}
    assert (found["busy_us_per_round"], found["device_to_host_reads"]) == (100, 1)
    assert (found["graph_launches"], found["launches_outside_graphs"]) == (2, 1)


def test_union_of_spans() -> None:
    def busy(*spans: tuple[float, float]) -> float:
        kernels = tuple(KernelSpan("verify", "linear", "k", *span) for span in spans)
        return Trace(1, kernels, {}, {}).busy_us

    assert busy() == 0
    assert busy((0, 2), (1, 3), (5, 6), (5, 5.5)) == 4


def test_plain_bytes_are_those_of_the_step_and_its_activations(pair: LargePair) -> None:
    found = round_traffic(pair, POLICIES["plain"], Load(1, 100, 1))
    stored = [entry for entry in found if entry.what in ("weights", "kv")]
    hidden = pair.target.geometry.hidden_size * 4
    assert total_bytes(stored) == step_bytes(pair.target, 100, 1) - hidden
    assert total_bytes(found) < 1.1 * total_bytes(stored)
    assert {entry.phase for entry in found} == {"verify"}


def test_a_round_reads_the_head_once_a_level(pair: LargePair) -> None:
    def head_weights(policy: str) -> float:
        found = round_traffic(pair, POLICIES[policy], Load(2, 64, 16))
        return sum(e.n_bytes for e in found if (e.phase, e.what) == ("draft", "weights"))

    levels = head_weights("chain5") - head_weights("chain3")
    size = pair.head.summary.geometry
    lm_head = 4 * size.draft_vocab_size * size.hidden_size
    assert levels > 2 * lm_head
    assert head_weights("tree3") == head_weights("chain3")


def test_codes_of_a_head_are_a_byte_each(pair: LargePair) -> None:
    eight = replace(SETUP, draft_products="fp8").load()

    def weights(own: LargePair, phase: str) -> float:
        found = round_traffic(own, POLICIES["chain3"], Load(1, 64, 4))
        return sum(e.n_bytes for e in found if (e.phase, e.what) == (phase, "weights"))

    assert 4 * weights(eight, "draft") == weights(pair, "draft")
    assert weights(eight, "verify") == weights(pair, "verify")


def test_buckets_of_a_batch_that_shrinks() -> None:
    shape, point = POLICIES["tree3"], Point(64, 4)
    rows = [point.load(shape, GraphConfig(), n).verify_rows for n in (4, 3, 2, 1)]
    assert rows == [32, 32, 16, 8]
    kept = GraphConfig(slots=(4,), rows=(32,))
    assert [point.load(shape, kept, n).batch for n in (4, 1)] == [4, 4]


@pytest.mark.parametrize("engine", ["direct", "graphs"])
def test_ranges_are_named_and_change_nothing(engine: str, pair: LargePair) -> None:
    setup = RoundSetup("cpu", "float32", None, "pytorch", engine)
    point = Point(24, 1)
    texts = []
    for wrap in (with_ranges, lambda core: core):
        core = wrap(setup.core(pair, POLICIES["tree3"], room_at(point, 16)))
        (request_id,) = point.open(core, [16])
        core.step()
        trace = trace_rounds(core, 2)
        texts.append(core.request(request_id).output)
        assert set(trace.ranges_us) == (set(NAMES) if len(texts) == 1 else set())
    assert texts[0] == texts[1]


def swept(trials: dict[str, float], batch: int = 1, columns: int = 32768) -> dict[str, Any]:
    """One point of a sweep, at a key that the shipped table has."""
    key = TileKey(queries=16, columns=columns, batch=batch, head_dim=128, element_bytes=2)
    listed = [{"tile": tile, "microseconds": us} for tile, us in trials.items()]
    where = {"rows": 1, "columns": columns, "batch": batch, "is_tree": True}
    return {"key": asdict(key), **where, "trials": listed}


def test_a_tile_is_held_against_the_fastest_of_its_sweep() -> None:
    key = TileKey(queries=16, columns=32768, batch=1, head_dim=128, element_bytes=2)
    own = label(load_tiles().choose(key).tile)
    sweeps = [
        swept({own: 40.0, "other": 41.0}),
        swept({own: 40.0, "other": 39.0}),  # 2.6 % behind
        swept({own: 40.0, "other": 36.0}),  # 11 %
        swept({"other": 36.0}),  # never timed
        swept({own: 40.0, "other": 20.0}, batch=4, columns=1024),  # not asked for
    ]
    found = check_tiles({"points": sweeps})
    assert [entry["ok"] for entry in found] == [True, True, False, False]
    assert [entry["ratio_to_best"] for entry in found[:3]] == [1.0, 1.0256, 1.1111]
    assert found[3]["ratio_to_best"] == float("inf")


def test_kernels_stage_writes_its_files(tmp_path: Path, pair: LargePair) -> None:
    session = Session(SETUP, tmp_path, (Point(24, 1),), "tree3", Sizes(2, 2, 0.01), True)
    session.kept["pair"] = pair
    record = run_stage(session, "kernels")
    assert record["ok"] and record["provenance"]["commit"]
    assert [point["policy"] for point in record["points"]] == ["plain", "tree3"]
    assert set(record["points"][1]["ranges_us_direct"]) == set(NAMES)
    with (tmp_path / "cuda_bytes_per_token.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["phase"] for row in rows} == {"verify", "draft"}
    assert all(row["kind"] == "modelled" and row["contract"] for row in rows)
    assert "| 1 |" in (tmp_path / "hotspots_ranked.md").read_text(encoding="utf-8")
