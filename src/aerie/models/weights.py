"""Checkpoint files: safetensors mapped into memory, every header checked before any data is read.

This module and the converters behind it are the only place that knows the file format.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from aerie.errors import PickleRefusedError, WeightFileError
from aerie.models.fields import shortened, shown
from aerie.models.foreign import explain_directory
from aerie.models.strict_json import is_there, parse_object, read_object, reading

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.pkl")

MAX_HEADER_BYTES = 100 * 1024 * 1024  # the format's own limit; an index is smaller
MAX_FILE_NAME = 255  # bytes, on every file system
MAX_AXES = 8  # of a tensor; real ones have four at most
MAX_BYTES = 1 << 62  # of a tensor; also what its other axes span where one is 0

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class Entry:
    """A tensor as a header describes it."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int  # first byte in the file
    end: int


class Checkpoint:
    """The tensors of a model directory. Views stay valid while any of them is alive."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = entries
        self._maps: dict[Path, mmap.mmap] = {}

    def view(self, name: str) -> Tensor:
        """The tensor as it lies in the file: a private mapping, nothing is copied."""
        entry = self.entries[name]
        mapped = self._map(entry.path)
        count = math.prod(entry.shape)
        if count == 0:
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        dtype = DTYPES[entry.dtype]
        n_bytes = count * dtype.itemsize
        raw = torch.frombuffer(mapped, dtype=torch.uint8, count=n_bytes, offset=entry.start)
        if entry.start % dtype.itemsize:
            raw = raw.clone()  # a header of odd length: the data must be moved to be read
        return raw.view(dtype).view(entry.shape)

    def release(self, name: str) -> None:
        """Give the tensor's pages back after a copy was made, so that memory holds one of them."""
        entry = self.entries[name]
        first = -(-entry.start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = entry.end // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self._map(entry.path).madvise(mmap.MADV_DONTNEED, first, length)

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            with reading(path, WeightFileError), path.open("rb") as file:
                # A private, writable mapping: torch refuses read-only memory, and a stray write
                # must never reach the file.
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[path]


def open_checkpoint(directory: Path) -> Checkpoint:
    """Find and check the weight files of a directory; one error names all that is wrong."""
    entries: dict[str, Entry] = {}
    problems: list[str] = []
    with reading(directory, WeightFileError):
        files = _files(directory)
    for path, names in sorted(files.items()):
        try:
            held = read_header(path)
        except WeightFileError as error:
            problems.append(str(error))
            continue
        if names is not None:
            problems += [f"{path.name}: {n} is in the index, not here" for n in names - set(held)]
            problems += [f"{path.name}: {n} is here, not in the index" for n in set(held) - names]
        entries |= held
    if problems:
        listed = "\n  ".join(shortened(problems))
        raise WeightFileError(f"weights of {directory} cannot be read:\n  {listed}")
    return Checkpoint(entries)


def read_header(path: Path) -> dict[str, Entry]:
    """A file's tensors, after checking that sizes, offsets and the file's length agree."""
    if not is_there(path, WeightFileError):
        raise WeightFileError(f"{path.name}: not found; download the model again, complete")
    with reading(path, WeightFileError), path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise WeightFileError(f"{path.name}: no safetensors header in {size} bytes")
        raw = file.read(length)
    header = parse_object(raw, f"{path.name}: the header", WeightFileError)
    header.pop("__metadata__", None)
    held = {name: _entry(path, name, item, 8 + length) for name, item in header.items()}
    _check_layout(path, held, 8 + length, size)
    return held


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write one safetensors file; tensors must not share memory."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path, metadata=dict(metadata))


def _entry(path: Path, name: str, item: object, base: int) -> Entry:
    match item:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            pass
        case _:
            raise WeightFileError(f"{path.name}: {name} has no dtype, shape and data_offsets")
    if dtype not in DTYPES:
        raise WeightFileError(
            f"{path.name}: {name} has dtype {shown(dtype)}, which is not supported; known: "
            f"{', '.join(DTYPES)}"
        )
    itemsize = DTYPES[dtype].itemsize
    # In Python a truth value is an int, too.
    if not _is_shape(shape, itemsize) or bool in (type(start), type(end)):
        place = f"{shown(shape)} at {start} to {end}"
        raise WeightFileError(f"{path.name}: {name} has the impossible shape {place}")
    wanted = math.prod(shape) * itemsize
    if end - start != wanted:
        raise WeightFileError(
            f"{path.name}: {name} {shape} in {dtype} needs {wanted} bytes, its span has "
            f"{end - start}"
        )
    return Entry(dtype, tuple(shape), path, base + start, base + end)


def _is_shape(shape: list[object], itemsize: int) -> bool:
    """Whether torch can make such a tensor, as far as its numbers go."""
    sizes = [n for n in shape if type(n) is int and n >= 0]
    if len(sizes) < len(shape) or len(shape) > MAX_AXES:
        return False
    return math.prod(max(n, 1) for n in sizes) * itemsize <= MAX_BYTES


def _check_layout(path: Path, held: Mapping[str, Entry], base: int, size: int) -> None:
    """Tensors follow each other without gap or overlap, up to the end of the file."""
    position = base
    for name, entry in sorted(held.items(), key=lambda pair: (pair[1].start, pair[1].end)):
        if entry.start != position:
            raise WeightFileError(
                f"{path.name}: {name} starts at byte {entry.start}, the one before it ends at "
                f"{position}"
            )
        position = entry.end
    if position != size:
        raise WeightFileError(
            f"{path.name}: the header describes {position} bytes, the file has {size}; "
            "download it again"
        )


def _files(directory: Path) -> dict[Path, set[str] | None]:
    """The weight files, with the tensors the index promises in each (None without an index)."""
    single, index = directory / SINGLE, directory / INDEX
    if single.is_file() and index.is_file():
        raise WeightFileError(f"{directory} has both {SINGLE} and {INDEX}; remove the stale one")
    if single.is_file():
        return {single: None}
    if index.is_file():
        return {**_read_index(index)}
    # Quantisers choose names of their own; a name that is alone of its kind is no guess.
    indexes = sorted(directory.glob("*.safetensors.index.json"))
    files = sorted(directory.glob("*.safetensors"))
    if len(indexes) == 1:
        return {**_read_index(indexes[0])}
    if len(files) == 1 and not indexes:
        return {files[0]: None}
    pickled = sorted(path.name for pattern in PICKLED for path in directory.glob(pattern))
    if pickled:
        raise PickleRefusedError(
            f"{directory} has only pickled weights ({', '.join(pickled[:4])}): loading those runs "
            "whatever code they contain, so aerie does not. Convert them once, in a sandboxed "
            f"process:\n  python -m aerie.models.convert_pickle {directory} {directory}-safetensors"
        )
    told = explain_directory(directory) or "nothing to load"
    raise WeightFileError(f"{directory} has neither {SINGLE} nor {INDEX}; {told}")


def _read_index(index: Path) -> dict[Path, set[str]]:
    files: dict[Path, set[str]] = {}
    for name, shard in read_weight_map(index, ".safetensors").items():
        files.setdefault(index.parent / shard, set()).add(name)
    return files


def read_weight_map(index: Path, suffix: str) -> dict[str, str]:
    """The shard of each tensor, as an index tells it: plain names of files beside the index."""
    weight_map = read_object(index, MAX_HEADER_BYTES, WeightFileError).get("weight_map")
    if not isinstance(weight_map, dict):
        raise WeightFileError(f"{index} is not an index of shards: it has no weight_map")
    for name, shard in weight_map.items():
        # Anything but a plain name reads files it must not.
        is_text = isinstance(shard, str) and shard.isprintable() and len(shard) <= MAX_FILE_NAME
        if not is_text or Path(shard).name != shard or "\\" in shard or not shard.endswith(suffix):
            raise WeightFileError(
                f"{index.name}: shard {shown(shard)} of {name} is not a file name"
            )
    return weight_map
