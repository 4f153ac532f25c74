"""Checks of the Triton attention on a GPU: shapes, trees, windows, graphs; shared with a script.

What a case should give is computed by the CPU path in float32 from the same rounded inputs; that
path is held to the NumPy definition in tests/unit/attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aerie.attention import pytorch
from aerie.attention.contract import LayerAttention, Reach
from aerie.attention.rows import Bounds, Rows
from aerie.attention.triton import Tile, TritonAttention, TritonOptions, one_tile
from aerie.bench.kernels.attention import on
from tests.gpu.capture import refusing_to_synchronise
from tests.unit.attention.trees import (
    causal_batch,
    join_rows,
    pad_rows,
    random_parents,
    scattered_slots,
    tree_batch,
)

DEVICE = "cuda"
# Largest ||got - want|| / ||want||: rounding of the inputs is in both, of weights and result here.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
POISON = float("nan")

EXACT = Tile(16, 32, 4, 1, 2)
WHOLE = Reach()
SMALL = Tile(16, 64, 4, 3, 4)
MIDDLE = Tile(64, 64, 4, 3, 2)
LARGE = Tile(128, 64, 8, 3, 1)


@dataclass(frozen=True, eq=False)
class Case:
    """One layer: `heads` is (query heads, KV heads, head dimension)."""

    name: str
    rows: Rows
    heads: tuple[int, int, int]
    tile: Tile
    dtype: torch.dtype = torch.bfloat16
    reach: Reach = WHOLE
    has_sinks: bool = False
    page_size: int = 1


def trees(rows: list[int], columns: list[int], seed: int = 3) -> Rows:
    """One random tree a request behind its prefix, slots scattered."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.zeros(n, dtype=torch.int64) for n in rows]
    parents = [random_parents(n, generator) for n in rows]
    return tree_batch(tokens, parents, scattered_slots(columns, sum(columns) + 9, seed))


def chunks(rows: list[int], columns: list[int], seed: int = 4) -> Rows:
    """Causal rows at the end of each request, slots scattered."""
    tokens = [torch.zeros(n, dtype=torch.int64) for n in rows]
    return causal_batch(tokens, scattered_slots(columns, sum(columns) + 9, seed))


