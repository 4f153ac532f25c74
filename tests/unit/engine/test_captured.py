"""Captured rounds: launched before the last report is read, one read each, nothing astray."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.config import SpeculationConfig
from aerie.engine.captured import Captured
from aerie.engine.engine import EngineCore
from aerie.engine.sampler import EVERYTHING, GREEDY
from aerie.requests.params import SamplingParams
from aerie.speculation.planner import Planner
from tests.unit.engine.cores import (
    BUCKETS,
    CHEAP,
    DEAR,
    PLAIN,
    Pair,
    assert_pool_is_unheld,
    captured,
    core,
    finish_all,
    outputs,
)
from tests.unit.engine.test_engine import assert_kv_is_fresh
from tests.unit.engine.test_lossless import make_jobs

SHAPES = {
    "none": PLAIN,
    "tree": SpeculationConfig(top_k=3, depth=3, nodes=12),
    "merged": SpeculationConfig(method="eagle3+ngram", top_k=2, depth=3, nodes=9),
    "planner": SpeculationConfig(policy="planner", top_k=3, depth=3, nodes=12),
}
LONG = SamplingParams(max_tokens=60, ignore_eos=True)


def graphs_core(pair: Pair, shape: str, **settings: Any) -> EngineCore:
    return core(pair, speculation=SHAPES[shape], engine="graphs", **settings)


def watch(launcher: Captured, look: Callable[[Any], None]) -> None:
    """Have every key looked at before its function is launched."""
    launch = launcher.graphs.run

    def watched(key: Any, call: Callable[[], Any]) -> Any:
        look(key)
        return launch(key, call)

    launcher.graphs.run = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("shape", SHAPES)
def test_steady_rounds_do_not_wait_for_a_report(pair: Pair, shape: str) -> None:
    engine = graphs_core(pair, shape)
    for prompt in ([1, 2, 3], [4, 5]):
        engine.submit(prompt, LONG)
    finish_all(engine)
    counts = captured(engine).counts
    assert counts.ahead > counts.rounds // 2
    # No request joins or leaves in between: nothing is written into the buffers.
    assert counts.seatings <= 4


@pytest.mark.parametrize("shape", ["tree", "planner"])
def test_drafts_in_eight_bits_run_ahead(pair: Pair, eight_bit_pair: Pair, shape: str) -> None:
    jobs = [([1, 2, 3], LONG), ([4, 5], replace(LONG, temperature=0.7, seed=3))]
    engine = graphs_core(eight_bit_pair, shape)
    assert outputs(engine, jobs) == outputs(core(pair, speculation=PLAIN), jobs)
    counts = captured(engine).counts
    assert counts.ahead > counts.rounds // 2


class Event:
    """Stands for a device's: counts waits for it."""

    def __init__(self) -> None:
        self.n_records = self.n_waits = 0

    def record(self) -> None:
        self.n_records += 1

    def synchronize(self) -> None:
        self.n_waits += 1


def storages(value: Any) -> set[int]:
    """Where every tensor of a value lies."""
    if isinstance(value, Tensor):
        return {value.untyped_storage().data_ptr()}
    if isinstance(value, dict):
        return {place for entry in value.values() for place in storages(entry)}
    if is_dataclass(value):
        return {place for f in fields(value) for place in storages(getattr(value, f.name))}
    return set()


