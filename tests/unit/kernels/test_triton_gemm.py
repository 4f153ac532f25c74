"""Products of few rows: right, the same bits every time, chosen by a table that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import tests.interpreted  # noqa: F401

pytest.importorskip("triton")

from aerie.bench.kernels.gemm_stack import SHAPES, plans_for
from aerie.chips import CHIPS
from aerie.errors import UnknownNameError, UsageError
from aerie.kernels.triton_gpu.fused import gate
from aerie.kernels.triton_gpu.gemm import gemm_scratch, product
from aerie.kernels.triton_gpu.gemm_plan import (
    CUBLAS,
    GemmTable,
    Key,
    Plan,
    parse_table,
    read_table,
    row_bucket,
    shipped_table,
    table_record,
)
from aerie.kernels.triton_gpu.tuned_linear import tuned_linears
from tests.unit.kernels.triton_device import DEVICE

DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")
PLANS = (
    Plan("gemv", 16, 32), Plan("gemv", 16, 32, splits=3), Plan("gemv", 16, 32, splits=2, stages=3),
    Plan("dot", 32, 32, 16, stages=2), Plan("dot", 32, 32, 16, splits=4, stages=2),
)  # fmt: skip


def most_rows(plan: Plan) -> int:
    """Rows a plan takes: parts of the inner axis need one tile of rows."""
    if plan.kind == "gemv":
        return 2
    return plan.block_m if plan.splits > 1 else 128


@pytest.mark.usefixtures("rows_for_themselves")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("plan", "rows"),
    [(plan, rows) for plan in PLANS for rows in (1, 2, 5, 40) if rows <= most_rows(plan)],
    ids=lambda value: f"{value.kind}{value.splits}" if isinstance(value, Plan) else str(value),
)
def test_product(dtype: torch.dtype, plan: Plan, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 160, generator=generator).to(dtype).to(DEVICE)
    weight = torch.randn(96, 160, generator=generator).to(dtype).to(DEVICE)
    bias = torch.randn(96, generator=generator).to(dtype).to(DEVICE)
    scratch = gemm_scratch(DEVICE)
    found = product(x, weight, bias, plan, scratch)
    wanted = functional.linear(x.double(), weight.double(), bias.double())
    error = (found.double() - wanted).norm() / wanted.norm()
    # One rounding of the result; in float32 the sum's own error is as large.
    assert error < 2 * torch.finfo(dtype).eps
    assert torch.equal(product(x, weight, bias, plan, scratch), found)
    gated = product(x, weight, bias, plan, scratch, is_gated=True)
    assert torch.equal(gated, gate(*found.tensor_split(2, dim=1)))
    assert int(scratch.arrived.abs().sum()) == 0


def test_the_shipped_table_holds_every_shape_of_the_pair() -> None:
    table = shipped_table("h200")
    assert table.provenance["device"] == "NVIDIA H200" and table.provenance["commit"]
    for shape in SHAPES:
        for rows in (1, 3, 5, 8, 64, 128):
            plan = table.find(shape.n_out, shape.n_in, rows)
            assert plan is not None and plan.fits(shape.n_out, shape.n_in), (shape, rows)


@pytest.mark.parametrize("rows", [1, 2, 4, 16, 128])
def test_candidates_fit_their_shape(rows: int) -> None:
    for shape in SHAPES:
        plans = plans_for(shape.n_out, shape.n_in, rows, CHIPS["h200"])
        assert plans and all(plan.fits(shape.n_out, shape.n_in) for plan in plans)
        assert all(rows <= most_rows(plan) for plan in plans)


@pytest.mark.parametrize("chip", CHIPS)
def test_plans_are_cut_to_the_device(chip: str) -> None:
    """The chip they were tuned on keeps them; where shared memory is short, stages go."""
    table, device = shipped_table("h200"), CHIPS[chip]
    fitted = table.fitted(device).plans
    assert all(plan.shared_bytes <= device.shared_bytes for plan in fitted.values())
    assert all(plan.fits(key.n_out, key.n_in) for key, plan in fitted.items())
    assert (fitted == table.plans) == (device.shared_bytes > 128 << 10)
    candidates = plans_for(28672, 4096, 64, device)
    assert candidates and all(plan.shared_bytes <= device.shared_bytes for plan in candidates)


@pytest.mark.parametrize(("rows", "bucket"), [(1, 1), (3, 4), (5, 8), (64, 64), (129, None)])
def test_buckets(rows: int, bucket: int | None) -> None:
    assert row_bucket(rows) == bucket


def test_a_tuned_layer_takes_its_plan_and_counts() -> None:
    plan = Plan("dot", 32, 32, 16, splits=2)
    table = GemmTable({Key(96, 160, 4): plan, Key(96, 160, 8): CUBLAS})
    tuned = tuned_linears(table, DEVICE)
    weight = torch.randn(96, 160, device=DEVICE)
    layer = tuned.make(weight, None)
    for rows in (3, 8, 2, 300, 0):
        x = torch.randn(rows, 160, device=DEVICE)
        torch.testing.assert_close(layer(x), functional.linear(x, weight), rtol=1e-4, atol=1e-4)
    assert tuned.usage.hits == {Key(96, 160, 4): 1, Key(96, 160, 8): 1}
    assert tuned.usage.misses == {Key(96, 160, 2): 1}
    assert tuned.usage.shapes()[0] == {"n_out": 96, "n_in": 160, "rows": 2}
    strict = tuned_linears(table, DEVICE, perf_mode=True).make(weight, None)
    with pytest.raises(UsageError, match="no tuned product for 2 rows of 160 to 96"):
        strict(torch.randn(2, 160, device=DEVICE))


def test_a_table_is_read_back_and_checked(tmp_path: Path) -> None:
    plan, key = Plan("gemv", 16, 32, splits=2), Key(96, 160, 1)
    record = table_record([(key, plan, {"us": 1.5})], {"device": "none"})
    path = tmp_path / "gemm.json"
    path.write_text(json.dumps(record))
    table = read_table(path)
    assert table.find(96, 160, 1) == plan
    assert table.find(96, 160, 2) is None and table.find(96, 160, 500) == CUBLAS
    assert table.provenance == {"device": "none"}
    with pytest.raises(UsageError, match="version 2"):
        parse_table({**record, "version": 2}, "x")
    record["entries"][0]["plan"]["block_n"] = 7
    with pytest.raises(UsageError, match="does not fit"):
        parse_table(record, "x")
    with pytest.raises(UnknownNameError, match="h201"):
        shipped_table("h201")
