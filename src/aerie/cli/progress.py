"""Progress on standard error: a bar on a terminal, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from aerie.cli.output import progress_console

# Told what is under way, and how much of all of it is done.
Report = Callable[[str, int, int], None]
SILENT, MEASURING, RECORDING = "loading", "measuring costs", "recording"


def first_line() -> Report:
    """Weights are loaded in silence; what takes longer is said once."""
    said: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        is_phase, name = _is_phase(what), what if _is_phase(what) else MEASURING
        if not what.startswith(SILENT) and total and name not in said:
            said.add(name)
            words = f"{name}: {total}" if is_phase else f"{name}, once for this machine and model"
            with suppress(OSError):  # a full disk is no reason not to load
                progress_console().print(words, markup=False)

    return report


def every_line() -> Report:
    """A line for every point that is measured."""

    def report(what: str, done: int, total: int) -> None:
        if not _is_phase(what):
            progress_console().print(f"{done}/{total} {what}", markup=False)

    return report


@contextmanager
def shown(in_lines: Callable[[], Report] = first_line) -> Iterator[Report]:
    """A report for `Engine.load` and for measurements."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if not sys.stderr.isatty():
        yield in_lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console(), transient=True) as bar:
        task = bar.add_task("loading", total=None)

        def report(what: str, done: int, total: int) -> None:
            name = what if _is_phase(what) else f"{MEASURING}: {what}"
            bar.update(task, description=name, completed=done, total=total)

        yield report


def _is_phase(what: str) -> bool:
    """A phase of loading; anything else is a point that is measured."""
    return what.startswith((SILENT, RECORDING))
