"""Both PyTorch paths against the NumPy definition, over shapes, trees, windows and sinks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aerie.attention import exact, pytorch, reference
from aerie.attention.contract import LayerAttention, PrepareAttention, Reach
from aerie.attention.pool import allocate_pool
from aerie.attention.rows import PackedMask, Rows
from tests.unit.attention.trees import (
    causal_batch,
    join_rows,
    packed_slots,
    random_parents,
    scattered_slots,
    tree_batch,
)

N_SLOTS = 400


def _tokens(lengths: list[int]) -> list[torch.Tensor]:
    return [torch.zeros(n, dtype=torch.int64) for n in lengths]


def _prefill_packed() -> Rows:
    return causal_batch(_tokens([1, 7, 23]), packed_slots([1, 7, 23]))


def _prefill_scattered() -> Rows:
    return causal_batch(_tokens([31, 2]), scattered_slots([31, 2], N_SLOTS, 0))


def _chunk() -> Rows:
    return causal_batch(_tokens([5, 1, 9]), scattered_slots([17, 40, 9], N_SLOTS, 1))


def _decode() -> Rows:
    return causal_batch(_tokens([1, 1, 1]), packed_slots([1, 64, 33]))


def _trees() -> Rows:
    generator = torch.Generator().manual_seed(3)
    parents = [random_parents(n, generator) for n in (1, 13, 33)]
    return tree_batch(_tokens([1, 13, 33]), parents, scattered_slots([1, 30, 53], N_SLOTS, 2))


def _mixed() -> Rows:
    generator = torch.Generator().manual_seed(4)
    parents = [random_parents(64, generator)]
    tree = tree_batch(_tokens([64]), parents, [torch.arange(1, 91, dtype=torch.int32)])
    plain = causal_batch(_tokens([3, 1]), [torch.arange(100, 120).int(), torch.tensor([130]).int()])
    return join_rows([tree, plain])


BATCHES = {
    "prefill_packed": _prefill_packed,
    "prefill_scattered": _prefill_scattered,
    "chunk": _chunk,
    "decode": _decode,
    "trees": _trees,
    "mixed": _mixed,
}
REACHES = {
    "whole": Reach(),
    "window_1": Reach(window=1),
    "window_8": Reach(window=8),
    "window_and_sink_tokens": Reach(window=5, n_sink_tokens=2),
}
PATHS = {"blocks": pytorch.prepare_blocks, "padded": pytorch.prepare_padded}


@pytest.mark.parametrize("heads", [(4, 1, 16), (6, 2, 8), (3, 3, 2)], ids=str)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("batch", BATCHES)
def test_equals_the_definition(batch: str, path: str, heads: tuple[int, int, int]) -> None:
    rows = BATCHES[batch]()
    n_heads, n_kv_heads, dim = heads
    generator = torch.Generator().manual_seed(11)
    queries = torch.randn(rows.n_rows, n_heads, dim, generator=generator)
    keys = torch.randn(N_SLOTS, n_kv_heads, dim, generator=generator)
    values = torch.randn(N_SLOTS, n_kv_heads, dim, generator=generator)
    attend = PATHS[path](rows, REACHES.values())
    exact = reference.prepare(rows, REACHES.values())
    for reach in REACHES.values():
        for sinks in (None, torch.randn(n_heads, generator=generator)):
            layer = LayerAttention(dim**-0.5, reach, sinks)
            got = attend(queries, keys, values, layer)
            torch.testing.assert_close(got, exact(queries, keys, values, layer), rtol=0, atol=5e-6)


@pytest.mark.parametrize("path", PATHS)
def test_half_precision_rounds_only_at_the_end(path: str) -> None:
    rows = _mixed()
    generator = torch.Generator().manual_seed(5)
    queries = torch.randn(rows.n_rows, 4, 16, generator=generator).half()
    keys = torch.randn(N_SLOTS, 2, 16, generator=generator).half()
    values = torch.randn(N_SLOTS, 2, 16, generator=generator).half()
    layer = LayerAttention(0.25, Reach())
    got = PATHS[path](rows, [Reach()])(queries, keys, values, layer)
    want = reference.prepare(rows, [Reach()])(queries, keys, values, layer)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got, want, rtol=0, atol=4e-3)


@pytest.mark.parametrize("path", PATHS)
def test_slots_nobody_owns_never_leak(path: str) -> None:
    rows = _trees()
    queries = torch.randn(rows.n_rows, 2, 4, generator=torch.Generator().manual_seed(6))
    pool = torch.full((N_SLOTS, 1, 4), torch.nan)
    owned = rows.kv_indices.long()
    pool[owned] = torch.randn(len(owned), 1, 4, generator=torch.Generator().manual_seed(7))
    got = PATHS[path](rows, [Reach()])(queries, pool, pool, LayerAttention(0.5, Reach()))
    assert bool(got.isfinite().all())


@pytest.mark.parametrize("path", PATHS)
def test_empty_batch(path: str) -> None:
    rows = causal_batch([], [])
    got = PATHS[path](rows, [Reach()])(
        torch.zeros(0, 2, 4),
        torch.zeros(8, 1, 4),
        torch.zeros(8, 1, 4),
        LayerAttention(0.5, Reach()),
    )
    assert got.shape == (0, 2, 4)


def test_pool_moves_read_before_they_write() -> None:
    pool = allocate_pool((2, 6, 1, 2), torch.float32, "cpu")
    for layer_idx in range(2):
        rows = torch.arange(12.0).view(6, 1, 2) + 100 * layer_idx
        for stored, written in zip(pool.layers[layer_idx], (rows, -rows), strict=True):
            stored.copy_(written)
    before = pool.keys.clone()
    pool.move(torch.tensor([3, 2]), torch.tensor([2, 1]))
    assert torch.equal(pool.keys[:, 2], before[:, 3])
    assert torch.equal(pool.keys[:, 1], before[:, 2])
    assert torch.equal(pool.values, -pool.keys)


def _masked(rows: Rows, hidden: tuple[int, int] | None = None) -> Rows:
    """The same rows with what they see packed; `hidden` (row, column) of request 0 is hidden."""
    segments = []
    for request in range(rows.n_requests):
        first, end = rows.qo_indptr[request].item(), rows.qo_indptr[request + 1].item()
        n_columns = (rows.kv_indptr[request + 1] - rows.kv_indptr[request]).item()
        seen = [
            reference.sees(rows, row, request, column, Reach())
            and (request, row, column) != (0, *(hidden or (-1, -1)))
            for row in range(first, end)
            for column in range(n_columns)
        ]
        segments.append(np.packbits(np.array(seen), bitorder="little"))
    ends = np.cumsum([0, *map(len, segments)]).astype(np.int32)
    packed = torch.from_numpy(np.concatenate(segments))
    return replace(rows, mask=PackedMask(packed, torch.from_numpy(ends)))


@pytest.mark.parametrize("prepare", [pytorch.prepare_blocks, exact.prepare], ids=["fast", "exact"])
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_packed_mask_says_the_same(batch: str, reach: str, prepare: PrepareAttention) -> None:
    rows, layer = BATCHES[batch](), LayerAttention(0.3, REACHES[reach])
    values = torch.randn(3, N_SLOTS, 4, 8, generator=torch.Generator().manual_seed(5))
    queries, keys, values = values[0, : rows.n_rows], values[1], values[2]
    plain, masked = (
        prepare(own, [REACHES[reach]])(queries, keys, values, layer)
        for own in (rows, _masked(rows))
    )
    assert torch.equal(plain, masked)


@pytest.mark.parametrize("prepare", [pytorch.prepare_blocks, exact.prepare], ids=["fast", "exact"])
def test_a_packed_mask_is_read(prepare: PrepareAttention) -> None:
    rows, layer = _chunk(), LayerAttention(0.3, Reach())
    values = torch.randn(3, N_SLOTS, 4, 8, generator=torch.Generator().manual_seed(5))
    queries, keys, values = values[0, : rows.n_rows], values[1], values[2]
    plain, masked = (
        prepare(own, [Reach()])(queries, keys, values, layer)
        for own in (rows, _masked(rows, hidden=(2, 3)))
    )
    assert (plain != masked).any(dim=(1, 2)).nonzero().flatten().tolist() == [2]
