"""Hostile JSON: every file of a directory ends in a named error, whatever stands in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aerie.attention import pytorch
from aerie.errors import CheckpointError, ConfigFieldError, WeightFileError
from aerie.models.convert_pickle import PICKLED_INDEX, convert
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.strict_json import MAX_DIGITS, parse_object
from aerie.models.weights import INDEX, SINGLE
from aerie.text.tokenizer import load_tokenizer
from tests.unit.models.handmade import CONFIG, write_checkpoint

DEEP = "[" * 200_000
NORM = "model.norm.weight"
PAIR = Path(__file__).parents[3] / "src/aerie/assets/pair/target"


def load(directory: Path) -> None:
    load_decoder(directory, pytorch.prepare, LoadOptions())


def rewrite_header(directory: Path, text: str) -> None:
    """Put another header before the same data."""
    path = directory / SINGLE
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes(len(text.encode()).to_bytes(8, "little") + text.encode() + raw[8 + length :])


def edit_entry(directory: Path, **fields: object) -> None:
    """Change what the header says of one tensor."""
    raw = (directory / SINGLE).read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    header[NORM] |= fields
    rewrite_header(directory, json.dumps(header))


def write_config(text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / "config.json").write_text(text)


def twice(directory: Path) -> None:
    text = json.dumps(CONFIG)
    (directory / "config.json").write_text('{"hidden_size": 64, ' + text[1:])


Spoil = Callable[[Path], object]

# What is done to a good directory, and what the error must say.
CASES: dict[str, tuple[Spoil, type[CheckpointError], str]] = {
    "deep header": (lambda d: rewrite_header(d, DEEP), WeightFileError, "nested too deeply"),
    "deep metadata": (
        lambda d: rewrite_header(d, '{"__metadata__": ' + DEEP),
        WeightFileError,
        "nested too deeply",
    ),
    "deep config": (write_config(DEEP), ConfigFieldError, "nested too deeply"),
    "deep objects": (write_config('{"a":' * 200_000), ConfigFieldError, "nested too deeply"),
    "deep field": (
        write_config(json.dumps(CONFIG)[:-1] + ', "hidden_act": ' + "[" * 500 + "]" * 500 + "}"),
        ConfigFieldError,
        r"hidden_act: \[\[\[.* is not a string",
    ),
    "key twice in the config": (twice, ConfigFieldError, "'hidden_size' stands twice"),
    "key twice in the header": (
        lambda d: rewrite_header(d, '{"x": {"shape": [], "shape": []}}'),
        WeightFileError,
        "'shape' stands twice",
    ),
    "NaN in the config": (
        write_config(json.dumps(CONFIG | {"rms_norm_eps": float("nan")})),
        ConfigFieldError,
        "NaN is not a JSON number",
    ),
    "infinity in the header": (
        lambda d: edit_entry(d, shape=[float("-inf")]),
        WeightFileError,
        "-Infinity is not a JSON number",
    ),
    "a number without end": (
        write_config(json.dumps(CONFIG)[:-1] + ', "head_dim": ' + "9" * 5000 + "}"),
        ConfigFieldError,
        "a whole number of 5000 digits, limit 64",
    ),
    "a number beyond floats": (
        write_config(json.dumps(CONFIG | {"rope_theta": 10**60})),
        ConfigFieldError,
        "rope_theta: 10+ is outside",
    ),
    "a name that cannot be printed": (
        lambda d: rewrite_header(d, '{"\\ud800": {}}'),
        WeightFileError,
        r"the key '\\ud800' is not printable",
    ),
    "a name with an escape": (
        lambda d: rewrite_header(d, '{"\\u001b[2J": {}}'),
        WeightFileError,
        "is not printable",
    ),
    "a name without end": (
        lambda d: rewrite_header(d, json.dumps({"x" * 10**6: {}})),
        WeightFileError,
        "the key 'x+ is not printable text of 500 characters",
    ),
    "truth values as sizes": (
        lambda d: edit_entry(d, shape=[True, 32]),
        WeightFileError,
        r"impossible shape \[True, 32\]",
    ),
    "text as a size": (lambda d: edit_entry(d, shape=["32"]), WeightFileError, "impossible shape"),
    "float as a size": (lambda d: edit_entry(d, shape=[32.0]), WeightFileError, "impossible shape"),
    "a list as a size": (lambda d: edit_entry(d, shape=[[]]), WeightFileError, "impossible shape"),
    "negative sizes": (
        lambda d: edit_entry(d, shape=[-4, -8]),
        WeightFileError,
        "impossible shape",
    ),
    "empty, and huge": (
        lambda d: edit_entry(d, shape=[0, 2**63 - 1, 2**63 - 1], data_offsets=[0, 0]),
        WeightFileError,
        "impossible shape",
    ),
    "a thousand axes": (lambda d: edit_entry(d, shape=[1] * 1000), WeightFileError, "impossible"),
    "truth values as offsets": (
        lambda d: edit_entry(d, shape=[], dtype="U8", data_offsets=[False, True]),
        WeightFileError,
        r"impossible shape \[\] at False to True",
    ),
    "negative offsets": (
        lambda d: edit_entry(d, data_offsets=[-128, 0]),
        WeightFileError,
        "starts at byte",
    ),
    "offsets turned round": (
        lambda d: edit_entry(d, data_offsets=[128, 0]),
        WeightFileError,
        "its span has -128",
    ),
    "offsets of text": (
        lambda d: edit_entry(d, data_offsets=["0", "128"]),
        WeightFileError,
        "has no dtype, shape and data_offsets",
    ),
    "a dtype without end": (
        lambda d: edit_entry(d, dtype="F" * 10**6),
        WeightFileError,
        r"dtype 'F+\.\.\.F+', which is not supported; known: BOOL",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_files_end_in_a_named_error(tmp_path: Path, case: str) -> None:
    spoil, kind, message = CASES[case]
    spoil(write_checkpoint(tmp_path, CONFIG))
    with pytest.raises(kind, match=message) as caught:
        load(tmp_path)
    assert len(str(caught.value)) < 2000


def test_deep_index(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, CONFIG, n_shards=2) / INDEX).write_text(DEEP)
    with pytest.raises(WeightFileError, match="nested too deeply"):
        load(tmp_path)
    (tmp_path / PICKLED_INDEX).write_text(DEEP)
    with pytest.raises(WeightFileError, match="nested too deeply"):
        convert(tmp_path, tmp_path / "out")


def test_a_list_without_end_is_counted(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, CONFIG, n_shards=2) / INDEX
    index = json.loads(path.read_text())
    index["weight_map"] |= {f"ghost.{i}": "model-00001-of-00002.safetensors" for i in range(999)}
    path.write_text(json.dumps(index))
    with pytest.raises(WeightFileError, match="and 959 more"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json"])
def test_deep_files_beside_the_tokenizer(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((PAIR / "tokenizer.json").read_bytes())
    (tmp_path / name).write_text(DEEP)
    with pytest.raises(CheckpointError, match=f"{name} is not JSON"):
        load_tokenizer(tmp_path)


# Regular files that cannot be read, not by root either: the kernel answers with an I/O error.
UNREADABLE = Path("/proc/self/mem")


@pytest.mark.skipif(not UNREADABLE.is_file(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", ["config.json", SINGLE])
def test_unreadable_files_are_named(tmp_path: Path, name: str) -> None:
    path = write_checkpoint(tmp_path, CONFIG) / name
    path.unlink()
    path.symlink_to(UNREADABLE)
    with pytest.raises(CheckpointError, match=f"(?s){name} cannot be read: .*permissions"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", SINGLE])
def test_a_folder_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    path = write_checkpoint(tmp_path, CONFIG) / name
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=f"{name}.* is a folder or a device, must be a file"):
        load(tmp_path)


def test_public_oddities_are_still_read() -> None:
    text = '{"model_max_length": 1000000000000000019884624838656, "name": "\\u00e9"}'
    values = parse_object(text.encode(), "x", CheckpointError)
    assert values == {"model_max_length": 1000000000000000019884624838656, "name": "é"}
    assert parse_object(b'{"x": ' + b"9" * MAX_DIGITS + b"}", "x", CheckpointError)
