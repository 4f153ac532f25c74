"""Values as people write them: numbers of Python, NumPy and torch are taken, the rest refused."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from aerie.errors import UnknownNameError, UsageError

Reader = Callable[[str, Any], Any]


def require(condition: bool, message: str) -> None:
    """Raise UsageError unless a configured value is possible."""
    if not condition:
        raise UsageError(message)


def choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raise unless a value is one of the known ones."""
    if value not in known:
        raise UnknownNameError(name, value, known)


def read_integer(name: str, value: Any) -> int:
    """An integer of any library; floats and booleans are refused, they are usually mistakes."""
    if not _is_boolean(value):
        try:
            return operator.index(value)
        except (TypeError, RuntimeError):  # RuntimeError: a tensor of several elements
            pass
    raise UsageError(f"{name} is {_shown(value)}, must be an integer")


def read_number(name: str, value: Any) -> float:
    """An integer or a float of any library, as a float."""
    is_number = hasattr(value, "__float__") or hasattr(value, "__index__")
    if is_number and not _is_boolean(value):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
    raise UsageError(f"{name} is {_shown(value)}, must be a number")


def _read_flag(name: str, value: Any) -> bool:
    """True or False; a number or a word is refused."""
    if not _is_boolean(value):
        raise UsageError(f"{name} is {_shown(value)}, must be True or False")
    return bool(value)


def read_text(name: str, value: Any) -> str:
    """A string or a path; what prints as a name (torch.float32, torch.device) is taken by it."""
    if type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise UsageError(f"{name} is {_shown(value)}, must be a string")
    return value


def read_integers(name: str, value: Any) -> tuple[int, ...]:
    """Integers in any order-keeping container, or an array of them."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise UsageError(f"{name} is {_shown(value)}, must be a list of integers")
    listed = tuple(value)
    if all(type(entry) is int for entry in listed):  # a prompt has thousands
        return listed
    return tuple(read_integer(f"an entry of {name}", entry) for entry in listed)


def optional(read: Reader) -> Reader:
    """The same, where None says that nothing was given."""
    return lambda name, value: None if value is None else read(name, value)


# By annotation: what a field of a slice may be given as.
READERS: Mapping[str, Reader] = {
    "int": read_integer,
    "float": read_number,
    "bool": _read_flag,
    "str": read_text,
    "tuple[int, ...]": read_integers,
    "int | None": optional(read_integer),
    "float | None": optional(read_number),
    "str | None": optional(read_text),
    "tuple[int, ...] | None": optional(read_integers),
}


def read_fields(slice_: Any) -> None:
    """Check every field of a frozen slice by its annotation and keep it as Python's own type."""
    for entry in fields(slice_):
        read = READERS.get(str(entry.type))
        if read is not None:
            value = read(entry.name, getattr(slice_, entry.name))
            object.__setattr__(slice_, entry.name, value)


def _is_boolean(value: Any) -> bool:
    """Python's and NumPy's booleans, and a tensor that holds one."""
    is_array = hasattr(value, "dtype") and str(value.dtype).removeprefix("torch.") == "bool"
    return isinstance(value, bool) or is_array


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
