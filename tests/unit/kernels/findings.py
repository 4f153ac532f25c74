"""Many cases in one test: all of them are tried, and every one that fails is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import pytest


class Findings:
    """`with Findings() as found:` fails at its end if any `with found.case(name):` inside did."""

    def __init__(self) -> None:
        self._failed: list[str] = []

    def __enter__(self) -> Findings:
        return self

    @contextmanager
    def case(self, name: object) -> Iterator[None]:
        """One case; what goes wrong in it is kept for the end."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self._failed.append(f"{name}: {type(error).__name__}: {error}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._failed and error is None:
            pytest.fail("\n".join(self._failed), pytrace=False)
