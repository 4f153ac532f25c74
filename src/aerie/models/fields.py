"""Fields: a JSON object read strictly, every problem collected into one error."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from aerie.errors import ConfigFieldError
from aerie.models.foreign import explain_directory
from aerie.models.strict_json import is_there, read_object

T = TypeVar("T")

MAX_CONFIG_BYTES = 16 * 1024 * 1024  # the largest public config is far below one of these
MAX_SIZE = 1 << 24  # no width, count or vocabulary of a real model comes near
MAX_LISTED = 40  # entries of an error's list
MAX_NAME, MAX_LIST = 200, 4096  # characters of a name, entries of a list
# Far beyond any base, factor or epsilon, and far enough from float32's ends to compute with.
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e30


class Fields:
    """Typed access to one JSON object. A null is an absent field, as it is in public configs.

    A reader that finds a problem notes it and returns a harmless value, so that one pass names
    every bad field; nothing read counts until `finish` has returned.
    """

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self.values = values
        self.source = source
        self.problems: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self.values.get(name) is not None

    def note(self, name: str, message: str) -> None:
        """Record a problem with a field."""
        self.problems.append(f"{name}: {message}")

    def integer(
        self, name: str, default: int | None = None, low: int = 1, high: int = MAX_SIZE
    ) -> int:
        """A whole number in [low, high]; required when there is no default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            return self._reject(name, value, "a whole number", low)
        if not low <= value <= high:
            self.note(name, f"{value} is outside {low}..{high}")
            return low
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number greater than 0 that float32 can compute with; required without a default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._reject(name, value, "a number", 1.0)
        if not MIN_NUMBER <= value <= MAX_NUMBER:
            self.note(name, f"{value} is outside {MIN_NUMBER:g}..{MAX_NUMBER:g}")
            return 1.0
        return float(value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """True or false; required when there is no default."""
        value = self._present(name, default)
        return value if isinstance(value, bool) else self._reject(name, value, "a boolean", False)

    def text(self, name: str, default: str | None = None) -> str:
        """A name; required when there is no default."""
        value = self._present(name, default)
        wanted = f"a string of at most {MAX_NAME} characters"
        return str(value) if _is_name(value) else self._reject(name, value, wanted, "")

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of names; required."""
        return self._list(name, _is_name, "names")

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers from 0 on; required."""
        return self._list(name, _is_ordinal, "whole numbers from 0 on")

    def section(self, name: str) -> Fields:
        """A nested object, empty when absent; its problems are reported with this object's."""
        value = self._present(name, {})
        if not isinstance(value, dict):
            value = self._reject(name, value, "an object", {})
        nested = Fields(value, f"{self.source}: {name}")
        nested.problems = self.problems
        return nested

    def finish(self) -> None:
        """Raise one error that names every problem found so far."""
        if self.problems:
            listed = "\n  ".join(shortened(self.problems))
            raise ConfigFieldError(f"{self.source} cannot be used as it is:\n  {listed}")

    def _list(self, name: str, is_entry: Callable[[object], bool], wanted: str) -> tuple[T, ...]:
        value = self._present(name, None)
        if isinstance(value, list) and len(value) <= MAX_LIST and all(map(is_entry, value)):
            return tuple(value)
        return self._reject(name, value, f"a list of at most {MAX_LIST} {wanted}", ())

    def _present(self, name: str, default: object) -> object:
        return self.values[name] if self.has(name) else default

    def _reject(self, name: str, value: object, wanted: str, stand_in: T) -> T:
        found = "missing, must be" if value is None else f"{shown(value)} is not"
        self.note(name, f"{found} {wanted}")
        return stand_in


def read_config(directory: Path) -> Fields:
    """Read the config.json of a model directory, or say what the directory is instead."""
    path = directory / "config.json"
    if not is_there(path, ConfigFieldError):
        needed = "a model directory needs config.json, its weights as safetensors, tokenizer.json"
        told = explain_directory(directory) or needed
        raise ConfigFieldError(f"{directory} has no config.json; {told}")
    return read_fields(path)


def read_fields(path: Path) -> Fields:
    """Read a JSON object from a file, or say why it is not one."""
    if not is_there(path, ConfigFieldError):
        raise ConfigFieldError(f"{path} does not exist")
    return Fields(read_object(path, MAX_CONFIG_BYTES, ConfigFieldError), str(path))


def shortened(entries: Iterable[str]) -> list[str]:
    """Entries of an error's list, each once and sorted; beyond the first ones they are counted."""
    listed = sorted(set(entries))
    more = len(listed) - MAX_LISTED
    return listed if more <= 0 else [*listed[:MAX_LISTED], f"and {more} more"]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME


def _is_ordinal(value: object) -> bool:
    return type(value) is int and value >= 0


class _Short(reprlib.Repr):
    """Python's own shortening, with room for a name."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60


def shown(value: object) -> str:
    """A value for a message: short, however long or deeply nested it is."""
    return _Short().repr(value)
