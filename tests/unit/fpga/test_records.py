"""The committed records of the hardware design hold what the design promises."""

from __future__ import annotations

import csv
import json
from collections import Counter
from typing import Any

from tests.laws.tree import ROOT

REPORTS = ROOT / "reports"
CELLS = {(batch, verify) for batch in (1, 8, 32) for verify in (8, 32, 64)}
BLOCKS = {"layer", "merge", "deltas", "mask", "commit", "gather"}


def read(name: str) -> Any:
    return json.loads((REPORTS / name).read_text("utf-8"))


def test_fusion_and_levers_reach_their_floors() -> None:
    found = read("fusion_design_v1.json")
    assert {(cell["batch"], cell["verify"]) for cell in found["scope_t"]} == CELLS
    for cell in found["scope_t"]:
        assert cell["factor"] >= 2.0
        assert cell["factor"] == round(cell["unfused_bytes"] / cell["fused_bytes"], 4)
    draft = found["scope_d"]
    assert draft["final"] >= 4.0 and abs(1 - draft["acceptance"]) <= 0.03
    product = 1.0
    for line in draft["lines"]:
        product *= line["step"]
    assert abs(product / draft["final"] - 1) < 0.001, "levers multiply to the total"


def test_simulation_is_bit_exact_and_the_model_is_near() -> None:
    found = read("fpga_sim.json")
    assert found["ok"] and found["differing"] == 0 and found["outside_share"] <= 0.10
    assert set(found["vectors"]) == BLOCKS and min(found["vectors"].values()) >= 20_000
    for models in found["models"].values():
        assert models["free"]["error"] <= 0.05 and models["paused"]["error"] <= 0.15


def test_counters_show_an_item_a_cycle() -> None:
    with (REPORTS / "hw_counters.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    largest = [row for row in rows if row["source"].startswith("largest")]
    assert {row["block"] for row in largest} == BLOCKS
    for row in largest:
        # A run's first cycles are in it: 146 items of K7 begin with four.
        assert float(row["interval"]) <= (1.03 if row["block"] == "commit" else 1.01), row
    causes = ("busy", "stall_memory_read", "stall_memory_write", "upstream_empty")
    for row in rows:
        assert row["differing"] == "0"
        assert int(row["cycles"]) == sum(int(row[name]) for name in (*causes, "downstream_full"))
    tops = [row for row in rows if row["block"] == "top"]
    assert {row["memory"] for row in tops} == {"free", "paused"}


def test_routes_have_three_seeds_and_a_critical_path() -> None:
    rows = read("synth/route.json")["rows"]
    seeds = Counter(row["name"] for row in rows)
    assert {"sorter-8", "sorter-16", "gather", "merge"} <= set(seeds) and min(seeds.values()) >= 3
    assert all(row["megahertz"] > 0 and row["logic_ns"] > 0 for row in rows)
    assert all(row["critical"] for row in rows), "every path names a line of a circuit"


def test_every_record_names_its_kind_and_its_tools() -> None:
    for path in sorted([*REPORTS.glob("fpga_*.json"), *REPORTS.glob("synth/*.json")]):
        if "backend" in path.name:
            continue
        text = path.read_text("utf-8")
        assert '"commit"' in text and '"kind"' in text, path.name
        if path.parent.name == "synth" or path.stem in ("fpga_sim", "fpga_cosim"):
            assert '"amaranth"' in text, path.name
