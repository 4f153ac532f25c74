"""K7, K8, K10a and K10b against a KV memory that knows what every slot holds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.oracles.packing import ancestors
from tests.oracles.slots import Cut, Memory, cut, fresh_run, is_conserved
from tests.parity.backend import column, each_backend, run, starts

N_COLUMNS, N_STOPS = 96, 3
VOCABULARY = 1000


@dataclass
class Decoding:
    """One request: its committed tokens (the last one has no KV yet) and the round's tree."""

    pool_row: int
    tokens: list[int]
    limit: int
    stops: list[int]
    parents: list[int] = field(default_factory=list)
    row_tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)  # rows after the root
    bonus: int = 0

    @property
    def seq_len(self) -> int:
        return len(self.tokens) - 1

    def path_tokens(self, row: int) -> list[int]:
        """Every token whose KV a row can see, its own included."""
        chain = ancestors(self.parents, row)
        return self.tokens[:-1] + [self.row_tokens[other] for other in chain]

    def plan(self, chooser: random.Random, n_rows: int, accept: float) -> None:
        """A random tree and a random accepted path in it."""
        self.parents = [-1, *(chooser.randrange(row) for row in range(1, n_rows))]
        self.row_tokens = [self.tokens[-1]]
        self.row_tokens += [chooser.randrange(VOCABULARY) for _ in range(n_rows - 1)]
        self.accepted, row = [], 0
        while chooser.random() < accept:
            below = [other for other in range(n_rows) if self.parents[other] == row]
            if not below:
                break
            row = chooser.choice(below)
            self.accepted.append(row)
        self.bonus = chooser.randrange(VOCABULARY)

    def cut(self) -> Cut:
        tokens = [self.row_tokens[row] for row in self.accepted]
        return cut(tokens, self.bonus, self.stops, self.limit - len(self.tokens))


class Engine:
    """Requests over one slot table, driven by K10b and K7."""

    def __init__(self, backend: str, n_requests: int, seed: int) -> None:
        self.backend = backend
        self.chooser = random.Random(seed)
        self.memory = Memory(n_requests * N_COLUMNS + 1)
        n_table_rows = n_requests + 2
        self.table = np.full((n_table_rows, N_COLUMNS), -1, dtype=np.int32)
        pool_rows = self.chooser.sample(range(n_table_rows), n_requests)
        self.requests = [self._admit(pool_row) for pool_row in pool_rows]

    def _admit(self, pool_row: int) -> Decoding:
        tokens = [self.chooser.randrange(VOCABULARY) for _ in range(self.chooser.randint(1, 9))]
        request = Decoding(pool_row, tokens, self.chooser.randint(25, 60), [])
        request.stops = self.chooser.sample(range(VOCABULARY), N_STOPS - 1)
        slots = self.memory.take(request.seq_len)
        self.table[pool_row, : request.seq_len] = slots
        for slot, content in zip(slots, fresh_run(tokens[:-1]), strict=True):
            self.memory.write(slot, content)
        return request

    def verify(self, n_rows: Sequence[int], accept: float) -> None:
        """Allocate the rows' slots with K10b and write each row's KV into its own."""
        for request, count in zip(self.requests, n_rows, strict=True):
            request.plan(self.chooser, count, accept)
        slots = self.memory.take(sum(n_rows))
        self.chooser.shuffle(slots)
        begin = [request.seq_len for request in self.requests]
        run(
            self.backend,
            "assign_req_to_token_pool_operator",
            req_to_token=self.table,
            req_pool_indices=column(request.pool_row for request in self.requests),
            start=column(begin),
            end=column(a + n for a, n in zip(begin, n_rows, strict=True)),
            out_cache_loc=np.array(slots, dtype=np.int32),
        )
        for request in self.requests:
            for row in range(len(request.parents)):
                slot = int(self.table[request.pool_row, request.seq_len + row])
                self.memory.write(slot, tuple(request.path_tokens(row)))

    def commit_inputs(self) -> dict[str, Any]:
        requests = self.requests
        deepest = max((len(request.accepted) for request in requests), default=0)
        index = np.full((len(requests), deepest + 1), -1, dtype=np.int64)
        stops = np.full((len(requests), N_STOPS), -1, dtype=np.int64)
        for b, request in enumerate(requests):
            index[b, : 1 + len(request.accepted)] = [0, *request.accepted]
            stops[b, : len(request.stops)] = request.stops
        return {
            "accept_index": index,
            "accept_count": column(len(request.accepted) for request in requests),
            "bonus_token": column(request.bonus for request in requests),
            "draft_tokens": column(t for request in requests for t in request.row_tokens),
            "qo_indptr": starts(len(request.parents) for request in requests),
            "seq_len": column(request.seq_len for request in requests),
            "length_limit": column(request.limit for request in requests),
            "stop_tokens": stops,
            "req_to_token": self.table,
            "req_pool_indices": column(request.pool_row for request in requests),
        }

    def commit(self) -> SimpleNamespace:
        """Run K7, make its moves, free its slots, check everything, drop the finished."""
        before = self.table.copy()
        found = run(self.backend, "update_verify_result", **self.commit_inputs())
        np.testing.assert_array_equal(self.table, before)
        check_emitted(found, self.requests)
        n_moves, n_free = int(found.move_count[0]), int(found.free_count[0])
        check_slots(found, self.requests, self.table)
        self.memory.move(found.kv_src[:n_moves].tolist(), found.kv_dst[:n_moves].tolist())
        self.memory.give_back(found.free[:n_free].tolist())
        for request in self.requests:
            self._advance(request)
        unfinished = found.unfinished[: int(found.unfinished_count[0])].tolist()
        self.requests = [self.requests[b] for b in unfinished]
        return found

    def _advance(self, request: Decoding) -> None:
        made = request.cut()
        kept = request.seq_len + made.n_kept_rows
        request.tokens = request.tokens + made.tokens
        held = self.memory.sequence(self.table[request.pool_row, :kept].tolist())
        assert held == fresh_run(request.tokens[:kept])


