"""The Triton kernels, through the interpreter, against the NumPy definition.

Each case is one layer over one small batch: the interpreter takes tens of milliseconds a program.
The same kernels are checked at full size on a GPU by tests/gpu/test_triton_attention.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.attention import reference
from aerie.attention.contract import LayerAttention, Reach
from aerie.attention.rows import Rows
from aerie.attention.triton import (
    Tile,
    TileKey,
    TileTable,
    TritonAttention,
    TritonOptions,
    load_tiles,
    one_tile,
    tile_key,
)
from aerie.attention.triton.tiles import shared_bytes
from aerie.chips import CHIPS
from aerie.errors import UsageError
from tests.unit.attention.trees import (
    causal_batch,
    join_rows,
    packed_slots,
    pad_rows,
    random_parents,
    scattered_slots,
    tree_batch,
)

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="interpreted; a GPU runs tests/gpu/test_triton_attention.py"
)

N_SLOTS = 3000
WHOLE = Reach()
SMALL = Tile(block_m=16, block_n=16, n_warps=4, n_stages=1, per_processor=1)
WIDE = Tile(block_m=32, block_n=32, n_warps=4, n_stages=1, per_processor=4)


def _tokens(*lengths: int) -> list[torch.Tensor]:
    return [torch.zeros(n, dtype=torch.int64) for n in lengths]


def _trees(rows: list[int], columns: list[int]) -> Rows:
    generator = torch.Generator().manual_seed(3)
    parents = [random_parents(n, generator) for n in rows]
    return tree_batch(_tokens(*rows), parents, scattered_slots(columns, N_SLOTS, 2))


def _chunks() -> Rows:
    return causal_batch(_tokens(5, 1, 9), scattered_slots([17, 40, 9], N_SLOTS, 1))


def _decode() -> Rows:
    return causal_batch(_tokens(1, 1), packed_slots([1, 77]))


def _mixed() -> Rows:
    """A tree beside a chunk, padded to a bucket by inert rows."""
    chunk = causal_batch(_tokens(3), [torch.arange(300, 320).int()])
    return pad_rows(join_rows([_trees([6], [25]), chunk]), 4)


def _widest() -> Rows:
    return _trees([128], [140])


def _pages() -> Rows:
    """Pages of 16 in any order, slots inside them consecutive."""
    page = torch.tensor([7, 3, 12, 1]).repeat_interleave(16) * 16
    slots = (page + torch.arange(64) % 16).int()
    return causal_batch(_tokens(2), [slots[:59]])


@dataclass(frozen=True)
class Case:
    """One layer: `heads` is (query heads, KV heads, head dimension)."""

    rows: Rows
    heads: tuple[int, int, int]
    reach: Reach = WHOLE
    has_sinks: bool = False
    tile: Tile = SMALL
    page_size: int = 1
    dtype: torch.dtype = torch.float32


CASES = {
    "ragged_chunks": lambda: Case(_chunks(), (4, 1, 16)),
    "ragged_trees": lambda: Case(_trees([1, 7], [1, 37]), (4, 1, 16), tile=WIDE),
    "tree_without_prefix": lambda: Case(_trees([9], [9]), (1, 1, 16), has_sinks=True),
    "widest_tree": lambda: Case(_widest(), (1, 1, 16), tile=Tile(128, 64, 4, 1, 1)),
    "decode_long_and_empty": lambda: Case(_decode(), (8, 1, 16), has_sinks=True),
    "odd_group_and_dimension": lambda: Case(_decode(), (6, 2, 24), tile=WIDE),
    "mixed_and_padded": lambda: Case(_mixed(), (4, 4, 16), tile=WIDE),
    "fewer_heads_a_program": lambda: Case(_decode(), (8, 1, 16), tile=Tile(16, 16, 4, 1, 1, 2)),
    "window": lambda: Case(_chunks(), (2, 1, 16), Reach(window=8)),
    "window_1": lambda: Case(_trees([7], [20]), (1, 1, 16), Reach(window=1)),
    "window_and_sinks": lambda: Case(
        _trees([3, 6], [3, 70]), (2, 1, 16), Reach(window=20, n_sink_tokens=3), has_sinks=True
    ),
    "window_longer_than_blocks": lambda: Case(_decode(), (2, 2, 16), Reach(window=50)),
    "pages": lambda: Case(_pages(), (4, 2, 16), page_size=16),
    "half_precision": lambda: Case(_trees([5], [40]), (4, 1, 64), dtype=torch.float16),
}


def _inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, LayerAttention]:
    n_heads, n_kv_heads, dim = case.heads
    generator = torch.Generator().manual_seed(11)
    queries = torch.randn(case.rows.n_rows, n_heads, dim, generator=generator).to(case.dtype)
    # Slots without an owner hold NaN: a read of one would show.
    pool = torch.full((2, N_SLOTS, n_kv_heads, dim), torch.nan)
    owned = case.rows.kv_indices.long()
    pool[:, owned] = torch.randn(2, len(owned), n_kv_heads, dim, generator=generator)
    sinks = torch.randn(n_heads, generator=generator) if case.has_sinks else None
    keys, values = pool.to(case.dtype)
    return queries, keys, values, LayerAttention(dim**-0.5, case.reach, sinks)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_definition(name: str) -> None:
    case = CASES[name]()
    inputs = _inputs(case)
    backend = TritonAttention(one_tile(case.tile), TritonOptions(page_size=case.page_size))
    got = backend(case.rows, [case.reach])(*inputs)
    want = reference.prepare(case.rows, [case.reach])(*inputs)
    tolerance = 5e-6 if case.dtype == torch.float32 else 4e-3
    assert got.dtype == case.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance)


def test_statistics_count_splits_and_masks() -> None:
    case = Case(_decode(), (1, 1, 16))
    attend = TritonAttention(one_tile(replace(SMALL, masked_cost=1)))(case.rows, [WHOLE])
    attend(*_inputs(case))
    found = attend.statistics()[WHOLE]
    # 77 columns are four blocks and a rest of 13; the request of one column is another rest.
    assert (found.blocks, found.masked, found.longest, found.n_splits) == (6, 2, 1, 5)
    assert found.n_working == 6 <= found.n_programs


@pytest.mark.parametrize(
    ("n_requests", "n_splits", "longest"),
    [
        (4, 2, 11),  # on eight programs: two pieces each, nothing idle
        (5, 3, 7),  # one piece each is 21 blocks long, three each in two waves twice 7
        (9, 2, 11),  # one each is twice 21, two each in three waves three times 11
    ],
)
def test_units_that_do_not_divide_the_programs_are_cut_finer(
    n_requests: int, n_splits: int, longest: int
) -> None:
    rows = causal_batch(_tokens(*[1] * n_requests), packed_slots([330] * n_requests))
    case = Case(rows, (1, 1, 16), tile=replace(SMALL, masked_cost=1))
    inputs = _inputs(case)
    attend = TritonAttention(one_tile(case.tile))(rows, [WHOLE])
    want = reference.prepare(rows, [WHOLE])(*inputs)
    torch.testing.assert_close(attend(*inputs), want, rtol=0, atol=5e-6)
    found = attend.statistics()[WHOLE]
    assert (found.n_splits, found.longest) == (n_splits, longest)
    assert (found.n_working, found.blocks) == (n_splits * n_requests, 21 * n_requests)


def test_splits_shorter_than_the_least_are_not_made() -> None:
    case = Case(_decode(), (1, 1, 16))
    attend = TritonAttention(one_tile(replace(SMALL, least_blocks=4)))(case.rows, [WHOLE])
    attend(*_inputs(case))
    assert attend.statistics()[WHOLE].n_splits == 2


def test_the_shipped_table_serves_the_default() -> None:
    case = Case(_decode(), (2, 1, 16))
    attend = TritonAttention(load_tiles())(case.rows, [WHOLE])
    inputs = _inputs(case)
    want = reference.prepare(case.rows, [WHOLE])(*inputs)
    torch.testing.assert_close(attend(*inputs), want, rtol=0, atol=5e-6)
    # A dimension of 16 was never swept: the nearest entry serves, and it is counted.
    assert attend.backend.misses.total() == 1


def test_every_shipped_tile_equals_the_definition() -> None:
    case = Case(_trees([9, 3], [20, 150]), (4, 1, 16))
    inputs = _inputs(case)
    want = reference.prepare(case.rows, [WHOLE])(*inputs)
    # What the interpreter runs differently; warps and stages are the compiler's.
    codes = {
        (t.block_m, t.block_n, t.heads, t.is_overlapped): t for t in load_tiles().tiles.values()
    }
    for tile in codes.values():
        got = TritonAttention(one_tile(tile))(case.rows, [WHOLE])(*inputs)
        torch.testing.assert_close(got, want, rtol=0, atol=5e-6, msg=str(tile))


def test_perf_mode_refuses_what_was_not_tuned() -> None:
    case = Case(_decode(), (2, 1, 16))
    attend = TritonAttention(load_tiles(), TritonOptions(perf_mode=True))(case.rows, [WHOLE])
    with pytest.raises(UsageError, match="no tuned attention tile"):
        attend(*_inputs(case))


def test_every_bucket_of_the_production_geometry_is_tuned() -> None:
    table = load_tiles()
    for queries in (1, 4, 64, 65, 512, 32768):
        for columns in (1, 1025, 9000, 32768, 131072):
            for batch in (1, 3, 32):
                key = tile_key(
                    queries=queries,
                    columns=columns,
                    batch=batch,
                    head_dim=128,
                    dtype=torch.bfloat16,
                )
                assert table.choose(key).is_tuned, key


def test_the_nearest_tile_is_of_the_same_width_first() -> None:
    half, full = Tile(64, 64, 4, 3, 2), Tile(16, 32, 4, 1, 1)
    known = TileTable({TileKey(64, 1024, 1, 128, 2): half, TileKey(64, 32768, 4, 128, 4): full}, {})
    wanted = tile_key(queries=64, columns=1000, batch=1, head_dim=128, dtype=torch.float32)
    found = known.choose(wanted)
    assert (found.tile, found.is_tuned) == (full, False)


@pytest.mark.parametrize("chip", CHIPS)
def test_tiles_are_cut_to_the_device(chip: str) -> None:
    """The chip of the sweep keeps them all; others get fewer queries, stages or columns."""
    table, device = load_tiles(), CHIPS[chip]
    chosen = {key: table.choose(key, device) for key in table.tiles}
    assert all(shared_bytes(c.tile, k, device) <= device.shared_bytes for k, c in chosen.items())
    kept = {key for key, choice in chosen.items() if choice.tile == table.tiles[key]}
    assert kept == {key for key, choice in chosen.items() if choice.is_tuned}
    assert (len(kept) == len(chosen)) == (chip in ("h200", "b200"))
    tall = tile_key(queries=9999, columns=9999, batch=1, head_dim=128, dtype=torch.bfloat16)
    assert table.choose(tall, device).tile.block_m == (
        256 if device.multiplies_from_shared else 128
    )
    assert one_tile(table.tiles[tall]).choose(tall, device).tile == table.tiles[tall]


def test_a_head_that_no_tile_fits_is_refused_with_the_numbers() -> None:
    key = tile_key(queries=1, columns=1, batch=1, head_dim=4096, dtype=torch.float32)
    with pytest.raises(UsageError, match=r"of 4096 needs \d+ bytes .* sm_86 has 101376: use"):
        load_tiles().choose(key, CHIPS["rtx_3090"])


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    table = load_tiles()
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps(table.document()), encoding="utf-8")
    assert load_tiles(path) == table


def test_a_new_sweep_leaves_the_others_their_origin() -> None:
    table = load_tiles()
    key = next(iter(table.tiles))
    swept = table.updated(TileTable({key: SMALL}, {key: "another device"}))
    assert (swept.tiles[key], swept.origins[key]) == (SMALL, "another device")
    assert all(swept.origins[k] == table.origins[k] for k in table.tiles if k != key)


def test_empty_batch() -> None:
    rows = causal_batch([], [])
    pool = torch.zeros(8, 1, 16)
    got = TritonAttention(load_tiles())(rows, [WHOLE])(
        torch.zeros(0, 2, 16), pool, pool, LayerAttention(0.5, WHOLE)
    )
    assert got.shape == (0, 2, 16)


def test_refuses_what_the_kernels_take_for_granted() -> None:
    rows = _decode()
    attend = TritonAttention(load_tiles())(rows, [WHOLE])
    pool, layer = torch.zeros(100, 2, 16), LayerAttention(0.5, WHOLE)
    with pytest.raises(UsageError, match="not a multiple"):
        attend(torch.zeros(2, 3, 16), pool, pool, layer)
    with pytest.raises(UsageError, match="queries are"):
        attend(torch.zeros(2, 2, 16).half(), pool, pool, layer)
    with pytest.raises(UsageError, match="equal shape"):
        attend(torch.zeros(2, 2, 16), pool, pool[:50], layer)
    with pytest.raises(UsageError, match="was not among the reaches"):
        attend(torch.zeros(2, 2, 16), pool, pool, LayerAttention(0.5, Reach(window=3)))
