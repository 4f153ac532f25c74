"""Loading: good checkpoints in every layout, and each corrupt one refused by its named error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import (
    AerieError,
    CheckpointError,
    ConfigFieldError,
    PickleRefusedError,
    TensorMismatchError,
    UnsupportedArchitectureError,
    UsageError,
    WeightFileError,
)
from aerie.models.decoder import Decoder
from aerie.models.linear import DenseFormat, DenseLinear
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.weights import INDEX, SINGLE, save_tensors
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models.handmade import (
    CONFIG,
    EXPERTS,
    random_tensors,
    write_checkpoint,
    write_directory,
)

EMBEDDING = "model.embed_tokens.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"
NORM = "model.norm.weight"
GPT_OSS = CONFIG | EXPERTS


def load(directory: Path, options: LoadOptions | None = None) -> Decoder:
    return load_decoder(directory, pytorch.prepare, options or LoadOptions())


def logits(decoder: Decoder) -> Tensor:
    rows = causal_batch([torch.arange(9)], packed_slots([9]))
    return decoder.forward(rows, decoder.allocate_pool(10), torch.arange(9)).logits


def test_shards_and_single_file_are_the_same_model(tmp_path: Path) -> None:
    single = load(write_checkpoint(tmp_path / "single", CONFIG))
    sharded = load(write_checkpoint(tmp_path / "sharded", CONFIG, n_shards=3))
    assert torch.equal(logits(single), logits(sharded))


def _mapped_file(address: int) -> str:
    """The file behind an address of this process, or nothing."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *rest = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return rest[4] if len(rest) == 5 else ""
    return ""


def test_weights_are_the_mapped_file_itself(tmp_path: Path) -> None:
    decoder = load(write_checkpoint(tmp_path, CONFIG))
    assert _mapped_file(decoder.embedding.data_ptr()) == str(tmp_path / SINGLE)
    before = (tmp_path / SINGLE).read_bytes()
    decoder.embedding.zero_()
    assert (tmp_path / SINGLE).read_bytes() == before


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtype_is_the_files_unless_asked(tmp_path: Path, stored: torch.dtype) -> None:
    directory = write_checkpoint(tmp_path, CONFIG, dtype=stored)
    assert load(directory).embedding.dtype == stored
    wide = load(directory, LoadOptions(dtype=torch.float32))
    assert wide.embedding.dtype == torch.float32
    assert torch.equal(wide.embedding, load(directory).embedding.float())
    assert wide.final_norm.weight.dtype == torch.float32


def test_tied_head_is_the_embedding(tmp_path: Path) -> None:
    config = CONFIG | {"tie_word_embeddings": True}
    tensors = random_tensors(config)
    decoder = load(write_directory(tmp_path / "bare", config, tensors))
    assert isinstance(decoder.head, DenseLinear)
    assert decoder.head.weight.data_ptr() == decoder.embedding.data_ptr()
    repeated = tensors | {"lm_head.weight": tensors[EMBEDDING].clone()}
    load(write_directory(tmp_path / "repeated", config, repeated))
    different = tensors | {"lm_head.weight": tensors[EMBEDDING] + 1}
    with pytest.raises(TensorMismatchError, match=r"lm_head\.weight differs from the embedding"):
        load(write_directory(tmp_path / "different", config, different))


def test_taps_outside_the_model_are_refused(tmp_path: Path) -> None:
    decoder = load(write_checkpoint(tmp_path, CONFIG))
    rows = causal_batch([torch.arange(2)], packed_slots([2]))
    with pytest.raises(UsageError, match=r"tap 3 does not exist.*to 2"):
        decoder.forward(rows, decoder.allocate_pool(3), torch.arange(2), (0, 3))


Tensors = dict[str, Tensor]


def _spoil_everything(tensors: Tensors) -> None:
    tensors[QUERY] = torch.zeros(3, 5)
    tensors["model.layers.0.mlp.gate_proj.bias"] = torch.zeros(40)
    tensors["surprise"] = torch.zeros(1)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = torch.nan
    tensors[EMBEDDING] = tensors[EMBEDDING].double()
    del tensors[NORM], tensors["lm_head.weight"]


def _put(name: str, value: float) -> Callable[[Tensors], None]:
    def spoil(tensors: Tensors) -> None:
        tensors[name].view(-1)[-1] = value

    return spoil


# name: (change, fragments the one error must contain)
TENSOR_CASES: dict[str, tuple[Callable[[Tensors], object], list[str]]] = {
    "missing": (lambda t: t.pop(QUERY), ["missing (1):", f"{QUERY} [32, 32]"]),
    "unknown": (lambda t: t.update(x=torch.ones(2)), ["unknown (1):", "  x"]),
    "wrong_shape": (
        lambda t: t.update({QUERY: torch.zeros(32, 31)}),
        ["wrong shape (1):", f"{QUERY} [32, 31], must be [32, 32]"],
    ),
    "wrong_dtype": (
        lambda t: t.update({QUERY: torch.zeros(32, 32, dtype=torch.int64)}),
        ["wrong dtype (1):", f"{QUERY} I64, must be F32 or BF16 or F16"],
    ),
    "nan": (_put(NORM, float("nan")), ["not finite (1):", NORM]),
    "infinity": (_put(QUERY, float("-inf")), ["not finite (1):", QUERY]),
    "everything_at_once": (
        _spoil_everything,
        [
            "missing (2):",
            "lm_head.weight [61, 32]",
            f"{NORM} [32]",
            "unknown (2):",
            "model.layers.0.mlp.gate_proj.bias",
            "surprise",
            "wrong shape (1):",
            f"{QUERY} [3, 5], must be [32, 32]",
            "wrong dtype (1):",
            f"{EMBEDDING} F64",
            "not finite (1):",
            "model.layers.0.mlp.up_proj.weight",
        ],
    ),
}


