"""The container of a dump: one safetensors file, the same bytes for the same values.

The safetensors library orders metadata as its hash map does; a dump is written here, byte for byte,
so that two captures of one call are equal files. Reading checks everything before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.errors import DumpError

Array = NDArray[Any]

# The C++ reader (kernels/hls/tb/dump_*.hpp) has the same limits.
HEADER_LIMIT = 1 << 20  # bytes
NUMBER_LIMIT = 1 << 48
ARRAYS_LIMIT, AXES_LIMIT, METADATA_LIMIT, NAME_LIMIT = 64, 4, 16, 63
ALIGNMENT = 8  # of the data; every array is aligned for its elements

# NumPy has no bfloat16: its 16-bit patterns travel as uint16.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}


@dataclass(frozen=True, eq=False)
class Stored:
    """An array with the dtype its file names."""

    dtype: str
    values: Array


@dataclass(frozen=True, eq=False)
class Container:
    """What a file holds: string metadata and named arrays."""

    metadata: Mapping[str, str]
    arrays: Mapping[str, Stored]


def stored(values: Array, is_bfloat16: bool = False) -> Stored:
    """An array under its own dtype, or 16-bit patterns under the name of bfloat16."""
    name = "BF16" if is_bfloat16 and values.dtype == np.uint16 else _NAMES.get(values.dtype)
    if name is None:
        raise DumpError(f"arrays of {values.dtype} have no place in a dump")
    return Stored(name, values)


def encode(container: Container) -> bytes:
    """The bytes of a file: widest elements first, then by name, so that everything is aligned."""
    arrays = container.arrays
    order = sorted(arrays, key=lambda name: (-arrays[name].values.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(container.metadata.items()))}
    position = 0
    for name in order:
        values = arrays[name].values
        header[name] = {
            "dtype": arrays[name].dtype,
            "shape": list(values.shape),
            "data_offsets": [position, position + values.nbytes],
        }
        position += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > HEADER_LIMIT:
        raise DumpError(f"a header of {len(text)} bytes, limit {HEADER_LIMIT}")
    data = b"".join(np.ascontiguousarray(arrays[name].values).tobytes() for name in order)
    return len(text).to_bytes(8, "little") + text + data


def decode(data: bytes, where: str) -> Container:
    """Read a file's bytes; any departure from the format is a DumpError that names `where`."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(HEADER_LIMIT, len(data) - 8):
        raise DumpError(f"{where}: no header in {len(data)} bytes; is it a safetensors file?")
    header = _parse(data[8 : 8 + length], where)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise DumpError(f"{where}: __metadata__ is not a map of strings")
    _check_names(metadata, header, where)
    if length % ALIGNMENT:
        raise DumpError(f"{where}: a header of {length} bytes, no multiple of {ALIGNMENT}")
    body = data[8 + length :]
    arrays: dict[str, Stored] = {}
    ends = []
    for name, entry in header.items():
        dtype, shape, start, end = _entry(name, entry, len(body), where)
        flat = np.frombuffer(body[start:end], DTYPES[dtype])
        if dtype == "BOOL" and end > start and max(body[start:end]) > 1:
            raise DumpError(f"{where}: {name} holds a truth value that is neither 0 nor 1")
        arrays[name] = Stored(dtype, flat.reshape(shape).copy())
        ends.append((start, end, name))
    _check_cover(sorted(ends), len(body), where)
    return Container(metadata, arrays)


def _parse(text: bytes, where: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise DumpError(f"{where}: the header names something twice")
        return made

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        ascii_text = text.decode("ascii")
        header = json.loads(ascii_text, object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{where}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise DumpError(f"{where}: the header is not a JSON object")
    return header


def _check_names(metadata: dict[str, str], arrays: dict[str, Any], where: str) -> None:
    if len(arrays) > ARRAYS_LIMIT or len(metadata) > METADATA_LIMIT:
        raise DumpError(
            f"{where}: {len(arrays)} arrays and {len(metadata)} metadata,"
            f" limits {ARRAYS_LIMIT} and {METADATA_LIMIT}"
        )
    for name in (*metadata, *arrays):
        if len(name) > NAME_LIMIT:
            raise DumpError(f"{where}: a name of {len(name)} characters, limit {NAME_LIMIT}")
    for text in (*metadata, *arrays, *metadata.values()):
        if not text.isascii() or "\0" in text:
            raise DumpError(f"{where}: {text!r} is not plain ASCII")


def _entry(name: str, entry: Any, n_bytes: int, where: str) -> tuple[str, list[int], int, int]:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]}:
            pass
        case _:
            raise DumpError(f"{where}: {name} has no dtype, shape and data_offsets")
    if dtype not in DTYPES or len(entry) != 3:
        raise DumpError(f"{where}: {name} has the unknown dtype {dtype}, or an unknown field")
    numbers = [*shape, start, end]
    # type, not isinstance: a truth value is an int too, and no size.
    is_possible = all(type(number) is int and 0 <= number < NUMBER_LIMIT for number in numbers)
    # Empty axes do not excuse the others: NumPy refuses such shapes too.
    if not is_possible or math.prod(size for size in shape if size) >= NUMBER_LIMIT:
        raise DumpError(f"{where}: {name} has an impossible shape or offset: {numbers}")
    if len(shape) > AXES_LIMIT:
        raise DumpError(f"{where}: {name} has {len(shape)} axes, limit {AXES_LIMIT}")
    wanted = math.prod(shape) * DTYPES[dtype].itemsize
    if end > n_bytes or end - start != wanted:
        raise DumpError(
            f"{where}: {name} {shape} in {dtype} needs {wanted} bytes, its span is"
            f" {start}..{end} of {n_bytes}"
        )
    if start % DTYPES[dtype].itemsize:
        raise DumpError(f"{where}: {name} begins at byte {start}, not aligned for {dtype}")
    return dtype, shape, start, end


def _check_cover(spans: list[tuple[int, int, str]], size: int, where: str) -> None:
    """Arrays follow each other without gap or overlap, up to the end of the file."""
    position = 0
    for start, end, name in spans:
        if start != position:
            raise DumpError(f"{where}: {name} starts at byte {start}, expected {position}")
        position = end
    if position != size:
        raise DumpError(f"{where}: {size} bytes of data, the header describes {position}")
