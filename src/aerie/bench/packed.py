"""Files of rows: short, and packed where their name says so."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO, cast

SUFFIX = ".xz"  # many rows say nearly the same: packed they are twenty times smaller


def open_rows(path: Path, mode: str) -> TextIO:
    """A file of rows as text; what is appended to a packed one is packed by itself."""
    if path.suffix == SUFFIX:
        return cast(TextIO, lzma.open(path, mode, encoding="utf-8", newline=""))
    return cast(TextIO, path.open(mode, encoding="utf-8", newline=""))


def as_lines(values: Mapping[str, Any]) -> str:
    """JSON with a line for each row, not for each value: a third less of it."""
    return json.dumps(values, separators=(",", ":")).replace("},{", "},\n{") + "\n"
