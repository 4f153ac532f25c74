"""Fields: a JSON object read strictly, every problem collected into one error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from aerie.errors import ConfigFieldError

T = TypeVar("T")

MAX_CONFIG_BYTES = 16 * 1024 * 1024  # the largest public config is far below one of these
MAX_SIZE = 1 << 24  # no width, count or vocabulary of a real model comes near


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

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        """A finite number greater than `above`; required when there is no default."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._reject(name, value, "a number", above + 1.0)
        if not above < value < float("inf"):
            self.note(name, f"{value} must be finite and greater than {above}")
            return above + 1.0
        return float(value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """True or false; required when there is no default."""
        value = self._present(name, default)
        return value if isinstance(value, bool) else self._reject(name, value, "a boolean", False)

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required when there is no default."""
        value = self._present(name, default)
        return value if isinstance(value, str) else self._reject(name, value, "a string", "")

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; required."""
        value = self._present(name, None)
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        return self._reject(name, value, "a list of strings", ())

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
            listed = "\n  ".join(sorted(set(self.problems)))
            raise ConfigFieldError(f"{self.source} cannot be used as it is:\n  {listed}")

    def _present(self, name: str, default: object) -> object:
        return self.values[name] if self.has(name) else default

    def _reject(self, name: str, value: object, wanted: str, stand_in: T) -> T:
        what = "missing" if value is None else f"{value!r:.60} is not"
        self.note(name, f"{what}, must be {wanted}" if value is None else f"{what} {wanted}")
        return stand_in


def read_fields(path: Path) -> Fields:
    """Read a JSON object from a file, or say why it is not one."""
    if not path.is_file():
        raise ConfigFieldError(
            f"{path.parent} has no {path.name}; a model directory needs config.json, its weights "
            "as safetensors, and tokenizer.json"
        )
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConfigFieldError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes: not a config")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigFieldError(f"{path} is not JSON: {error}; download it again") from error
    if not isinstance(values, dict):
        raise ConfigFieldError(f"{path} holds a {type(values).__name__}, must be a JSON object")
    return Fields(values, str(path))
