"""The probe: a head that is read wrongly is caught, one that is read rightly passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import aerie
from aerie import Engine
from aerie.attention import pytorch
from aerie.errors import ProbeError, UnknownNameError, UsageError
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.probe import (
    ProbeRow,
    ProbeWarning,
    Reading,
    neighbours,
    probe_at_load,
    probe_head,
)
from aerie.models.probe_text import N_TOKENS, read_built_in, write_freely
from tests.unit.models import pairs
from tests.unit.models.trained_pair import BOUNDARIES, TrainedPair, train

IDS = "eagle_aux_hidden_state_layer_ids"
OUTPUTS = [boundary - 1 for boundary in BOUNDARIES]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: Any) -> TrainedPair:
    return train(tmp_path_factory.mktemp("trained"))


def load(pair: TrainedPair, directory: Path, **options: Any) -> Eagle3Head:
    return load_head(directory, pair.target, pytorch.prepare, HeadOptions(**options))


@pytest.mark.parametrize("fields", [{IDS: list(BOUNDARIES)}, {"eagle_config": {IDS: OUTPUTS}}])
def test_right_reading_passes(tmp_path: Path, pair: TrainedPair, fields: dict[str, Any]) -> None:
    report = probe_at_load(pair.target, load(pair, pair.write_head(tmp_path, **fields)), "refuse")
    assert report is not None
    assert report.agreement > 0.7
    assert report.n_pairs > 200
    assert report.problem is None
    assert len(report.rows) == 6


TAPS = f"Load it with taps={BOUNDARIES}"
RESIDUAL = "Set norm_before_residual to false in the head's config.json"

# A head of these captured states, saved by someone who counts differently; what to do about it.
MISREAD: dict[str, tuple[dict[str, Any], str]] = {
    "boundaries saved as layer outputs": ({"eagle_config": {IDS: list(BOUNDARIES)}}, TAPS),
    "layer outputs saved as boundaries": ({IDS: OUTPUTS}, TAPS),
    "the other residual": ({IDS: list(BOUNDARIES), "norm_before_residual": True}, RESIDUAL),
    "shifted and the other residual": (
        {IDS: OUTPUTS, "norm_before_residual": True},
        f"{TAPS}. {RESIDUAL}",
    ),
}


@pytest.mark.parametrize("name", MISREAD)
def test_wrong_reading_is_caught(tmp_path: Path, pair: TrainedPair, name: str) -> None:
    fields, advice = MISREAD[name]
    head = load(pair, pair.write_head(tmp_path, **fields))
    with pytest.raises(ProbeError) as caught:
        probe_at_load(pair.target, head, "refuse")
    message = str(caught.value)
    assert f"boundaries {list(BOUNDARIES)} = layer outputs {OUTPUTS}, residual x" in message
    assert f"residual x. {advice}.\n" in message
    assert "(configured)" in message
    # The advice is right: followed to the letter, it makes the same head pass.
    if RESIDUAL in advice:
        pair.write_head(tmp_path, **fields | {"norm_before_residual": False})
    options = {"boundaries": BOUNDARIES} if TAPS in advice else {}
    report = probe_at_load(pair.target, load(pair, tmp_path, **options), "refuse")
    assert report is not None and report.problem is None
    with pytest.warns(ProbeWarning, match="when read as"):
        assert probe_at_load(pair.target, head, "warn") is not None
    assert probe_at_load(pair.target, head, "off") is None


def test_head_of_another_target_is_refused(tmp_path: Path, pair: TrainedPair) -> None:
    directory = pairs.write_head(tmp_path, pairs.CASES["official"])
    with pytest.raises(ProbeError, match=r"agrees with its target on only 0\.[012]"):
        probe_at_load(pair.target, load(pair, directory), "refuse")


def test_draft_vocabulary_is_mapped_before_it_is_compared(
    tmp_path: Path, pair: TrainedPair
) -> None:
    texts = write_freely(pair.target)
    full = load(pair, pair.write_head(tmp_path / "full", **{IDS: list(BOUNDARIES)}))
    ids = torch.arange(1, pairs.VOCAB)  # without id 0, so that every draft id is off by one
    tensors = pair.tensors | {
        "lm_head.weight": pair.tensors["lm_head.weight"][ids],
        "d2t": torch.ones_like(ids),
    }
    config = pairs.base_config(draft_vocab_size=len(ids), **{IDS: list(BOUNDARIES)})
    pairs.save(tmp_path / "cut", config, tensors)
    cut = probe_head(pair.target, load(pair, tmp_path / "cut"), texts)
    assert abs(cut.agreement - probe_head(pair.target, full, texts).agreement) < 0.05


def test_built_in_text_through_a_tokenizer(tmp_path: Path, pair: TrainedPair) -> None:
    head = load(pair, pair.write_head(tmp_path, **{IDS: list(BOUNDARIES)}))

    def encode(text: str) -> list[int]:
        return [ord(character) % pairs.VOCAB for character in text]

    texts = read_built_in(encode, pair.target)
    assert [len(text) for text in texts.texts] == [N_TOKENS]
    assert probe_head(pair.target, head, texts).n_pairs == N_TOKENS - 1
    assert probe_at_load(pair.target, head, "off", encode) is None


def test_neighbours_stay_inside_the_target(tmp_path: Path, pair: TrainedPair) -> None:
    n_layers = pair.target.geometry.n_layers
    directory = pair.write_head(tmp_path / "edge", **{IDS: [0, 4, n_layers]})
    readings = neighbours(load(pair, directory), n_layers)
    assert readings == [Reading((0, 4, 8), False), Reading((0, 4, 8), True)]
    final = pairs.write_head(tmp_path / "final", pairs.CASES["modelopt_final_state"])
    assert len(neighbours(load(pair, final), n_layers)) == 2


def test_taps_are_an_option_of_the_engine() -> None:
    pair = Path(aerie.__file__).parent / "assets/pair"

    def taps_of(**settings: Any) -> tuple[int, ...]:
        directories = str(pair / "target"), str(pair / "head")
        engine = Engine.load(*directories, speculation={"policy": "fixed"}, **settings)
        return engine.core.parts.taps

    own = taps_of(probe="refuse")
    lower = tuple(boundary - 1 for boundary in own)
    with pytest.raises(ProbeError, match=re.escape(f"Load it with taps={own}")):
        taps_of(probe="refuse", taps=list(lower))
    assert taps_of(probe="off", taps=np.array(lower)) == lower
    with pytest.raises(UsageError, match="taps is '2,4', must be a list of integers"):
        taps_of(taps="2,4")


@pytest.mark.parametrize(
    ("lead", "error", "is_better"),
    [(0.2, 0.03, True), (0.04, 0.01, False), (0.06, 0.04, False), (-0.3, 0.01, False)],
)
def test_clearly_better(lead: float, error: float, is_better: bool) -> None:
    assert ProbeRow(Reading((1,), False), 0.5, lead, error).is_clearly_better is is_better


def test_text_of_the_target_is_always_the_same(pair: TrainedPair) -> None:
    first, second = write_freely(pair.target), write_freely(pair.target)
    assert all(torch.equal(a, b) for a, b in zip(first.texts, second.texts, strict=True))
    assert sum(len(text) for text in first.texts) == N_TOKENS


def test_unknown_mode(tmp_path: Path, pair: TrainedPair) -> None:
    head = load(pair, pair.write_head(tmp_path, **{IDS: list(BOUNDARIES)}))
    with pytest.raises(UnknownNameError, match="did you mean warn"):
        probe_at_load(pair.target, head, "warm")  # type: ignore[arg-type]
