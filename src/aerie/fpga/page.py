"""Pages of the hardware design: a head of `pages/`, lines of tables, and where they are from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_PAGES = Path(__file__).parent / "pages"


def head_of(name: str) -> str:
    """What stands above the figures."""
    return (_PAGES / f"{name}.md").read_text("utf-8")


def written(name: str, lines: Iterable[str], record: Mapping[str, Any], tail: str = "") -> str:
    """A page whose last table begins in its head; the record says its commit and its tools."""
    origin, tools = record["provenance"], record.get("tools", {})
    said = "; " * bool(tools) + ", ".join(f"{tool} {version}" for tool, version in tools.items())
    end = f"\n\nCommit `{origin['commit']}`, {origin['date']}{said}.\n"
    return head_of(name) + "\n".join(lines) + tail + end
