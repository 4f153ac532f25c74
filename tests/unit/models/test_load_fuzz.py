"""Mutated checkpoints: whatever was done to the files, they load or end in a CheckpointError."""

from __future__ import annotations

import copy
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from aerie.attention import pytorch
from aerie.errors import CheckpointError
from aerie.models.eagle3.config import parse_head_config
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.fields import Fields
from aerie.models.geometry import parse_geometry
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import pairs
from tests.unit.models.handmade import CONFIG, EXPERTS, write_checkpoint
from tests.unit.models.mutations import VALUES, Files, mutate, places
from tests.unit.models.quantisers import gptq, quantise_file
from tests.unit.models.test_gptq import GPTQ

Use = Callable[[Path], torch.Tensor]  # the logits of three rows
QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 8,
    "use_sliding_window": True,
    "sliding_window": 16,
    "max_window_layers": 1,
    "rope_scaling": pairs.LLAMA3,
}


@dataclass(frozen=True)
class Subject:
    """A good checkpoint, and what is done with it: loaded, and run if it loads."""

    files: Files
    use: Use


def run_target(directory: Path) -> torch.Tensor:
    decoder = load_decoder(directory, pytorch.prepare, LoadOptions())
    rows = causal_batch([torch.arange(3)], packed_slots([3]))
    return decoder.forward(rows, decoder.allocate_pool(4), torch.arange(3)).logits


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: Any) -> dict[str, Subject]:
    folder = tmp_path_factory.mktemp("good")
    target_dir = pairs.write_target(folder / "target")
    target = load_decoder(target_dir, pytorch.prepare, LoadOptions())

    def run_head(directory: Path) -> torch.Tensor:
        head = load_head(directory, target, pytorch.prepare, HeadOptions())
        rows = causal_batch([torch.arange(3)], packed_slots([3]))
        states = torch.zeros(3, len(head.taps), pairs.HIDDEN)
        return head.extend(rows, states, head.allocate_pool(4)).logits

    packed, _ = quantise_file(load_file(target_dir / "model.safetensors"), gptq)
    pairs.save(folder / "gptq", pairs.target_config(quantization_config=GPTQ), packed)
    made = {
        "llama": write_checkpoint(folder / "llama", CONFIG),
        "shards": write_checkpoint(folder / "shards", CONFIG | QWEN, n_shards=3),
        "experts": write_checkpoint(folder / "experts", CONFIG | EXPERTS),
        "gptq": folder / "gptq",
    }
    found = {name: Subject(read_files(path), run_target) for name, path in made.items()}
    for name in ("official", "modelopt", "speculators", "two_layers", "narrow", "window"):
        directory = pairs.write_head(folder / name, pairs.CASES[name])
        found[name] = Subject(read_files(directory), run_head)
    return found


def read_files(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def outcome(subject: Subject, seed: int, folder: Path) -> str:
    """What one mutation ended in; anything but success or a named error fails with its seed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, raw in mutate(subject.files, random.Random(seed)).items():
        (folder / name).write_bytes(raw)
    try:
        subject.use(folder)
    except CheckpointError as error:
        str(error).encode()  # a message must be printable
        assert len(str(error)) < 20_000, f"seed {seed}: an endless message"
        return type(error).__name__
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error!r:.500}") from error
    return "loaded"


def fuzz(subjects: dict[str, Subject], seeds: range, folder: Path) -> Counter[str]:
    names = sorted(subjects)
    return Counter(outcome(subjects[names[s % len(names)]], s, folder / "spoilt") for s in seeds)


def test_a_good_checkpoint_of_each_kind_loads(subjects: dict[str, Subject], tmp_path: Path) -> None:
    for name, subject in subjects.items():
        (tmp_path / name).mkdir()
        for file_name, raw in subject.files.items():
            (tmp_path / name / file_name).write_bytes(raw)
        logits = subject.use(tmp_path / name)
        assert len(logits) == 3 and torch.isfinite(logits).all(), name


def test_mutations_load_or_end_in_a_named_error(
    subjects: dict[str, Subject], tmp_path: Path
) -> None:
    seen = fuzz(subjects, range(400), tmp_path)
    # The mutations reach every stage, and leave some checkpoints sound.
    for kind in ("ConfigFieldError", "WeightFileError", "TensorMismatchError", "loaded"):
        assert seen[kind] >= 10, seen


CONFIGS: tuple[tuple[Callable[[Fields], object], dict[str, Any]], ...] = (
    (parse_geometry, CONFIG | EXPERTS),
    (parse_geometry, CONFIG | QWEN | {"quantization_config": GPTQ}),
    (parse_head_config, pairs.CASES["modelopt"].config),
    (parse_head_config, pairs.CASES["speculators"].config),
)


@pytest.mark.parametrize(("parse", "config"), CONFIGS)
def test_every_field_takes_every_value_or_names_itself(
    parse: Callable[[Fields], object], config: dict[str, Any]
) -> None:
    for place in range(len(list(places(config)))):
        for value in VALUES:
            spoilt = copy.deepcopy(config)
            owner, key = list(places(spoilt))[place]
            owner[key] = value
            try:
                parse(Fields(spoilt, "config.json"))
            except CheckpointError:
                continue
            except BaseException as error:
                raise AssertionError(f"{key} = {value!r:.60}: {error!r:.500}") from error


@pytest.mark.slow
def test_many_mutations(subjects: dict[str, Subject], tmp_path: Path) -> None:
    seen = fuzz(subjects, range(1000, 41_000), tmp_path)
    # `outcome` refuses whatever is no named error; the mutations must have reached every stage.
    for kind in ("ConfigFieldError", "WeightFileError", "TensorMismatchError", "loaded"):
        assert seen[kind] >= 1000, seen