@pytest.mark.parametrize("n_shards", [0, 2])
@pytest.mark.parametrize("case", TENSOR_CASES)
def test_bad_tensors_are_all_listed(tmp_path: Path, case: str, n_shards: int) -> None:
    spoil, fragments = TENSOR_CASES[case]
    tensors = random_tensors(CONFIG)
    spoil(tensors)
    with pytest.raises(TensorMismatchError) as caught:
        load(write_directory(tmp_path, CONFIG, tensors, n_shards))
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_long_list_is_sorted_and_counted(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG) | {f"extra.{i:03d}": torch.zeros(1) for i in range(100)}
    with pytest.raises(TensorMismatchError) as caught:
        load(write_directory(tmp_path, CONFIG, tensors))
    message = str(caught.value)
    assert "unknown (100):" in message and "and 60 more" in message
    assert "extra.039" in message and "extra.040" not in message


def test_not_finite_after_a_cast_or_dequantising(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, torch.bfloat16)
    tensors[QUERY][0, 0] = 1e6
    directory = write_directory(tmp_path / "cast", CONFIG, tensors)
    load(directory)
    with pytest.raises(TensorMismatchError, match=r"q_proj\.weight in torch\.float16"):
        load(directory, LoadOptions(dtype=torch.float16))
    tensors = random_tensors(GPT_OSS)
    name = "model.layers.0.mlp.experts.down_proj_scales"
    tensors[name][0, 0, 0] = 255  # a scale that stands for NaN
    with pytest.raises(TensorMismatchError, match=name):
        load(write_directory(tmp_path / "scale", GPT_OSS, tensors))


def _header(directory: Path) -> tuple[dict[str, dict[str, object]], bytes]:
    raw = (directory / SINGLE).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def _rewrite(directory: Path, header: object, data: bytes) -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    (directory / SINGLE).write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def _edit_entry(directory: Path, name: str, **fields: object) -> None:
    header, data = _header(directory)
    header[name] |= fields
    _rewrite(directory, header, data)


def _truncate(directory: Path) -> None:
    raw = (directory / SINGLE).read_bytes()
    (directory / SINGLE).write_bytes(raw[:-100])


def _grow(directory: Path) -> None:
    (directory / SINGLE).write_bytes((directory / SINGLE).read_bytes() + b"\0" * 8)


def _overlap(directory: Path) -> None:
    header, data = _header(directory)
    header[QUERY]["data_offsets"] = header["model.layers.0.self_attn.q_proj.weight"]["data_offsets"]
    _rewrite(directory, header, data)


FILE_CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (_truncate, r"describes \d+ bytes, the file has \d+"),
    "too_long": (_grow, r"describes \d+ bytes, the file has \d+"),
    "empty_file": (lambda d: (d / SINGLE).write_bytes(b""), "no safetensors header in 0 bytes"),
    "huge_header": (
        lambda d: (d / SINGLE).write_bytes(b"\xff" * 64),
        "no safetensors header in 64 bytes",
    ),
    "header_not_json": (lambda d: _rewrite(d, b"{oops", b""), "header is not JSON"),
    "header_not_utf8": (lambda d: _rewrite(d, b"\xff\xfe", b""), "header is not JSON"),
    "header_is_a_list": (lambda d: _rewrite(d, [], b""), "not a JSON object"),
    "entry_without_shape": (lambda d: _rewrite(d, {"x": {}}, b""), "x has no dtype, shape"),
    "shape_against_bytes": (
        lambda d: _edit_entry(d, QUERY, shape=[10**9, 10**9]),
        r"needs \d+ bytes, its span has 4096",
    ),
    "negative_shape": (lambda d: _edit_entry(d, QUERY, shape=[-32, -32]), "impossible shape"),
    "unknown_dtype": (lambda d: _edit_entry(d, QUERY, dtype="Q3"), "dtype 'Q3'"),
    "overlap": (_overlap, "the one before it ends at"),
    "nothing_there": (lambda d: (d / SINGLE).unlink(), "nothing to load"),
    "single_and_index": (lambda d: (d / INDEX).write_text("{}"), "remove the stale one"),
}


@pytest.mark.parametrize("case", FILE_CASES)
def test_bad_files_are_refused(tmp_path: Path, case: str) -> None:
    spoil, message = FILE_CASES[case]
    spoil(write_checkpoint(tmp_path, CONFIG))
    with pytest.raises(WeightFileError, match=message):
        load(tmp_path)