def paged(rows: int, columns: int) -> Rows:
    """A chunk over pages of 16 in any order."""
    n_pages = -(-columns // 16)
    order = torch.randperm(n_pages, generator=torch.Generator().manual_seed(5)) + 1
    slots = (order[:, None] * 16 + torch.arange(16)).flatten()[:columns].int()
    return causal_batch([torch.zeros(rows, dtype=torch.int64)], [slots])


def mixed() -> Rows:
    """A tree beside a chunk and a decode step, padded to a bucket by inert rows."""
    tree = trees([60], [1500])
    plain = causal_batch(
        [torch.zeros(200, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)],
        [torch.arange(2000, 2900).int(), torch.arange(3000, 3001).int()],
    )
    return pad_rows(join_rows([tree, plain]), 64)


def cases() -> list[Case]:
    """Every shape and feature once; each distinct set of features compiles a kernel."""
    full = (32, 8, 128)
    return [
        Case("trees_bf16", trees([16, 1, 64], [4000, 1, 700]), full, MIDDLE),
        Case("widest_tree_32k", trees([128], [32768]), full, LARGE),
        Case("tree_without_prefix", trees([64, 33], [64, 33]), full, LARGE),
        Case("decode_32k", chunks([1], [32768]), full, SMALL),
        Case("decode_batch", chunks([1] * 33, list(range(1, 1700, 52))), full, SMALL),
        Case("one_page_slots", paged(3, 5003), full, SMALL, page_size=16),
        Case("prompt_chunks", chunks([1024, 700], [4096, 700]), full, LARGE),
        Case("mixed_and_padded", mixed(), full, MIDDLE),
        Case("dim_64_group_8", trees([40, 9], [3000, 90]), (64, 8, 64), LARGE),
        Case("group_1", trees([40], [1000]), (8, 8, 128), MIDDLE),
        Case("odd_group", trees([9], [1000]), (28, 4, 128), MIDDLE),
        Case("odd_dimension", trees([9], [1000]), (8, 2, 80), MIDDLE),
        Case("fp16_trees", trees([16], [2049]), full, MIDDLE, torch.float16),
        Case("fp32_trees", trees([16, 5], [1025, 7]), full, EXACT, torch.float32),
        Case("fp32_chunks", chunks([70], [300]), (4, 1, 128), EXACT, torch.float32),
        Case(
            "window_and_sinks",
            trees([8, 3, 60], [3000, 3, 400]),
            full,
            MIDDLE,
            reach=Reach(320, 4),
            has_sinks=True,
        ),
        Case("window_chunks", chunks([300], [900]), (8, 1, 64), LARGE, reach=Reach(128)),
        Case(
            "fp32_window",
            trees([8, 3], [900, 3]),
            full,
            EXACT,
            torch.float32,
            Reach(100, 2),
            has_sinks=True,
        ),
        Case("sinks", trees([20], [2000]), full, MIDDLE, has_sinks=True),
    ]


def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor, LayerAttention]:
    """Random values on the CPU; slots that no request owns hold NaN."""
    n_heads, n_kv_heads, dim = case.heads
    generator = torch.Generator().manual_seed(11)
    queries = torch.randn(case.rows.n_rows, n_heads, dim, generator=generator).to(case.dtype)
    n_slots = int(case.rows.kv_indices.max()) + 20
    pool = torch.full((2, n_slots, n_kv_heads, dim), torch.nan)
    owned = case.rows.kv_indices.long()
    pool[:, owned] = torch.randn(2, len(owned), n_kv_heads, dim, generator=generator)
    sinks = torch.randn(n_heads, generator=generator) if case.has_sinks else None
    keys, values = pool.to(case.dtype)
    return queries, keys, values, LayerAttention(dim**-0.5, case.reach, sinks)


def error(got: Tensor, want: Tensor) -> float:
    """Relative distance; NaN anywhere is infinitely far."""
    if not bool(got.isfinite().all()):
        return float("inf")
    distance = (got.double().cpu() - want.double()).norm() / want.double().norm()
    return float(distance)


def want(case: Case, rows: Rows, values: tuple[Tensor, Tensor, Tensor, LayerAttention]) -> Tensor:
    """The CPU path in float32."""
    queries, keys, stored, layer = values
    attend = pytorch.prepare_blocks(rows, [case.reach])
    return attend(queries.float(), keys.float(), stored.float(), layer)


def place(
    values: tuple[Tensor, Tensor, Tensor, LayerAttention],
) -> tuple[Tensor, Tensor, Tensor, LayerAttention]:
    """The same values on the device."""
    queries, keys, stored, layer = values
    sinks = None if layer.sink_logits is None else layer.sink_logits.to(DEVICE)
    return queries.to(DEVICE), keys.to(DEVICE), stored.to(DEVICE), replace(layer, sink_logits=sinks)


def check_case(case: Case) -> float:
    """Error of one case, run without waiting for the device."""
    values = inputs(case)
    expected = want(case, case.rows, values)
    backend = TritonAttention(one_tile(case.tile), TritonOptions(page_size=case.page_size))
    rows, placed = on(case.rows, torch.device(DEVICE)), place(values)
    backend(rows, [case.reach])(*placed)  # compiles
    with refusing_to_synchronise():
        got = backend(rows, [case.reach])(*placed)
    found = error(got, expected)
    if found > TOLERANCES[case.dtype]:
        raise AssertionError(f"{case.name}: error {found:.2e}, limit {TOLERANCES[case.dtype]:.0e}")
    return found


