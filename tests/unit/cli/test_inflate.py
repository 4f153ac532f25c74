"""`aerie inflate`: from two directories to two larger ones, or one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from aerie.attention import pytorch
from aerie.cli.main import app
from aerie.errors import AerieError
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models.inflating import BINARY, SIZES, write_pair


def call(folder: Path, *options: str, **sizes: Any) -> Result:
    write_pair(folder, BINARY)
    (folder / "target" / "tokenizer.json").write_text("{}")
    (folder / "sizes.json").write_text(json.dumps(SIZES | sizes))
    command = ["inflate", "--model", str(folder / "target"), "--draft", str(folder / "head")]
    command += ["--geometry", str(folder / "sizes.json"), "--out", str(folder / "out")]
    return CliRunner().invoke(app, [*command, *options])


def test_writes_a_pair_that_loads(tmp_path: Path) -> None:
    result = call(tmp_path, "--dtype", "fp32", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["ok"] and found["is_exact_in_bf16"]
    assert found["copied"] == ["tokenizer.json"]
    target = load_decoder(tmp_path / "out" / "target", pytorch.prepare, LoadOptions())
    head = load_head(tmp_path / "out" / "head", target, pytorch.prepare, HeadOptions())
    assert head.taps == (2, 4, 6)
    assert "live layers [0, 2, 4, 6]" in result.output


def test_warns_where_bf16_is_not_exact(tmp_path: Path) -> None:
    result = call(tmp_path, "--json", head_dim=16)
    found = json.loads(result.stdout.splitlines()[-1])
    assert not found["is_exact_in_bf16"] and len(found["warnings"]) == 2
    assert "no power of two" in result.output


@pytest.mark.parametrize(
    ("options", "sizes", "message"),
    [
        (["--dtype", "fp16"], {}, "unknown dtype 'fp16'"),
        ([], {"hidden_size": 16}, "target width: 32 does not fit into 16"),
        ([], {"hidden": 16}, "hidden: is unknown"),
    ],
)
def test_errors(tmp_path: Path, options: list[str], sizes: dict[str, Any], message: str) -> None:
    result = call(tmp_path, *options, **sizes)
    assert result.exit_code == 1 and isinstance(result.exception, AerieError)
    assert message in str(result.exception)
    assert not list((tmp_path / "out").glob("**/*.safetensors"))