READS = ("tolist", "item", "numpy", "nonzero", "cpu", "__bool__", "__int__", "__float__")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_host_reads_one_report_a_round_and_nothing_else(
    pair: Pair, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever joins, ends or leaves: a read of any other buffer would wait for the device."""
    engine = graphs_core(pair, shape, backend="pytorch", audit=False)
    launcher = captured(engine)
    parts = launcher.parts
    events = [Event() for _ in parts.state.pages]
    launcher._pages = deque(
        replace(page, done=event)  # type: ignore[arg-type]
        for page, event in zip(launcher._pages, events, strict=True)
    )
    buffers = storages(parts.state) | storages(parts.table) | storages(parts.pool)
    assert not buffers & storages(dict(enumerate(parts.state.pages))), "pages are the host's own"
    is_launched, n_flights, seen = False, 0, list[str]()

    def look(key: Any) -> None:
        nonlocal n_flights
        n_flights += key[0] == "publish"

    watch(launcher, look)
    inner = launcher.graphs.run

    def launched(key: Any, call: Callable[[], Any]) -> Any:
        nonlocal is_launched
        is_launched = True
        found = inner(key, call)
        is_launched = False
        return found

    launcher.graphs.run = launched  # type: ignore[method-assign]

    def counted(name: str) -> Callable[..., Any]:
        plainly = getattr(Tensor, name)

        def read(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
            # Functions that a device replays are another matter: `test_captured_reads`.
            if not is_launched and tensor.untyped_storage().data_ptr() in buffers:
                seen.append(name)
            return plainly(tensor, *arguments, **named)

        return read

    for name in READS:
        monkeypatch.setattr(Tensor, name, counted(name))
    ids = [engine.submit([1, 2, 3], LONG)]
    for step in range(200):
        if step in (4, 9):
            ids.append(engine.submit([step] * step, replace(LONG, max_tokens=12)))
        if step == 14:
            engine.submit([5, 6], replace(LONG, temperature=0.8, seed=1, top_p=0.9))
        if engine.is_idle:
            break
        engine.step()
    assert engine.is_idle and not seen
    assert len(engine.request(ids[0]).output) == 60
    # A report is read once; what a stopped round left under way may never be.
    n_waits = sum(event.n_waits for event in events)
    assert n_waits <= sum(event.n_records for event in events) == n_flights
    assert n_flights - n_waits <= 2
    assert n_flights <= launcher.counts.rounds + launcher.counts.seatings


@pytest.mark.parametrize("options", ["greedy", "nucleus"])
@pytest.mark.parametrize("shape", ["tree", "merged", "planner"])
def test_rows_that_nobody_counted_fit_their_bucket(pair: Pair, shape: str, options: str) -> None:
    engine = graphs_core(pair, shape)
    launcher = captured(engine)
    chosen, spare = launcher.parts.state.chosen, []

    def look(key: Any) -> None:
        if key[0] == "verify":
            spare.append(key[1].rows - int(chosen[: key[1].seats].sum()))
            assert key[1].options == (GREEDY if options == "greedy" else EVERYTHING)

    watch(launcher, look)
    params = LONG if options == "greedy" else replace(LONG, temperature=0.9, top_p=0.8, seed=2)
    for first in (1, 2, 3):
        engine.submit([first, 2], params)
    finish_all(engine)
    assert launcher.counts.ahead > 5
    assert min(spare) >= 0


def test_what_would_pad_a_chunk_reads_the_next_prompt(pair: Pair) -> None:
    """A chunk of 20 takes a graph of 64 rows: the 30 tokens behind it are read in the same one."""
    jobs = [([n % 7 for n in range(size)], SamplingParams(max_tokens=3)) for size in (20, 30)]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    engine, n_read = graphs_core(pair, "none", chunk=20), Counter[str]()
    watch(captured(engine), lambda key: n_read.update([key[0]]))
    assert outputs(engine, jobs) == plain
    assert n_read["read"] == 1


def test_a_chunk_of_more_prompts_than_the_largest_bucket_of_requests(pair: Pair) -> None:
    """Short prompts that arrive together; those beyond it once were taken as read."""
    jobs = [([n, 7], SamplingParams(max_tokens=3)) for n in range(2 * BUCKETS.slots[-1])]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    assert outputs(graphs_core(pair, "none", chunk=64), jobs) == plain


@pytest.mark.parametrize("shape", SHAPES)
def test_a_text_that_stops_while_its_next_round_runs(pair: Pair, shape: str) -> None:
    """The round in vain touches neither the text, nor its neighbours, nor pages kept for others."""
    free = [([n, 2, 3], SamplingParams(max_tokens=40, ignore_eos=True)) for n in range(1, 5)]
    texts = outputs(core(pair, speculation=PLAIN), free)
    jobs = [
        (prompt, SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=(text[at],)))
        for at, (prompt, _), text in zip((9, 17, 25, 39), free, texts, strict=True)
    ]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    assert any(len(text) < 40 for text in plain)
    engine = graphs_core(pair, shape)
    assert outputs(engine, jobs) == plain
    assert captured(engine).counts.ahead > 0
    # The same prompts, and then those with their answers: found again in the prefix cache.
    short = SamplingParams(max_tokens=6)
    longer = [([*p, *text], short) for (p, _), text in zip(jobs, plain, strict=True)]
    ids = [engine.submit(prompt, params) for prompt, params in longer]
    while not engine.is_idle:
        engine.step()
        for request in engine.running:
            if request.held.pages:
                assert_kv_is_fresh(pair, engine, request)
    found = [engine.request(request_id) for request_id in ids]
    assert any(request.statistics.reused_tokens for request in found)
    assert [r.output for r in found] == outputs(core(pair, speculation=PLAIN), longer)
    assert_pool_is_unheld(engine)


@pytest.mark.parametrize("shape", ["none", "tree", "planner"])
def test_who_is_covered_takes_no_page_for_as_long(pair: Pair, shape: str) -> None:
    engine = graphs_core(pair, shape, n_pages=600, page_size=2)
    ids = [engine.submit([n, 2, 3], LONG) for n in range(1, 4)]
    n_covered = 0
    while not engine.is_idle:
        engine.step()
        held = {r.job.request_id: (len(r.held.pages), r.seq_len) for r in engine.running}
        n_covered += bool(held) and engine.is_covered(8)
        if len(held) < len(ids) or not engine.is_covered(8):
            continue
        engine.step()
        for request in engine.running:
            n_pages, length = held[request.job.request_id]
            assert request.seq_len - length > 8 or len(request.held.pages) == n_pages
    assert n_covered


@pytest.mark.parametrize("costs", ["cheap", "dear"])
@pytest.mark.parametrize("shape", ["none", "tree", "planner"])
def test_nothing_runs_for_who_gave_its_pages_back(pair: Pair, shape: str, costs: str) -> None:
    """They may be another request's by then, and so may its row of the table."""
    engine = graphs_core(pair, shape, planner=CHEAP if costs == "cheap" else DEAR)
    launcher = captured(engine)
    state, n_gone = launcher.parts.state, 0

    def look(key: Any) -> None:
        nonlocal n_gone
        if key[0] in ("verify", "draft", "close"):
            for index, seat in enumerate(launcher.seating.seats):
                if seat.is_gone or not seat.request.held.pages:
                    n_gone += 1
                    assert int(state.seats("table_row", index + 1)[index]) == state.told.inert_row

    watch(launcher, look)
    jobs = [([n, 2, 3], replace(LONG, max_tokens=6 + 4 * n)) for n in range(1, 9)]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    for first in range(0, 8, 2):
        ids = [engine.submit(*job) for job in jobs[first : first + 2]]
        stranger = engine.submit([4, 5], LONG)
        for step in range(400):
            if step == 3 + first:
                engine.cancel(stranger)
            if engine.is_idle:
                break
            engine.step()
        assert [engine.request(i).output for i in ids] == plain[first : first + 2]
    assert n_gone > 0
    assert_pool_is_unheld(engine)


def test_reports_take_turns(pair: Pair) -> None:
    """A report stays as it is while the round after it writes its own."""
    engine = graphs_core(pair, "tree")
    launcher = captured(engine)
    pages = launcher.parts.state.pages
    taken: list[int] = []
    held: dict[int, Tensor] = {}

    def look(key: Any) -> None:
        if key[0] == "publish":
            # The page that was sent last is still to be read.
            if taken:
                held[taken[-1]] = pages[taken[-1]].flat.clone()
            taken.append(key[1])
        elif key[0] == "verify":
            for page, before in held.items():
                assert page == taken[-1] or pages[page].flat.equal(before)

    watch(launcher, look)
    engine.submit([1, 2, 3], LONG)
    finish_all(engine)
    assert launcher.counts.ahead > 5
    assert any(before != after for before, after in pairwise(taken))


@pytest.mark.parametrize("options", ["greedy", "nucleus"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 3])
def test_what_can_be_recorded_is_all_that_is_asked_for(
    pair: Pair, shape: str, batch: int, options: str
) -> None:
    """Prompts of many lengths, come and gone: no round and no chunk needs anything else."""
    engine = graphs_core(pair, shape, max_batch=batch)
    launcher = captured(engine)
    recorded = {key for key, _ in launcher.unrecorded()}
    asked: set[Any] = set()
    rng = random.Random(f"{shape}/{batch}")
    launcher.graphs.watch = asked.add
    params = LONG if options == "greedy" else replace(LONG, temperature=0.9, top_k=9, seed=4)
    for _ in range(3 * batch):
        prompt = [rng.randrange(1, 40) for _ in range(rng.choice((2, 4, 30, 50)))]
        engine.submit(prompt, replace(params, max_tokens=rng.choice((3, 20))))
        for _ in range(rng.randrange(3)):
            engine.step()
    finish_all(engine)
    assert {"verify", "read"} <= {key[0] for key in asked} and asked <= recorded


def test_graphs_recorded_between_texts_leave_no_trace(pair: Pair) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    jobs = [([1, 2, 3], params), ([4, 5], params)]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    engine = graphs_core(pair, "planner")
    launcher = captured(engine)
    n_recorded = []
    for _ in range(2):
        before = len(launcher.graphs.keys)
        launcher.record(2, 40, GREEDY)
        n_recorded.append(len(launcher.graphs.keys) - before)
        assert outputs(engine, jobs) == plain
    # Nothing, the root's children, widths 1, 2 and 3 over one and two levels: once.
    assert len(launcher.parts.policy.shapes) == 2 + 3 * 2
    assert n_recorded[0] > 8 and n_recorded[1] == 0
    assert_pool_is_unheld(engine)


def test_the_planner_learns_and_plans(pair: Pair, launcher: str) -> None:
    engine = core(pair, speculation=SHAPES["planner"], engine=launcher)
    request_id = engine.submit([1], LONG)
    finish_all(engine)
    assert engine.request(request_id).statistics.num_accepted_tokens > 10
    policy = engine.parts.policy
    assert isinstance(policy, Planner)
    assert policy.learnt.calibration.weight.sum() > 0
    assert policy.learnt.running.paces[1].tokens > 0


@pytest.mark.parametrize("shape", ["none", "tree", "merged"])
def test_no_request_has_more_rows_than_attention_is_told(pair: Pair, shape: str) -> None:
    """As on a GPU, where attention leaves the padding alone and has a bound of its own."""
    engine = graphs_core(pair, shape, max_batch=4)
    launcher, seen = captured(engine), list[tuple[int, int]]()
    parts = launcher.parts
    tight = replace(parts, has_inert_request=False)

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(parts.target, name)

        def forward(self, rows: Any, *others: Any) -> Any:
            if rows.bounds.tree:
                counts = rows.qo_indptr.diff()
                seen.append((int(counts.max()), rows.bounds.rows))
                rest = rows.n_rows - int(rows.qo_indptr[-1])
                # The padding belongs to no seat here; on a CPU one must own it.
                assert rest >= 0
                rows = padded_by_inert(rows, rest)
            return parts.target.forward(rows, *others)

    launcher.parts = replace(tight, target=Recording())  # type: ignore[arg-type]
    outputs(engine, make_jobs(random.Random(f"rows/{shape}"), 5, "greedy"))
    assert seen and all(actual <= told for actual, told in seen)
    # Told by the tree, not by the rows of the whole batch.
    assert max(told for _, told in seen) <= {"none": 1, "tree": 12, "merged": 9}[shape]


def padded_by_inert(rows: Any, n_rows: int) -> Any:
    """Give the rows behind the last request to one that sees the inert slot alone."""
    if not n_rows:
        return rows
    last, column = rows.qo_indptr[-1:], rows.kv_indptr[-1:]
    return replace(
        rows,
        qo_indptr=torch.cat((rows.qo_indptr, last + n_rows)),
        kv_indptr=torch.cat((rows.kv_indptr, column + 1)),
        tree_start=torch.cat((rows.tree_start, rows.tree_start.new_zeros(1))),
        bounds=replace(rows.bounds, rows=max(rows.bounds.rows, n_rows)),
    )
