"""`aerie draft-vocab`: build, apply and report from files to files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from aerie.attention import pytorch
from aerie.cli.main import app
from aerie.errors import AerieError
from aerie.models.draft_vocabulary import head_ids
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models import pairs

END = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """A target with a tokenizer of words w0 ... w60, a head of 23 ids, and a text."""
    parent: Path = tmp_path_factory.mktemp("pair")
    pairs.write_target(parent / "target")
    pairs.write_head(parent / "head", pairs.CASES["official"])
    words = {f"w{i}": i for i in range(pairs.VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(parent / "target" / "tokenizer.json"))
    (parent / "target" / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 30, (1100,), generator=generator).tolist()
    (parent / "text.txt").write_text(" ".join(f"w{i}" for i in ids))
    return parent


def call(*command: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["draft-vocab", *map(str, command), "--json"])
    if isinstance(result.exception, AerieError):
        raise result.exception
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert found["ok"]
    return found


def build(folder: Path, out: Path, *options: object) -> dict[str, Any]:
    text = folder / "text.txt"
    return call("build", "--model", folder / "target", "--text", text, "--out", out, *options)


def test_build_from_text_and_from_the_target(folder: Path, tmp_path: Path) -> None:
    found = build(folder, tmp_path / "raw.json", "--sizes", "10,30,61,100")
    assert found["n_tokens"] == 1100
    assert [row["size"] for row in found["sizes"]] == [10, 30, 61]
    assert found["sizes"][1]["coverage"] > 0.95 and found["sizes"][2]["coverage"] == 1.0
    raw = json.loads((tmp_path / "raw.json").read_text())
    assert raw["forced"] == [END] and max(map(int, raw["counts"])) < 30
    found = build(folder, tmp_path / "own.json", "--written", 20, "--temperature", 1.0)
    assert found["n_tokens"] == 60  # three prompts in 1100 tokens
    assert "written by the target" in json.loads((tmp_path / "own.json").read_text())["source"]


@pytest.mark.parametrize("dialect", ["specforge", "speculators"])
def test_apply_writes_a_head_that_loads(folder: Path, tmp_path: Path, dialect: str) -> None:
    build(folder, tmp_path / "counts.json")
    where = ("--model", folder / "target", "--draft", folder / "head")
    counts = ("--counts", tmp_path / "counts.json")
    options = ("--size", 9, "--out", tmp_path / "out", "--dialect", dialect)
    call("apply", *where, *counts, *options)
    target = load_decoder(folder / "target", pytorch.prepare, LoadOptions())
    whole = load_head(folder / "head", target, pytorch.prepare, HeadOptions())
    head = load_head(tmp_path / "out", target, pytorch.prepare, HeadOptions())
    assert head.summary.geometry.draft_vocab_size == 9
    assert set(head_ids(head).tolist()) < set(head_ids(whole).tolist())
    assert (END in head_ids(head)) == (END in head_ids(whole))


def test_report_writes_the_table(folder: Path, tmp_path: Path) -> None:
    build(folder, tmp_path / "counts.json")
    where = ("--model", folder / "target", "--draft", folder / "head")
    counts = ("--counts", tmp_path / "counts.json", "--text", folder / "text.txt")
    found = call("report", *where, *counts, "--sizes", "8,16,64", "--out", tmp_path)
    assert [row["n_ids"] for row in found["rows"]] == [23, 16, 8]
    assert found["prompts"] == 3
    stored = json.loads((tmp_path / "draft_vocabulary.json").read_text())
    assert stored["rows"] == found["rows"]
    assert stored["provenance"].keys() >= {"device", "commit", "source_sha256"}
    table, origin = (tmp_path / "draft_vocabulary.md").read_text().split("\n\n")
    assert table.count("\n") == 4
    assert stored["provenance"]["commit"] in origin


def test_unreadable_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    for path in (tmp_path / "bytes.txt", tmp_path / "none.txt"):
        with pytest.raises(AerieError, match="cannot be read as text"):
            call("build", "--model", folder / "target", "--text", path, "--out", tmp_path / "o")
    (tmp_path / "empty.txt").write_text("")
    options = ("--out", tmp_path / "o", "--written", 5)
    with pytest.raises(AerieError, match="no tokens"):
        call("build", "--model", folder / "target", "--text", tmp_path / "empty.txt", *options)