def check_emitted(found: SimpleNamespace, requests: Sequence[Decoding]) -> None:
    cuts = [request.cut() for request in requests]
    tokens = [token for made in cuts for token in made.tokens]
    assert found.out_indptr.tolist() == starts(len(made.tokens) for made in cuts).tolist()
    assert found.out_tokens.tolist() == padded(tokens, found.out_tokens)
    assert found.finished.tolist() == [made.is_finished for made in cuts]
    going = [b for b, made in enumerate(cuts) if not made.is_finished]
    assert found.unfinished.tolist() == padded(going, found.unfinished)
    assert found.unfinished_count.tolist() == [len(going)]
    lengths = [r.seq_len + made.n_kept_rows for r, made in zip(requests, cuts, strict=True)]
    assert found.new_seq_len.tolist() == lengths
    first_rows = starts(len(request.parents) for request in requests).tolist()
    rows = [
        [] if made.is_finished else [first + row for row in [0, *request.accepted]]
        for request, made, first in zip(requests, cuts, first_rows[:-1], strict=True)
    ]
    assert found.rows_indptr.tolist() == starts(map(len, rows)).tolist()
    assert found.out_rows.tolist() == padded([r for some in rows for r in some], found.out_rows)


def padded(values: list[int], like: np.ndarray) -> list[int]:
    return values + [-1] * (len(like) - len(values))


def check_slots(found: SimpleNamespace, requests: Sequence[Decoding], table: np.ndarray) -> None:
    """Every slot of the round's trees is kept in its position or freed, exactly once."""
    before, kept = [], []
    for request in requests:
        begin = request.seq_len
        row = table[request.pool_row]
        before += row[begin : begin + len(request.parents)].tolist()
        kept += row[begin : begin + request.cut().n_kept_rows].tolist()
    n_moves, n_free = int(found.move_count[0]), int(found.free_count[0])
    assert is_conserved(before, kept, found.free[:n_free].tolist())
    assert set(found.kv_src[:n_moves].tolist()) <= set(before)
    assert set(found.kv_dst[:n_moves].tolist()) <= set(kept)
    assert (found.kv_src[n_moves:] == -1).all() and (found.kv_dst[n_moves:] == -1).all()
    assert (found.free[n_free:] == -1).all()


