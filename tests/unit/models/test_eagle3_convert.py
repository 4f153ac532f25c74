"""Conversion: a head says the same in every dialect that can say it, and is refused by the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import UnknownNameError, UsageError
from aerie.models.decoder import Decoder
from aerie.models.eagle3.blueprint import TargetSizes
from aerie.models.eagle3.convert import DIALECTS, read_normal, to_dialect, write_head
from aerie.models.eagle3.export import ExportDetails
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import pairs

SIZES = TargetSizes(pairs.LAYERS, pairs.HIDDEN, pairs.VOCAB)
DETAILS = ExportDetails(max_positions=512)
NAMES = [dialect.name for dialect in DIALECTS]

# Heads a dialect cannot express, and the word its refusal must contain.
REFUSED = {
    ("specforge", "modelopt_final_state"): "final_state",
    ("specforge", "speculators"): "norm_before_residual, qk_norm",
    ("specforge", "two_layers_hidden_norm"): "norm_before_residual",
    ("specforge", "biases_and_scale"): "attention_bias, logit_scale",
    ("speculators", "modelopt_final_state"): "final_state",
    ("modelopt", "speculators"): "norm_before_residual, qk_norm",
    ("modelopt", "two_layers_hidden_norm"): "norm_before_residual",
    ("modelopt", "biases_and_scale"): "attention_bias, logit_scale",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> Decoder:
    directory = pairs.write_target(tmp_path_factory.mktemp("target") / "t")
    return load_decoder(directory, pytorch.prepare, LoadOptions())


def logits(directory: Path, target: Decoder) -> Tensor:
    head = load_head(directory, target, pytorch.prepare, HeadOptions())
    tokens = torch.arange(10)
    rows = causal_batch([tokens], packed_slots([10]))
    generator = torch.Generator().manual_seed(0)
    taps = torch.randn(10, len(head.taps), pairs.HIDDEN, generator=generator)
    return head.extend(rows, taps, head.allocate_pool(11)).logits


@pytest.mark.parametrize("case_name", pairs.CASES)
@pytest.mark.parametrize("dialect", NAMES)
def test_round_trip(tmp_path: Path, target: Decoder, dialect: str, case_name: str) -> None:
    pairs.write_head(tmp_path / "in", pairs.CASES[case_name])
    head = read_normal(tmp_path / "in", SIZES)
    if (dialect, case_name) in REFUSED:
        with pytest.raises(UsageError, match=REFUSED[dialect, case_name]):
            to_dialect(head, dialect, DETAILS)
        return
    write_head(tmp_path / "out", head, dialect, DETAILS)
    again = read_normal(tmp_path / "out", SIZES)
    assert again.geometry == head.geometry
    assert again.convention == head.convention
    added = again.tensors.keys() - head.tensors.keys()
    # The two names of a further layer's norm mean the same.
    assert {name.split(".")[2] if "." in name else name for name in added} <= {
        "t2d",
        "input_layernorm",
        "hidden_norm",
    }
    assert torch.equal(logits(tmp_path / "out", target), logits(tmp_path / "in", target))


def test_spelling_of_each_dialect(tmp_path: Path) -> None:
    pairs.write_head(tmp_path, pairs.CASES["two_layers"])
    head = read_normal(tmp_path, SIZES)
    ids = "eagle_aux_hidden_state_layer_ids"
    config, tensors = to_dialect(head, "specforge", DETAILS)
    assert {"midlayer.self_attn.q_proj.weight", "layers.1.hidden_norm.weight"} <= tensors.keys()
    assert config["eagle_config"][ids] == [1, 3, 4]  # layer outputs, as SGLang reads them
    config, tensors = to_dialect(head, "speculators", DETAILS)
    assert "layers.1.input_layernorm.weight" in tensors
    assert config[ids] == [2, 4, 5]  # boundaries, as vLLM reads them
    assert config["transformer_layer_config"]["max_position_embeddings"] == 512
    config, tensors = to_dialect(head, "modelopt", DETAILS)
    assert "layers.0.self_attn.q_proj.weight" in tensors
    assert config["eagle_config"]["use_mtp_layernorm"] is False


def test_shared_parts_stay_shared(tmp_path: Path) -> None:
    pairs.write_head(tmp_path / "in", pairs.CASES["modelopt"])
    head = read_normal(tmp_path / "in", SIZES)
    write_head(tmp_path / "out", head, "speculators", DETAILS)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["draft_vocab_size"] is None
    assert not {"lm_head.weight", "embed_tokens.weight"} & head.tensors.keys()


def test_boundary_of_the_embedding(tmp_path: Path) -> None:
    case = pairs.CASES["official"]
    config = case.config | {"eagle_aux_hidden_state_layer_ids": [0, 3, 8]}
    pairs.save(tmp_path, config, pairs.stored_tensors(case))
    head = read_normal(tmp_path, SIZES)
    with pytest.raises(UsageError, match="boundary 0 is the embedding"):
        to_dialect(head, "modelopt", DETAILS)
    config, _ = to_dialect(head, "speculators", DETAILS)
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 3, 8]


def test_unknown_dialect(tmp_path: Path) -> None:
    head = read_normal(pairs.write_head(tmp_path, pairs.CASES["official"]), SIZES)
    with pytest.raises(UnknownNameError, match="did you mean speculators"):
        to_dialect(head, "speculator", DETAILS)
