"""What every command prints the same way: the closing JSON line, and comma-separated options."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from aerie.errors import UsageError

# Width of a table that is not printed on a terminal.
PIPED_WIDTH = 140


def console() -> Console:
    """Human output: standard output, plain text when piped."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def progress_console() -> Console:
    """Progress goes to standard error, so piped output stays clean."""
    return Console(stderr=True, highlight=False)


def read_text(path: Path) -> str:
    """A text file, or one line that says why it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from error


def finish(payload: dict[str, Any], as_json: bool) -> None:
    """Print the closing JSON line if asked, and exit 1 if the payload is not ok."""
    if as_json:
        print(json.dumps(payload))
    if not payload["ok"]:
        raise typer.Exit(1)


def integers(text: str, option: str, least: int = 1) -> list[int]:
    """Parse `1,8,32`; a wrong entry says which option and what was expected."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes integers such as 1,8,32, got {text!r}") from None
    wrong = [value for value in values if not least <= value < 1 << 31]
    if wrong:
        raise typer.BadParameter(f"{option} takes integers from {least} up, got {wrong[0]}")
    return values
