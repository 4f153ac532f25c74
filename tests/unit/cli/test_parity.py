"""`aerie parity capture | export | run`: from a live engine to files, and back on any backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aerie.cli.main import app
from aerie.errors import UnknownNameError, UsageError
from aerie.parity.dump import find_dumps, read_dump

SHAPE = (
    *("--speculative-num-steps", "2", "--speculative-eagle-topk", "2"),
    *("--speculative-num-draft-tokens", "4", "--max-new-tokens", "8"),
    *("--n-pages", "16", "--threads", "1"),
)
SIZES = {
    "num_hidden_layers": 9,
    "hidden_size": 1024,
    "vocab_size": 4200,
    "draft_vocab_size": 4100,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 2048,
}


def parity(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["parity", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_a_live_run_is_captured_and_replayed(tmp_path: Path) -> None:
    found = parity("capture", "--out", str(tmp_path), "--calls", "1", "--when", "first", *SHAPE)
    assert found["ok"] and found["dumps"] == len(find_dumps(tmp_path)) >= 9
    assert found["tokens"] == 8 + 1 + 1
    assert found["calls"]["update_node_data"] > found["files"]["update_node_data"] == 1
    origin = read_dump(find_dumps(tmp_path)[0]).provenance
    assert origin["model"] == "built-in pair" and origin["device"].startswith("cpu (")
    replayed = parity("run", "--dumps", str(tmp_path), "--backend", "reference")
    assert replayed["ok"] and replayed["cases"] == found["dumps"]


def test_an_embedded_pair_is_captured(tmp_path: Path) -> None:
    (tmp_path / "sizes.json").write_text(json.dumps(SIZES))
    layer = "draft_tree_layer_score_index_gen_op"
    found = parity(
        *("capture", "import os\n", "--out", str(tmp_path / "dumps"), "--calls", "1"),
        *("--kernel", layer, "--geometry", str(tmp_path / "sizes.json"), *SHAPE),
    )
    dump = read_dump(find_dumps(tmp_path / "dumps")[0])
    assert (found["dumps"], found["tokens"]) == (1, 8)
    assert dump.inputs["input_hidden"].shape[1] == SIZES["hidden_size"]
    assert "sizes.json" in dump.provenance["model"]


def test_cases_become_dumps(tmp_path: Path) -> None:
    case = "calculate_work_deltas/b1_k1_smallest"
    assert parity("export", "--out", str(tmp_path), "--case", case)["dumps"] == 1
    assert read_dump(find_dumps(tmp_path)[0]).provenance["source"] == "case b1_k1_smallest"
    with pytest.raises(UnknownNameError, match="b1_k1_smallest"):
        parity("export", "--out", str(tmp_path / "x"), "--case", case[:-1])
    with pytest.raises(UsageError, match="already holds dumps"):
        parity("export", "--out", str(tmp_path), "--case", case)


def test_options_belong_behind_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="after the command"):
        parity("--backend", "reference", "run", "--dumps", str(tmp_path))
