"""What auto stands for: one answer for the doctor and for an engine, and errors with a name."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aerie import api
from aerie.api import Engine
from aerie.assemble import choices
from aerie.assemble.choices import choose_backend, choose_engine, explain, explain_window, settled
from aerie.assemble.core import load_target, with_numerics
from aerie.assemble.device import choose_dtype, choose_threads, settle_model
from aerie.assemble.numerics import (
    DENSE_FROM,
    choose_draft_products,
    choose_kind,
    choose_numerics,
    find_numerics,
    head_numerics,
)
from aerie.chips import CHIPS
from aerie.cli.main import app
from aerie.config import EngineConfig, ModelConfig
from aerie.errors import UsageError
from aerie.models.geometry import ExpertGeometry, Geometry, read_geometry
from aerie.models.hub import find_pair
from tests.unit.assemble import gpu


class Loading(Exception):
    """An engine would be loading by now."""


def taken_by_load(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `Engine.load()` has chosen when it begins to load."""
    found: dict[str, str] = {}

    def begin(directory: object, config: ModelConfig, *rest: object) -> None:
        found.update(device=config.device, dtype=config.dtype)
        raise Loading

    configured = api.configured

    def noted(*arguments: object) -> EngineConfig:
        config: EngineConfig = configured(*arguments)  # type: ignore[arg-type]
        policy = config.speculation.policy
        found.update(engine=config.engine, backend=config.backend, policy=policy)
        return config

    monkeypatch.setattr(api, "load_target", begin)
    monkeypatch.setattr(api, "configured", noted)
    with pytest.raises(Loading):
        Engine.load()
    return found


def told_by_doctor(names: set[str]) -> dict[str, str]:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    defaults = json.loads(result.stdout.splitlines()[-1])["defaults"]
    assert all(entry["reason"] for entry in defaults)
    return {entry["name"]: entry["value"] for entry in defaults if entry["name"] in names}


@pytest.mark.parametrize("has_gpu", [False, True])
def test_the_doctor_tells_what_an_engine_takes(
    has_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"device": "cpu", "dtype": "float32", "engine": "direct", "backend": "numpy"}
    if has_gpu:
        gpu.pretend(monkeypatch)
        wanted = {"device": "cuda", "dtype": "bfloat16", "engine": "graphs", "backend": "triton"}
    else:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    wanted["policy"] = "planner"
    told = told_by_doctor(set(wanted))
    assert taken_by_load(monkeypatch) == told == wanted


def test_what_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.pretend(monkeypatch)
    asked = EngineConfig(ModelConfig(device="cpu", dtype="float16"), engine="graphs")
    found = settled(asked)
    assert (found.model, found.engine) == (asked.model, "graphs")
    assert settled(found) == found
    assert settled(EngineConfig(backend="numpy")).model.device == "cpu"  # it runs nowhere else


def test_a_device_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("tpu", "mps", "cuda:x", "CPU", ""):
        with pytest.raises(UsageError, match="cpu, cuda, cuda:N or auto"):
            Engine.load(device=wrong)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match=r"device cuda: .*; use device cpu or auto"):
        Engine.load(device="cuda")
    gpu.pretend(monkeypatch)
    with pytest.raises(UsageError, match="cuda:7: torch sees 1"):
        Engine.load(device="cuda:7")


def test_a_gpu_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.pretend(monkeypatch, has_bfloat16=False)
    assert settle_model(ModelConfig()).dtype == "float32"
    with pytest.raises(UsageError, match="no bfloat16"):
        choose_dtype("bfloat16", "cuda")


def test_settings_are_read_as_people_write_them() -> None:
    with pytest.raises(UsageError, match="did you mean dtype"):
        Engine.load(dtyp="float32")
    with pytest.raises(UsageError, match="must be a string"):
        Engine.load(device=5)


def test_threads_follow_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert choose_threads(0, 256, "cpu").value == 1
    assert choose_threads(3, 256, "cpu").value == 3
    assert 1 <= choose_threads(0, 4096, "cpu").value <= 8


