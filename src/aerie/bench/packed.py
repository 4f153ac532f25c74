"""Files of rows, packed where their name says so."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import TextIO, cast

SUFFIX = ".xz"  # many rows say nearly the same: packed they are twenty times smaller


def open_rows(path: Path, mode: str) -> TextIO:
    """A file of rows as text; what is appended to a packed one is packed by itself."""
    if path.suffix == SUFFIX:
        return cast(TextIO, lzma.open(path, mode, encoding="utf-8", newline=""))
    return cast(TextIO, path.open(mode, encoding="utf-8", newline=""))
