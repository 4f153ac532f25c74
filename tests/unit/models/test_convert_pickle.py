"""Pickled weights: converted exactly, or refused before anything in them has run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import aerie
from aerie.attention import pytorch
from aerie.errors import WeightFileError
from aerie.models.convert_pickle import Limits, convert, main
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.models import pairs


def write_pickled(directory: Path, tensors: Any, name: str = "pytorch_model.bin") -> Path:
    directory.mkdir(exist_ok=True)
    torch.save(tensors, directory / name)
    return directory


def some_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shared = torch.randn(4, 6, generator=generator)
    return {
        "a": shared,
        "tied": shared,
        "view": shared.t(),
        "half": torch.randn(3, generator=generator).half(),
        "ids": torch.arange(5),
        "flags": torch.tensor([True, False]),
    }


def test_head_in_the_official_format(tmp_path: Path) -> None:
    target = load_decoder(pairs.write_target(tmp_path / "t"), pytorch.prepare, LoadOptions())
    case = pairs.CASES["official"]
    write_pickled(tmp_path / "in", pairs.stored_tensors(case))
    (tmp_path / "in" / "config.json").write_text(json.dumps(case.config))
    (tmp_path / "in" / "modeling.py").write_text("raise SystemExit")
    command = [sys.executable, "-m", "aerie.models.convert_pickle"]
    environment = {**os.environ, "PYTHONPATH": str(Path(aerie.__file__).parents[1])}
    done = subprocess.run(
        [*command, str(tmp_path / "in"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "model.safetensors: 15 tensors" in done.stdout
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    head = load_head(tmp_path / "out", target, pytorch.prepare, HeadOptions())
    assert head.taps == case.boundaries


def test_every_kind_of_tensor(tmp_path: Path) -> None:
    want = some_tensors()
    write_pickled(tmp_path / "in", {"state_dict": want})
    convert(tmp_path / "in", tmp_path / "out")
    got = load_file(tmp_path / "out" / "model.safetensors")
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert all(got[name].dtype == want[name].dtype for name in want)


def test_old_format_and_shards(tmp_path: Path) -> None:
    tensors = some_tensors()
    weight_map = {}
    for number, names in enumerate((["a", "tied"], ["half", "ids"]), 1):
        shard = f"pytorch_model-{number:05}-of-00002.bin"
        (tmp_path / "in").mkdir(exist_ok=True)
        old = {"_use_new_zipfile_serialization": number == 1}
        torch.save({n: tensors[n] for n in names}, tmp_path / "in" / shard, **old)
        weight_map |= dict.fromkeys(names, shard)
    index = tmp_path / "in" / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    written = convert(tmp_path / "in", tmp_path / "out")
    assert len(written) == 2
    stored = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert stored["weight_map"]["ids"] == "model-00002-of-00002.safetensors"
    assert torch.equal(load_file(written[1])["ids"], tensors["ids"])


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.path}",))


def test_code_never_runs(tmp_path: Path) -> None:
    trace = tmp_path / "it_ran"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Payload(trace)}))
    with pytest.raises(WeightFileError, match=r"pytorch_model\.bin: cannot be converted"):
        convert(tmp_path / "in", tmp_path / "out")
    assert not trace.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["in"]  # nothing half-written is left


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds a list"),
        ({"w": torch.ones(2), "epoch": 3}, "not tensors: epoch"),
        ({}, "holds a dict"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    write_pickled(tmp_path / "in", content)
    with pytest.raises(WeightFileError, match=message):
        convert(tmp_path / "in", tmp_path / "out")


def test_limits_hold(tmp_path: Path) -> None:
    write_pickled(tmp_path / "in", {"w": torch.zeros(64 << 20, dtype=torch.uint8)})
    with pytest.raises(WeightFileError, match="cannot be converted"):
        convert(tmp_path / "in", tmp_path / "a", Limits(memory_factor=0.1, memory_margin=1 << 20))
    with pytest.raises(WeightFileError, match="not converted after"):
        convert(tmp_path / "in", tmp_path / "b", Limits(seconds=0.05))


def test_links_stay_inside(tmp_path: Path) -> None:
    write_pickled(tmp_path / "elsewhere", some_tensors())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "pytorch_model.bin").symlink_to(tmp_path / "elsewhere/pytorch_model.bin")
    with pytest.raises(WeightFileError, match="is a link to"):
        convert(tmp_path / "in", tmp_path / "out")
    index = tmp_path / "in" / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere/pytorch_model.bin"}}))
    with pytest.raises(WeightFileError, match="is not a file name"):
        convert(tmp_path / "in", tmp_path / "out")


def test_hub_cache_links_are_followed(tmp_path: Path) -> None:
    model = tmp_path / "models--org--head"
    write_pickled(tmp_path / "models--org--head", {"w": torch.ones(2)}, "blob")
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    (model / "blob").rename(model / "blobs" / "1234")
    (snapshot / "pytorch_model.bin").symlink_to("../../blobs/1234")
    convert(snapshot, tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")["w"].tolist() == [1.0, 1.0]


def test_existing_output_is_kept(tmp_path: Path) -> None:
    write_pickled(tmp_path / "in", some_tensors())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(WeightFileError, match="already exists"):
        convert(tmp_path / "in", tmp_path / "out")
    with pytest.raises(WeightFileError, match="found none"):
        convert(tmp_path / "out", tmp_path / "new")


def test_a_disk_that_refuses_ends_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pickled(tmp_path / "in", some_tensors())
    (tmp_path / "in" / "gone.json").symlink_to(
        tmp_path / "nowhere"
    )  # a companion that is not there
    convert(tmp_path / "in", tmp_path / "out")
    (tmp_path / "file").write_text("")
    inside = str(tmp_path / "file" / "out")
    monkeypatch.setattr("sys.argv", ["convert_pickle", str(tmp_path / "in"), inside])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "File exists" in capsys.readouterr().err
