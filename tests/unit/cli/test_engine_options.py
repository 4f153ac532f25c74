"""The options that four commands share: the same in each, and the settings they become."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import typer

from aerie.api import Engine
from aerie.assemble.choices import configured
from aerie.cli import main
from aerie.cli.engine_options import (
    GROUPS,
    DraftOptions,
    EngineOptions,
    MemoryOptions,
    ModelOptions,
    refuse,
)
from aerie.errors import HubError, UsageError

SHARED = ("generate", "serve", "tune costs", "parity capture")
DEFAULTS = EngineOptions(ModelOptions(), MemoryOptions(), DraftOptions())


def options_of(path: str) -> dict[str, Any]:
    command: Any = typer.main.get_command(main.app)
    for name in path.split():
        command = command.commands[name]
    return {option.name: option for option in command.params}


def test_four_commands_have_the_same_options() -> None:
    names = [entry.name for group in GROUPS for entry in fields(group)]
    aspects = ("opts", "default", "help", "min", "max", "rich_help_panel")
    found = []
    for path in SHARED:
        own = options_of(path)
        found.append([[getattr(own[name], aspect) for aspect in aspects] for name in names])
    assert found[0] == found[1] == found[2] == found[3]
    known = {name for option in options_of("serve").values() for name in option.opts}
    assert known >= {"--max-model-len", "--max-num-seqs", "-m", "--gpu-memory", "--taps"}


def test_nothing_said_is_what_engines_take_by_themselves() -> None:
    assert DEFAULTS.config() == configured(None, None, {})


def test_options_become_settings() -> None:
    options = EngineOptions(
        ModelOptions(device="cpu", taps="2,18,33", engine="direct"),
        MemoryOptions(max_model_len=100, max_batch=3, gpu_memory=0.5, n_pages=7),
        DraftOptions(num_steps=3, eagle_topk=2, num_draft_tokens=8, rule="coins"),
    )
    found = options.settings()
    assert found["taps"] == (2, 18, 33)
    assert found["scheduler"] == {"max_batch": 3}
    assert found["cache"] == {"n_pages": 7, "gpu_memory": 0.5}
    assert found["max_model_len"] == 100
    speculation = found["speculation"]
    assert [speculation[name] for name in ("top_k", "depth", "nodes", "rule")] == [2, 3, 8, "coins"]
    assert options.config().model.taps == (2, 18, 33)
    assert "taps" not in DEFAULTS.settings()


def test_the_json_of_vllm_stands_alone() -> None:
    text = '{"model": "some/head", "num_speculative_tokens": 4}'
    drafts = DraftOptions(speculative_config=text)
    assert replace(DEFAULTS, drafts=drafts).head == "some/head"
    assert drafts.chosen()[0].depth == 4
    with pytest.raises(UsageError, match="leave --method, --speculative-num-steps out"):
        replace(drafts, method="ngram", num_steps=3).chosen()


def test_options_without_a_use_are_refused() -> None:
    refuse("tune costs", MemoryOptions(), DraftOptions())
    with pytest.raises(UsageError, match="does not use --max-num-seqs, --policy"):
        refuse("tune costs", MemoryOptions(max_batch=2), DraftOptions(policy="fixed"))


def test_a_server_takes_its_model_as_an_argument() -> None:
    for named in (["some/model"], ["some/model", "--model", "some/model"]):
        with pytest.raises(HubError, match="some/model"):
            main.app(["serve", *named], standalone_mode=False)
    with pytest.raises(UsageError, match="two models are named"):
        main.app(["serve", "some/model", "--model", "another/model"], standalone_mode=False)


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def load(*given: Any, progress: Any, **settings: Any) -> str:
        for what in ("loading weights", "batch 1, context 256", "batch 4, context 256"):
            progress(what, 1, 2)
        return "an engine"

    monkeypatch.setattr(Engine, "load", load)
    assert DEFAULTS.load() == "an engine"  # type: ignore[comparison-overlap]
    told = capsys.readouterr().err.splitlines()
    assert told == ["measuring costs, once for this machine and model"]


def test_replicas_are_not_split() -> None:
    with pytest.raises(UsageError, match="--replicas 3 with --tensor-parallel 2 has not been"):
        main.app(["serve", "--replicas", "3", "--tensor-parallel", "2"], standalone_mode=False)
