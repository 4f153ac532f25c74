"""Checks what was tuned: shipped tiles against their sweep, odd products against cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

import aerie
from aerie.bench.kernels.gemm_stack import SHAPES, plans_for
from aerie.bench.record import read_json
from aerie.chips import MEASURED, record_of
from aerie.errors import UsageError

SWEEP = Path(aerie.__file__).parents[2] / "reports/raw/attention_sweep_h200.json"
TILES = Path(aerie.__file__).parent / "attention" / "triton" / "tiles.json"
WITHIN = 1.03  # of the sweep's fastest tile
LONG = 8192  # columns from which batches of four are held to it
# A product no tile was made for, and numbers of rows between two buckets.
ODD = (34560, 2880)
ODD_ROWS = (3, 5)


def check_tuning(device: str) -> dict[str, Any]:
    """Both checks, as JSON values."""
    if not SWEEP.exists():
        raise UsageError(f"{SWEEP.name} is not beside the source; write it with gpu_attention.sh")
    tiles = check_tiles(read_json(SWEEP))
    products = check_products(device) if device.startswith("cuda") else None
    is_exact = products is None or products["ok"]
    return {
        "tiles": tiles,
        "worst_tile": max(entry["ratio_to_best"] for entry in tiles),
        "products": products,
        "kind": "measured",
        "ok": is_exact and all(entry["ok"] for entry in tiles),
    }


def check_tiles(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Swept points of batch 1, and of batch 4 from LONG columns on: shipped against fastest."""
    from aerie.bench.kernels.attention import label

    # Read as JSON: gates need no Triton.
    shipped = {_key(e["key"]): SimpleNamespace(**e["tile"]) for e in read_json(TILES)["entries"]}
    found = []
    for point in sweep["points"]:
        if point["batch"] > 1 and point["columns"] < LONG:
            continue
        times = {trial["tile"]: trial["microseconds"] for trial in point["trials"]}
        tile, best = shipped.get(_key(point["key"])), min(times.values())
        own = label(cast(Any, tile)) if tile else ""
        ratio = times[own] / best if own in times else float("inf")
        found.append(
            {
                **{name: point[name] for name in ("rows", "columns", "batch", "is_tree")},
                "shipped": own,
                "us": times.get(own),
                "best_us": best,
                "ratio_to_best": round(ratio, 4),
                "ok": ratio <= WITHIN,
            }
        )
    return found


def _key(fields: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(fields.items()))


def check_products(device: str) -> dict[str, Any]:
    """Products of three and five rows: none missing from the table, none far from cuBLAS."""
    from aerie.bench.kernels.gemm import MOST_ERROR
    from aerie.kernels.triton_gpu.gemm_plan import shipped_table
    from aerie.kernels.triton_gpu.tuned_linear import tuned_linears

    tuned = tuned_linears(shipped_table(MEASURED), device, perf_mode=True)
    entries: list[dict[str, Any]] = []
    for shape in SHAPES:
        weight = torch.empty(shape.n_out, shape.n_in, dtype=torch.bfloat16, device=device)
        layer = tuned.make(weight.normal_(std=0.02), None)
        for rows in ODD_ROWS:
            x = torch.randn(rows, shape.n_in, device=device).bfloat16()
            plan = tuned.plan(shape.n_out, shape.n_in, rows)
            entry = {"shape": shape.name, "n_out": shape.n_out, "n_in": shape.n_in, "rows": rows}
            entries.append({**entry, "plan": plan.kind, **_errors(layer(x), x, weight)})
            if (shape.n_out, shape.n_in) == ODD:
                entries += [{**entry, **other} for other in _every_plan(x, weight, tuned.scratch)]
    is_close = all(entry["to_float32"] <= MOST_ERROR for entry in entries)
    return {
        "entries": entries,
        "misses": sum(tuned.usage.misses.values()),
        "largest_to_cublas": max(entry["to_cublas"] for entry in entries),
        "limit": MOST_ERROR,
        "ok": is_close and not tuned.usage.misses,
    }


def _every_plan(x: torch.Tensor, weight: torch.Tensor, scratch: Any) -> list[dict[str, Any]]:
    """The odd product by every Triton plan that fits it, though the table chose cuBLAS there."""
    from aerie.kernels.triton_gpu.gemm import product
    from aerie.kernels.triton_gpu.gemm_plan import row_bucket

    bucket = row_bucket(x.shape[0])
    assert bucket is not None, "a handful of rows has a bucket"
    return [
        {"plan": str(plan), **_errors(product(x, weight, None, plan, scratch), x, weight)}
        for plan in plans_for(*ODD, bucket, record_of(x.device))
    ]


def _errors(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> dict[str, float]:
    """Relative distance to cuBLAS's product and to the one in float32."""
    library = torch.nn.functional.linear(x, weight).float()
    exact = x.float() @ weight.float().T
    return {
        "to_cublas": float((found.float() - library).norm() / library.norm()),
        "to_float32": float((found.float() - exact).norm() / exact.norm()),
        "cublas_to_float32": float((library - exact).norm() / exact.norm()),
    }
