"""What every command prints the same way: the closing JSON line, and comma-separated options."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer
from rich.console import Console

# Width of a table that is not printed on a terminal.
PIPED_WIDTH = 140


def console() -> Console:
    """Human output: standard output, plain text when piped."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def progress_console() -> Console:
    """Progress goes to standard error, so piped output stays clean."""
    return Console(stderr=True, highlight=False)


def finish(payload: dict[str, Any], as_json: bool) -> None:
    """Print the closing JSON line if asked, and exit 1 if the payload is not ok."""
    if as_json:
        print(json.dumps(payload))
    if not payload["ok"]:
        raise typer.Exit(1)


def integers(text: str, option: str) -> list[int]:
    """Parse `1,8,32`; a wrong entry says which option and what was expected."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes integers such as 1,8,32, got {text!r}") from None
    if any(value < 1 for value in values):
        raise typer.BadParameter(f"{option} takes positive integers, got {text!r}")
    return values
