"""Resolved: a value that was chosen, with where it came from and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

# Where a value comes from, strongest first.
OPTION, CONFIG, FILE, TARGET, DEFAULT = "option", "config", "file", "target", "default"


@dataclass(frozen=True)
class Resolved(Generic[T_co]):
    """One line of `aerie doctor`; no reader may use the value without being able to print why."""

    name: str
    value: T_co
    origin: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value} ({self.origin}: {self.reason})"