def _edit_index(directory: Path, name: str, shard: object) -> None:
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"][name] = shard
    (directory / INDEX).write_text(json.dumps(index))


INDEX_CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "traversal": (lambda d: _edit_index(d, NORM, "../x.safetensors"), "not a file name"),
    "absolute": (lambda d: _edit_index(d, NORM, "/etc/x.safetensors"), "not a file name"),
    "sub_folder": (lambda d: _edit_index(d, NORM, "a/x.safetensors"), "not a file name"),
    "backslash": (lambda d: _edit_index(d, NORM, "..\\x.safetensors"), "not a file name"),
    "not_safetensors": (lambda d: _edit_index(d, NORM, "config.json"), "not a file name"),
    "not_json": (lambda d: (d / INDEX).write_text("{"), r"index\.json is not JSON"),
    "no_weight_map": (lambda d: (d / INDEX).write_text("{}"), "it has no weight_map"),
    "list_weight_map": (
        lambda d: (d / INDEX).write_text('{"weight_map": []}'),
        "it has no weight_map",
    ),
    "number_for_a_shard": (lambda d: _edit_index(d, NORM, 5), "shard 5 of .* is not a file name"),
    "long_shard": (lambda d: _edit_index(d, NORM, "x" * 300 + ".safetensors"), "not a file name"),
    "missing_shard": (
        lambda d: (d / "model-00002-of-00002.safetensors").unlink(),
        "model-00002-of-00002.safetensors: not found",
    ),
    "promised_tensor": (
        lambda d: _edit_index(d, "ghost", "model-00001-of-00002.safetensors"),
        "ghost is in the index, not here",
    ),
    "unlisted_tensor": (
        lambda d: save_tensors(d / "model-00001-of-00002.safetensors", {"x": torch.ones(1)}, {}),
        "x is here, not in the index",
    ),
}


@pytest.mark.parametrize("case", INDEX_CASES)
def test_bad_indices_are_refused(tmp_path: Path, case: str) -> None:
    spoil, message = INDEX_CASES[case]
    spoil(write_checkpoint(tmp_path, CONFIG, n_shards=2))
    with pytest.raises(WeightFileError, match=message):
        load(tmp_path)


def test_pickled_weights_are_refused_with_the_command(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", CONFIG)
    (directory / SINGLE).rename(directory / "pytorch_model.bin")
    with pytest.raises(PickleRefusedError) as caught:
        load(directory)
    command = f"python -m aerie.models.convert_pickle {directory} {directory}-safetensors"
    assert command in str(caught.value) and "pytorch_model.bin" in str(caught.value)


CONFIG_CASES: dict[str, tuple[str, type[AerieError], str]] = {
    "no_json": ("{", ConfigFieldError, "is not JSON"),
    "a_list": ("[]", ConfigFieldError, "holds a list"),
    "unknown_architecture": (
        json.dumps(CONFIG | {"architectures": ["Qwen4ForCausalLM"]}),
        UnsupportedArchitectureError,
        "'Qwen4ForCausalLM' is not supported. Supported: LlamaForCausalLM, Qwen2",
    ),
    "impossible_size": (
        json.dumps(CONFIG | {"hidden_size": 1 << 40}),
        ConfigFieldError,
        r"hidden_size: \d+ is outside",
    ),
    "sizes_the_file_does_not_have": (
        json.dumps(CONFIG | {"hidden_size": 1 << 20, "head_dim": 8}),
        TensorMismatchError,
        r"\[61, 32\], must be \[61, 1048576\]",
    ),
}


@pytest.mark.parametrize("case", CONFIG_CASES)
def test_bad_configs_are_refused(tmp_path: Path, case: str) -> None:
    content, kind, message = CONFIG_CASES[case]
    write_checkpoint(tmp_path, CONFIG)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(kind, match=f"(?s){message}") as caught:
        load(tmp_path)
    assert isinstance(caught.value, CheckpointError)


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigFieldError, match=r"has no config\.json"):
        load(tmp_path)


def test_a_header_of_odd_length_is_still_read(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, CONFIG)
    want = logits(load(directory))
    header, data = _header(directory)
    encoded = json.dumps(header).encode()
    _rewrite(directory, encoded + b" " * (3 - len(encoded) % 2), data)
    raw = (directory / SINGLE).read_bytes()
    assert int.from_bytes(raw[:8], "little") % 2 == 1
    assert torch.equal(logits(load(directory)), want)


def test_fusing_what_cannot_be_fused_is_refused(tmp_path: Path) -> None:
    class Tiled(DenseLinear):
        """Stands for a product of another kind."""

    directory = write_checkpoint(tmp_path, CONFIG)
    tiled = load(directory, LoadOptions(dense=DenseFormat(Tiled)))
    assert isinstance(tiled.head, Tiled)
    made = DenseFormat(lambda weight, bias: lambda x: x @ weight.T)
    assert load(directory, LoadOptions(dense=made)).geometry == tiled.geometry
    with pytest.raises(UsageError, match="cannot be fused"):
        load(directory, LoadOptions(dense=made, is_fused=True))