def check_replay() -> float:
    """A graph captured on short requests gives long ones, too, and other trees."""
    bounds = Bounds(rows=24, columns=3000, tree=24)
    batches = [trees([24, 24], [30, 40]), trees([24, 24], [3000, 2010], 8)]
    batches.append(trees([3, 9], [700, 2999], 9))
    made = [Case("replay", rows, (32, 8, 128), MIDDLE) for rows in batches]
    n_rows, n_columns, n_slots = 48, 6000, 6020
    static = _static(n_rows, n_columns, bounds)
    shape = (n_slots, 8, 128)
    keys, values = (torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    queries = torch.zeros((n_rows, 32, 128), dtype=torch.bfloat16, device=DEVICE)
    layer = LayerAttention(128**-0.5, Reach())
    backend = TritonAttention(one_tile(MIDDLE))
    _fill(static, made[0].rows)
    backend(static, [Reach()])(queries, keys, values, layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = backend(static, [Reach()])(queries, keys, values, layer)
    worst = 0.0
    for case in made:
        own = inputs(case)
        _fill(static, case.rows)
        n_own, stored = case.rows.n_rows, own[1].shape[0]
        queries.fill_(POISON)[:n_own] = own[0].to(DEVICE)
        keys.fill_(POISON)[:stored] = own[1].to(DEVICE)
        values.fill_(POISON)[:stored] = own[2].to(DEVICE)
        out.fill_(POISON)
        graph.replay()
        worst = max(worst, error(out[:n_own], want(case, case.rows, own)))
        if bool(out[n_own:].ne(0).any()):
            raise AssertionError("rows that no request owns are not zero")
    if worst > TOLERANCES[torch.bfloat16]:
        raise AssertionError(f"replay: error {worst:.2e}")
    return worst


def check_repeats() -> float:
    """Balanced splits too give the same bits twice."""
    case = Case("repeats", trees([64], [20000]), (32, 8, 128), LARGE)
    placed = place(inputs(case))
    backend = TritonAttention(one_tile(LARGE))
    attend = backend(on(case.rows, torch.device(DEVICE)), [Reach()])
    first = attend(*placed)
    if not all(torch.equal(first, attend(*placed)) for _ in range(3)):
        raise AssertionError("the same call gave other bits")
    return 0.0


def checks() -> dict[str, Callable[[], float]]:
    """Every check by name; each returns its error or raises."""
    named: dict[str, Callable[[], float]] = {
        case.name: (lambda case=case: check_case(case)) for case in cases()
    }
    return {
        **named,
        "replayed_with_other_lengths": check_replay,
        "repeats": check_repeats,
    }


def run_check(name: str) -> tuple[str, float, str]:
    """(name, error, what went wrong or nothing); for a pool of processes."""
    try:
        return name, checks()[name](), ""
    except Exception as failure:  # any one: the others' outcomes must survive it
        return name, float("nan"), f"{type(failure).__name__}: {failure}"


def _static(n_rows: int, n_columns: int, bounds: Bounds) -> Rows:
    """Buffers of a bucket of two requests."""
    rows = torch.zeros(n_rows, dtype=torch.int64, device=DEVICE)
    columns = torch.zeros(n_columns, dtype=torch.int32, device=DEVICE)
    indptr = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    return Rows(
        tokens=rows,
        positions=rows.clone(),
        kv_slots=rows.clone(),
        visible_prefix=rows.int(),
        ancestor_bits=torch.zeros((n_rows, 4), dtype=torch.int32, device=DEVICE),
        qo_indptr=indptr,
        kv_indptr=indptr.clone(),
        kv_indices=columns,
        column_positions=columns.clone(),
        tree_start=indptr[:2].clone(),
        bounds=bounds,
    )


def _fill(static: Rows, rows: Rows) -> None:
    for name, value in vars(rows).items():
        if isinstance(value, Tensor):
            getattr(static, name)[: value.shape[0]] = value.to(DEVICE)
