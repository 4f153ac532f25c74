"""The budget sheet reproduces the worked figures it was specified with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aerie.cli.main import app
from aerie.errors import UnknownNameError, UsageError
from aerie.perf.budget import P0, budget
from aerie.perf.device import find_device, read_device
from aerie.perf.onchip import blocks_of, place, read_inventory
from aerie.perf.point import Point, Tree, find_sizes

KIB = 1024


def said(*options: str) -> dict:  # type: ignore[type-arg]
    result = CliRunner().invoke(app, ["budget", *options, "--json"])
    assert result.exit_code == 0, result.output
    found: dict = json.loads(result.output.splitlines()[-1])  # type: ignore[type-arg]
    return found


def test_worked_figures() -> None:
    found = said("--width", "8", "--top-k", "8", "--batch", "1")
    assert [row["kernel"] for row in found["rows"]] == list(P0)
    assert {row["kind"] for row in found["rows"]} == {"modelled"}
    layer = found["rows"][0]
    # 64 KB of hidden rows in and 64 KB out, and a few small tensors beside them.
    small = 64 * (4 + 8) + 8 * 4
    assert layer["B_in"] == 64 * KIB + small
    assert layer["B_out"] - 64 * KIB == 64 * (4 + 4 + 8 + 8) + 8 * (8 + 8) + 4 + 8
    assert round(found["on_chip"]["megabytes"], 1) == 84.1
    blocks = {block["block"]: block for block in found["on_chip"]["blocks"]}
    assert round(blocks["embedding"]["megabytes"] / 1e3, 2) == 1.05
    assert round(blocks["lm_head"]["megabytes"] / 1e3, 2) == 1.05
    assert blocks["self_attention"]["is_resident"]
    assert not blocks["fc"]["fits_alone"] and not blocks["mlp"]["fits_alone"]
    factors = {(f["against"], f["basis"]): f for f in found["factors"]}
    assert round(factors["h100", "data sheet"]["parity"], 1) == 4.1
    assert round(factors["h100", "data sheet"]["ahead"], 1) == 4.9
    assert round(factors["h200", "data sheet"]["parity"], 2) == 5.85
    assert round(factors["h200", "measured copy"]["parity"], 2) == 5.06


def test_shares_cover_all_cells() -> None:
    shares = said()["shares"]
    cells = {(share["batch"], share["verify"]) for share in shares}
    assert cells == {(b, v) for b in (1, 8, 32) for v in (8, 32, 64)}
    for cell in cells:
        own = [share["share"] for share in shares if (share["batch"], share["verify"]) == cell]
        assert sum(own) == pytest.approx(1.0, abs=1e-3)


def test_cycles_follow_the_formula() -> None:
    device = find_device("v80")
    point = Point(find_sizes("eagle4"), Tree())
    row = budget(point, device)[0]
    memory = -(-row.B_in // 64) + -(-row.B_out // 64)
    assert row.C_total == max(memory, -(-row.N_ops // 448)) + 32
    assert row.T_us == pytest.approx(row.C_total / 300.0, abs=1e-3)


def test_a_wrong_card_says_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="v80"):
        find_device("v8")
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\ntitle = "own"\nkind = "fpga"\n[memory]\npeak = 1\n')
    with pytest.raises(UsageError, match="unknown keys peak"):
        read_device(own)
    with pytest.raises(UsageError, match="has no \\[fabric\\]"):
        budget(Point(find_sizes("eagle4"), Tree()), find_device("h200"))


def test_a_card_of_your_own_is_read(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text((Path(find_device.__code__.co_filename).parent / "cards/v80.toml").read_text())
    assert read_device(own) == find_device("v80")


def test_an_inventory_is_made_of_a_checkpoint() -> None:
    tensors = [
        ("model.layers.0.self_attn.q_proj.qweight", 100, "I32"),
        ("model.layers.0.mlp.up_proj.qweight", 50, "I32"),
        ("lm_head.weight", 400, "F16"),
        ("norm.weight", 8, "F16"),
    ]
    sizes = {block.name: block.n_bytes for block in blocks_of(tensors)}
    assert sizes == {"self_attention": 100, "mlp": 50, "lm_head": 400, "norms and maps": 8}


def test_blocks_share_the_chip() -> None:
    chip = find_device("v80").on_chip
    assert chip is not None
    placed = {one.block.name: one for one in place(read_inventory(), chip, 30.0)}
    assert placed["self_attention"].fits_alone and not placed["self_attention"].is_resident
