"""The pages that scripts write: from records to tables, and refusals of records that do not fit."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest

from aerie.train.acceptance import Walked, mean_length
from tests.laws.tree import ROOT


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    importlib.sys.modules[name] = module  # type: ignore[attr-defined]
    spec.loader.exec_module(module)
    return module


ORIGIN = {"device": "a CPU", "torch": "2", "commit": "0123456789ab", "date": "2026-11-15"}


def test_precision_page() -> None:
    study = script("precision_study")
    exact = study.Outcome([Walked(10, 20), Walked(20, 50)], [(1,), (2,)])
    other = study.Outcome([Walked(12, 20), Walked(20, 50)], [(1,), (3,)])
    setting = study.Setting("coins", 1.0)
    assert mean_length(exact.walks) == pytest.approx(1 + 70 / 30)
    seen = study.Watch([0.25, 0.5], [(1.0, 1.25), (2.0, 2.25)])
    rows = [
        study.row("exact", "", setting, exact, exact, study.Watch()),
        study.row("rough", "one line", setting, other, exact, seen),
    ]
    assert list(rows[0]["difference_interval"]) == [0.0, 0.0]
    low, high = rows[1]["difference_interval"]
    assert low <= rows[1]["difference"] <= high
    record = {"prompts": 2, "tokens": 8, "batch": 2, "resamples": 10, "tree": study.TREE}
    page = study.render({**record, "rows": rows, "provenance": ORIGIN})
    assert "## coins, T = 1" in page
    assert "| rough | one line | 3.188" in page and "| 1 of 2 | +0.25000" in page
    assert "| 3.8e-01 / 5.0e-01 |" in page


def record(backend: str, device: str, tokens: list[list[int]], speed: float) -> dict[str, Any]:
    lab = script("fpga_backend_e2e")
    scenario = {
        "tokens": tokens,
        "trees_sha256": str(tokens),
        "acceptance": 2.0,
        "tokens_per_second": speed,
        "kernel_calls": {"calculate_work_deltas": 2},
        "kernel_seconds": {"calculate_work_deltas": 4e-6},
    }
    return {
        "contract_sha256": lab.contract_hash(),
        "backend": backend,
        "device": device,
        "kind": "c-sim" if backend == "hls" else "measured",
        "scenarios": [scenario] * len(lab.CONTRACT["scenarios"]),
        "provenance": ORIGIN,
    }


def test_end_to_end_page() -> None:
    lab = script("fpga_backend_e2e")
    records = [record("hls", "cpu", [[1], [2]], 5.0), record("reference", "cpu", [[1], [3]], 2.0)]
    page = lab.render(records)
    assert "| hls on cpu | 2.0000 | +0.0000 | 1 of 2 | no | 5.0 (c-sim) |  |" in page
    assert "| reference on cpu | 2.0000 | +0.0000 | 2 of 2 | yes | 2.0 (measured) |  |" in page
    assert "The CUDA baseline has not been measured" in page
    page = lab.render([*records, record("triton", "cuda", [[1], [3]], 50.0)])
    assert "5.0 (c-sim) | 0.100 |" in page and "has not been measured" not in page
    assert "| `calculate_work_deltas` | 2 | 2 |" in page
    with pytest.raises(SystemExit, match="another contract: hls"):
        lab.render([{**records[0], "contract_sha256": "0"}, records[1]])
