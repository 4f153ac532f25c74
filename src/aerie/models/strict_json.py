"""Strict JSON: the objects in a model directory, read within bounds; what is wrong has a name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from aerie.errors import CheckpointError

MAX_DIGITS = 64  # of a whole number; public files write 10**30 for "no limit", and nothing longer

MAX_KEY = 500  # characters of a name; tensors' are the longest, and below 200

Refusal = type[CheckpointError]


def read_object(path: Path, max_bytes: int, refusal: Refusal) -> dict[str, object]:
    """The JSON object a file holds; anything else raises `refusal`."""
    with reading(path, refusal), path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise refusal(f"{path} is larger than {max_bytes} bytes: not what its name says")
    return parse_object(raw, str(path), refusal)


def parse_object(raw: bytes, source: str, refusal: Refusal) -> dict[str, object]:
    """The JSON object in some bytes; repeated keys, NaN and endless nesting raise `refusal`."""
    try:
        values = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_integer,
        )
    except RecursionError as error:
        raise refusal(f"{source} is nested too deeply to be read; download it again") from error
    except ValueError as error:  # also what JSON's and UTF-8's own errors are
        raise refusal(f"{source} is not JSON: {error}; download it again") from error
    if not isinstance(values, dict):
        raise refusal(f"{source} holds a {type(values).__name__}, not a JSON object")
    return values


def is_there(path: Path, refusal: Refusal) -> bool:
    """Whether there is such a file; a folder or a device of that name raises `refusal`."""
    with reading(path, refusal):
        if path.exists() and not path.is_file():
            raise refusal(f"{path} is a folder or a device, must be a file")
        return path.is_file()


@contextmanager
def reading(path: Path, refusal: Refusal) -> Iterator[None]:
    """Name the file, and what to do, when the system refuses to read it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise refusal(
            f"{path} cannot be read: {why}; check its permissions and the disk"
        ) from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        [(repeated, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated!r:.60} stands twice in one object")
    for name in made:
        # Names go into messages: a lone surrogate cannot be printed, an escape must not be.
        if not name.isprintable() or len(name) > MAX_KEY:
            raise ValueError(f"the key {name!r:.60} is not printable text of {MAX_KEY} characters")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits, limit {MAX_DIGITS}")
    return int(digits)
