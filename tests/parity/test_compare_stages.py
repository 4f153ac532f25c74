"""`aerie compare`: checkpoints made by transformers agree at every stage, and a fault is named."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from aerie.attention import pytorch
from aerie.cli.main import app
from aerie.errors import UsageError
from aerie.models.load import LoadOptions, load_decoder
from aerie.parity.stage_dump import read_dump
from aerie.parity.stages import TOLERANCES, Tolerance, compare_stages
from tests.oracles import eagle3_straight_line as oracle
from tests.unit.models import pairs

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"name", "mean_abs", "max_abs", "cosine", "topk_overlap", "ok"}


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["compare", *arguments, "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


def dumper() -> ModuleType:
    path = ROOT / "scripts" / "dump_stages_transformers.py"
    spec = importlib.util.spec_from_file_location("dump_stages_transformers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "recipe", ["llama3_untied", "llama3_tied", "qwen2", "qwen3", "gpt_oss_mxfp4", "gpt_oss_dense"]
)
def test_every_stage_equals_transformers(tmp_path: Path, recipe: str) -> None:
    pytest.importorskip("transformers", reason="the oracle is not installed")
    from tests.unit.models import tiny

    directory = tiny.build(recipe, tmp_path)
    tokens = torch.randint(0, tiny.VOCAB, (70,), generator=torch.Generator().manual_seed(1))
    script = dumper()
    script.write(tmp_path / "dump", tokens, script.stages_of(tiny.open_oracle(directory), tokens))
    code, report = run("--model", str(directory), "--against", str(tmp_path / "dump"))
    assert code == 0
    assert report["ok"] is True
    assert report["first_departure"] is None
    assert report["not_compared"] == []
    n_layers = tiny.RECIPES[recipe].fields["num_hidden_layers"]
    assert len(report["stages"]) == n_layers + 2
    for stage in report["stages"]:
        assert stage.keys() == KEYS
        assert stage["max_abs"] <= 1e-4
        assert stage["cosine"] >= 0.9999
        assert stage["topk_overlap"] >= 0.99


@pytest.fixture(scope="module")
def pair(tmp_path_factory: Any) -> Path:
    parent = tmp_path_factory.mktemp("pair")
    pairs.write_target(parent / "target", num_hidden_layers=8)
    pairs.write_head(parent / "head", pairs.CASES["two_layers"])
    return parent


def test_a_head_is_probed_and_may_be_read_another_way(pair: Path) -> None:
    models = ("--model", str(pair / "target"), "--draft", str(pair / "head"))
    shown = CliRunner().invoke(app, ["compare", *models, "--taps", "1,2,3", "--json"]).stdout
    assert 0.0 <= json.loads(shown.splitlines()[-1])["probe"]["agreement"] <= 1.0
    assert "boundaries = (1, 2, 3) (option" in shown
    assert "boundaries [1, 2, 3] = layer outputs [0, 1, 2], residual x  (configured)" in shown


def test_pair_against_itself_in_float64(pair: Path) -> None:
    code, report = run("--model", str(pair / "target"), "--draft", str(pair / "head"))
    assert code == 0
    assert report["reference"] == "self, float64"
    names = [stage["name"] for stage in report["stages"]]
    assert names[0] == "target.embedding"
    assert names[-6:] == [
        "draft.fc_out",
        "draft.attn_out",
        "draft.ffn_out",
        "draft.layers.1",
        "draft.pre_head_hidden",
        "draft.logits",
    ]
    assert max(stage["max_abs"] for stage in report["stages"]) < 1e-4
    assert any(stage["max_abs"] > 0 for stage in report["stages"])


def test_head_against_the_straight_line(pair: Path, tmp_path: Path) -> None:
    dump = tmp_path / "ours"
    subject = ("--model", str(pair / "target"), "--draft", str(pair / "head"))
    run(*subject, "--dump", str(dump))
    ours = read_dump(dump)
    assert ours.features is not None
    case = pairs.CASES["two_layers"]
    weights = pairs.oracle_weights(case, load_file(pair / "target" / "model.safetensors"))
    captured = list(ours.features.unbind(1))
    tokens = ours.tokens
    want = oracle.draft(captured, tokens[1:], tokens[:0], weights, case.plan)[0]
    want.pop("next_hidden")
    stages = {f"draft.{name}": stage.contiguous() for name, stage in want.items()}
    save_file(
        {"tokens": tokens, "draft.features": ours.features.clone(), **stages},
        dump / "stages.safetensors",
    )
    code, report = run(*subject, "--against", str(dump))
    assert code == 0
    assert [stage["name"] for stage in report["stages"]] == list(stages)
    assert report["not_compared"][0] == "target.embedding"


def test_first_departure_is_named(pair: Path, tmp_path: Path) -> None:
    run("--model", str(pair / "target"), "--dump", str(tmp_path))
    path = tmp_path / "stages.safetensors"
    stages = load_file(path)
    for name in ("target.layers.3", "target.layers.5", "target.logits"):
        stages[name] = stages[name] + 0.01
    save_file(stages, path)
    code, report = run("--model", str(pair / "target"), "--against", str(tmp_path))
    assert code == 1
    assert report["ok"] is False
    assert report["first_departure"] == "target.layers.3"
    bad = [stage["name"] for stage in report["stages"] if not stage["ok"]]
    assert bad == ["target.layers.3", "target.layers.5", "target.logits"]


def test_a_misread_checkpoint_departs_in_its_first_layer(pair: Path, tmp_path: Path) -> None:
    run("--model", str(pair / "target"), "--dump", str(tmp_path / "right"))
    pairs.write_target(tmp_path / "wrong", num_hidden_layers=8, rope_theta=500.0)
    _, report = run("--model", str(tmp_path / "wrong"), "--against", str(tmp_path / "right"))
    assert report["first_departure"] == "target.layers.0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": torch.ones(2)}, "unknown names surprise"),
        ({"tokens": None}, "no tensor 'tokens'"),
        ({"tokens": torch.tensor([3])}, "at least two token ids"),
        ({"tokens": torch.tensor([3, 4096])}, "token ids must lie in 0..60"),
        ({"target.logits": torch.ones(4, 3)}, "not the same model, or not the same tokens"),
    ],
)
def test_bad_dumps_are_refused(
    pair: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    content = {"tokens": torch.arange(4), "target.logits": torch.ones(4, 61)} | change
    save_file({k: v for k, v in content.items() if v is not None}, tmp_path / "stages.safetensors")
    with pytest.raises(UsageError, match=message):
        run("--model", str(pair / "target"), "--against", str(tmp_path))


def test_no_dump_at_all(pair: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"docs/stages\.md"):
        run("--model", str(pair / "target"), "--against", str(tmp_path))
    with pytest.raises(UsageError, match="unknown dtype"):
        run("--model", str(pair / "target"), "--dtype", "float8")


def test_metrics() -> None:
    want = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    got = torch.tensor([[4.0, 3.0], [0.0, 0.0]])
    (stage,) = compare_stages({"x": want}, {"x": got}, Tolerance(0.9, 2.0)).stages
    assert (stage.mean_abs, stage.max_abs, stage.topk_overlap) == (0.5, 1.0, 1.0)
    assert stage.cosine == pytest.approx(24 / 25)
    assert stage.ok
    lost = compare_stages({"x": want}, {"x": got * torch.nan}, TOLERANCES[torch.bfloat16])
    assert lost.first_departure == "x"
    with pytest.raises(UsageError, match="no stage in common"):
        compare_stages({"x": want}, {"y": got}, Tolerance(0.9, None))


def test_float64_keeps_its_digits(pair: Path) -> None:
    wide = LoadOptions(dtype=torch.float64)
    target = load_decoder(pair / "target", pytorch.prepare, wide)
    x = torch.randn(3, pairs.HIDDEN, dtype=torch.float64)
    weight = target.final_norm.weight.double()
    exact = x / (x.square().mean(-1, keepdim=True) + pairs.EPS).sqrt() * weight
    assert float((target.final_norm(x) - exact).abs().max()) < 1e-14