@each_backend
@pytest.mark.parametrize("n_requests", [1, 4, 17])
@pytest.mark.parametrize("accept", [0.0, 0.5, 0.9, 1.0])
def test_slots_are_conserved_over_rounds(backend: str, n_requests: int, accept: float) -> None:
    engine = Engine(backend, n_requests, seed=n_requests * 100 + int(accept * 10))
    for _ in range(12):
        room = [N_COLUMNS - request.seq_len for request in engine.requests]
        engine.verify([min(engine.chooser.randint(1, 14), most) for most in room], accept)
        engine.commit()
    memory = engine.memory
    assert sorted([*memory.free, *memory.cells]) == list(range(1, memory.n_slots))


@each_backend
def test_a_stop_inside_the_run_ends_it(backend: str) -> None:
    engine = Engine(backend, 3, seed=5)
    engine.verify([9, 9, 9], accept=1.0)
    first, second, third = engine.requests
    first.stops = [first.row_tokens[first.accepted[0]]]
    second.stops = [second.bonus]
    third.limit = len(third.tokens) + 1
    found = engine.commit()
    assert found.finished.tolist() == [True, True, True]
    assert not engine.requests and int(found.rows_indptr[-1]) == 0


@each_backend
def test_nobody_leaves_nothing_to_do(backend: str) -> None:
    engine = Engine(backend, 1, seed=1)
    engine.requests = []
    found = run(backend, "update_verify_result", **engine.commit_inputs())
    for name in ("unfinished_count", "move_count", "free_count"):
        assert getattr(found, name).tolist() == [0]
    assert found.out_indptr.tolist() == found.rows_indptr.tolist() == [0]


@each_backend
def test_a_request_without_rows_stays_as_it_is(backend: str) -> None:
    engine = Engine(backend, 2, seed=9)
    engine.verify([5, 5], accept=1.0)
    inputs = engine.commit_inputs()
    n_rows = 5
    inputs["qo_indptr"] = starts([0, n_rows])
    inputs["draft_tokens"] = inputs["draft_tokens"][n_rows:]
    inputs["accept_index"][0], inputs["accept_count"][0], inputs["bonus_token"][0] = -1, 0, -1
    found = run(backend, "update_verify_result", **inputs)
    assert found.out_indptr[:2].tolist() == [0, 0]
    assert int(found.new_seq_len[0]) == engine.requests[0].seq_len
    assert 0 not in found.unfinished.tolist() and 1 in found.unfinished.tolist()


@each_backend
@pytest.mark.parametrize("kernel", ["draft", "pool"])
def test_assigned_slots_stand_in_the_table(backend: str, kernel: str) -> None:
    generator = np.random.default_rng(3)
    batch, most = 11, 9
    table = generator.integers(0, 5000, (16, 40)).astype(np.int32)
    pool_rows = generator.permutation(16)[:batch]
    begin = generator.integers(0, 31, batch)
    counts = generator.integers(0, most + 1, batch)
    counts[2] = 0
    slots = 10_000 + np.arange(batch * most, dtype=np.int32).reshape(batch, most)
    expected = table.copy()
    for b in range(batch):
        for offset in range(counts[b]):
            expected[pool_rows[b], begin[b] + offset] = slots[b, offset]
    flat = [int(slots[b, i]) for b in range(batch) for i in range(counts[b])]
    names = {
        "draft": ("assign_draft_cache_locs_operator", slots),
        "pool": ("assign_req_to_token_pool_operator", np.array([*flat, 77, 78], np.int32)),
    }
    run(
        backend,
        names[kernel][0],
        req_to_token=table,
        req_pool_indices=pool_rows,
        start=begin,
        end=begin + counts,
        out_cache_loc=names[kernel][1],
    )
    np.testing.assert_array_equal(table, expected)


@each_backend
def test_plain_slot_lists_are_the_prefixes(backend: str) -> None:
    generator = np.random.default_rng(4)
    table = generator.permutation(20 * 50).astype(np.int32).reshape(20, 50)
    pool_rows, lengths = generator.permutation(20)[:7], column([0, 1, 50, 8, 0, 33, 7])
    lists = [table[row, :n].tolist() for row, n in zip(pool_rows, lengths, strict=True)]
    found = run(
        backend,
        "compute_kv_indices",
        req_to_token=table,
        req_pool_indices=pool_rows,
        seq_len=lengths,
        kv_capacity=sum(map(len, lists)) + 2,
    )
    assert found.kv_indptr.tolist() == starts(map(len, lists)).tolist()
    assert found.kv_indices.tolist() == [slot for some in lists for slot in some] + [-1, -1]