@pytest.mark.parametrize(
    ("chip", "said", "linear"),
    [
        ("h200", "compiled and run;", "tuned"),
        ("a100", "compiled, never run;", "library"),
        ("rtx_5090", "compiled, never run;", "library"),
    ],
)
def test_what_runs_on_a_gpu_follows_from_its_record(
    chip: str, said: str, linear: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them have the same name here: it decides nothing."""
    gpu.pretend(monkeypatch, chip=CHIPS[chip])
    result = CliRunner().invoke(app, ["doctor", "--json"])
    defaults = json.loads(result.stdout.splitlines()[-1])["defaults"]
    (kernels,) = (entry for entry in defaults if entry["name"] == "gpu kernels")
    assert kernels["value"] == CHIPS[chip].architecture and kernels["reason"].startswith(said)
    chosen = choose_numerics(settle_model(ModelConfig()))
    assert {c.name: c.value for c in chosen}["linear"] == linear


@pytest.mark.parametrize(
    ("chip", "settings", "wanted", "why"),
    [
        ("h200", {}, "fp8", "half the bytes"),
        ("h200", {"draft_products": "dense"}, "dense", "asked for"),
        ("h200", {"numerics": "exact"}, "fp8", "half the bytes"),
        ("h200", {"dtype": "float16"}, "dense", "a draft in float16"),
        ("h200", {"linear": "library"}, "dense", "the library"),
        ("l40s", {}, "dense", "have not run on this GPU"),
        ("a100", {"draft_products": "fp8"}, "fp8", "asked for"),
        (None, {}, "dense", "a GPU's"),
        (None, {"draft_products": "fp8"}, "fp8", "asked for"),
    ],
)
def test_drafts_in_eight_bits_where_they_were_measured(
    chip: str | None,
    settings: dict[str, str],
    wanted: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if chip is not None:
        gpu.pretend(monkeypatch, chip=CHIPS[chip])
    config = settle_model(ModelConfig(**settings))  # type: ignore[arg-type]
    found = choose_draft_products(config)
    assert found.value == wanted and why in found.reason


LLAMA = read_geometry(find_pair(None, None)[0])
WINDOWED = replace(LLAMA, attention=replace(LLAMA.attention, windows=(128,) * LLAMA.n_layers))


@pytest.mark.parametrize(
    ("chip", "settings", "geometry", "wanted", "why"),
    [
        ("h200", {}, LLAMA, "exact", "do not depend"),
        ("h200", {"numerics": "fast"}, LLAMA, "fast", "asked for"),
        ("h200", {"dtype": "float32"}, LLAMA, "fast", "slow in float32"),
        ("h200", {"linear": "library"}, LLAMA, "fast", "a part of them"),
        ("h200", {}, WINDOWED, "fast", "do not cover sliding windows"),
        ("h200", {}, replace(LLAMA, vocab_size=50257), "fast", "widths that 16 does not divide"),
        ("l40s", {}, LLAMA, "fast", "have not run on this GPU"),
        ("l40s", {"numerics": "exact"}, LLAMA, "exact", "asked for"),
        (None, {}, LLAMA, "fast", "on a CPU"),
        (None, {"numerics": "exact"}, WINDOWED, "exact", "asked for"),
    ],
)
def test_exact_numerics_where_they_cost_next_to_nothing(
    chip: str | None,
    settings: dict[str, str],
    geometry: Geometry,
    wanted: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if chip is not None:
        gpu.pretend(monkeypatch, chip=CHIPS[chip])
    found = choose_kind(settle_model(ModelConfig(**settings)), geometry)  # type: ignore[arg-type]
    assert found.value == wanted and why in found.reason


@pytest.mark.parametrize(
    ("chip", "settings", "wanted"),
    [
        ("h200", {"numerics": "fast"}, DENSE_FROM),
        ("h200", {"numerics": "fast", "linear": "library"}, DENSE_FROM),
        ("h200", {"numerics": "exact"}, None),
        (None, {"numerics": "fast"}, None),
        (None, {"numerics": "exact"}, None),
    ],
)
def test_packed_weights_are_written_out_in_fast_numerics_on_a_gpu(
    chip: str | None, settings: dict[str, str], wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact numerics have one order of sums for every number of rows."""
    if chip is not None:
        pytest.importorskip("triton")
        gpu.pretend(monkeypatch, chip=CHIPS[chip])
        for module in ("exact_linear", "tuned_linear"):  # memory of the device
            name = f"aerie.kernels.triton_gpu.{module}.gemm_scratch"
            monkeypatch.setattr(name, lambda device: None)
    config = settle_model(ModelConfig(**settings))  # type: ignore[arg-type]
    assert find_numerics(config).packed.dense_from == wanted
    # A draft's are fast there whatever the target's are.
    assert head_numerics(config).packed.dense_from == (None if chip is None else DENSE_FROM)


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("asked", "quantisation", "wanted"),
    [("auto", FP8, "fast"), ("exact", FP8, "exact"), ("auto", None, "exact")],
)
def test_packed_weights_are_read_in_fast_numerics(
    asked: str,
    quantisation: dict[str, Any] | None,
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts would be read several times slower; what is loaded and what is explained agree."""
    gpu.pretend(monkeypatch)
    target, head = find_pair(None, None)
    assert head is not None
    shutil.copytree(target, tmp_path / "t", ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    written = json.dumps(config | {"quantization_config": quantisation})
    (tmp_path / "t" / "config.json").write_text(written, encoding="utf-8")
    model = ModelConfig(numerics=asked, model=str(tmp_path / "t"), draft=str(head))
    assert with_numerics(settle_model(model), tmp_path / "t").numerics == wanted
    told = {choice.name: choice for choice in explain(EngineConfig(model=model))}["numerics"]
    assert told.value == wanted
    if (asked, wanted) == ("auto", "fast"):
        assert told.reason == "exact ones read prompts several times slower from packed weights"


EXPERTS = ExpertGeometry(4, 2, activation_alpha=1.7, activation_limit=7.0, is_mxfp4=False)
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 64,
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 4, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24,
    "rope_theta": 150000.0, "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
}  # fmt: skip
SINKS = replace(LLAMA, attention=replace(LLAMA.attention, has_sinks=True))


@pytest.mark.parametrize(
    ("geometry", "named"),
    [
        (replace(LLAMA, experts=EXPERTS), "experts"),
        (WINDOWED, "sliding windows"),
        (SINKS, "attention sinks"),
        (replace(WINDOWED, experts=EXPERTS), "experts and sliding windows"),
    ],
)
def test_exact_numerics_are_refused_by_name(
    geometry: Geometry, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.pretend(monkeypatch)
    with pytest.raises(UsageError, match=rf"do not cover {named} \(.*use numerics fast"):
        choose_kind(settle_model(ModelConfig(numerics="exact")), geometry)


def test_a_cpu_refuses_experts_too() -> None:
    """It covers windows and sinks; an expert's product has as many rows as chose it."""
    exact = settle_model(ModelConfig(device="cpu", numerics="exact"))
    with pytest.raises(UsageError, match=r"on a CPU do not cover experts \(.*use numerics fast"):
        choose_kind(exact, replace(WINDOWED, experts=EXPERTS))
    assert choose_kind(exact, SINKS).value == "exact"


def test_a_mixture_of_experts_is_refused_before_its_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gpt-oss has all three; its configuration is all that is there to read."""
    gpu.pretend(monkeypatch)
    (tmp_path / "config.json").write_text(json.dumps(GPT_OSS), encoding="utf-8")
    named = r"experts and sliding windows and attention sinks \(GptOssForCausalLM\)"
    with pytest.raises(UsageError, match=f"do not cover {named}: use numerics fast"):
        load_target(tmp_path, ModelConfig(numerics="exact"))
    assert with_numerics(settle_model(ModelConfig()), tmp_path).numerics == "fast"


def test_captured_rounds_on_several_gpus_are_refused_by_name() -> None:
    model = ModelConfig(device="cuda", dtype="bfloat16", tensor_parallel=2)
    with pytest.raises(UsageError, match="captured rounds have not run on several GPUs"):
        choose_engine(EngineConfig(model=model, engine="graphs"))
    found = choose_engine(EngineConfig(model=model))
    assert (found.value, found.reason) == ("direct", "captured rounds have not run on several GPUs")


def test_the_doctor_tells_how_far_the_head_looks_back() -> None:
    assert told_by_doctor({"draft window"}) == {"draft window": "512 positions, 0 sinks"}


@pytest.mark.parametrize(
    ("settings", "words", "origin"),
    [
        ({}, "512 positions, 0 sinks", "config"),
        ({"draft_sinks": 4}, "512 positions, 4 sinks", "config"),
        ({"draft_window": 0}, "the whole context", "option"),
        ({"draft_window": 64, "draft_sinks": 2}, "64 positions, 2 sinks", "option"),
    ],
)
def test_the_window_is_as_asked(settings: dict[str, int], words: str, origin: str) -> None:
    _, head = find_pair(None, None)
    assert head is not None
    found = explain_window(ModelConfig(**settings), head, 34816)  # type: ignore[arg-type]
    assert (found.value, found.origin) == (words, origin)


def test_kernels_are_chosen_by_device_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = choose_backend(EngineConfig())
    assert (on_cpu.value, on_cpu.origin) == ("numpy", "automatic")
    assert on_cpu.reason
    asked = choose_backend(EngineConfig(backend="reference"))
    assert (asked.value, asked.origin) == ("reference", "config")
    on_a_gpu = EngineConfig(model=ModelConfig(device="cuda:0"))
    for obstacle, backend in ((None, "triton"), ("triton is not installed", "pytorch")):
        monkeypatch.setattr(choices, "why_unavailable", lambda info, found=obstacle: found)
        chosen = choose_backend(on_a_gpu)
        assert (chosen.value, chosen.origin) == (backend, "automatic")
        assert obstacle is None or chosen.reason == obstacle
