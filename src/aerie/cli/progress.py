"""Progress on standard error: a bar on a terminal, else a line where something takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aerie.cli.output import progress_console

# Told what is under way, and how much of all of it is done.
Report = Callable[[str, int, int], None]


@contextmanager
def shown(title: str = "measuring costs") -> Iterator[Report]:
    """A report for `Engine.load` and for measurements; what is not weights is measured."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if not sys.stderr.isatty():
        yield _in_lines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console(), transient=True) as bar:
        task = bar.add_task("loading", total=None)

        def report(what: str, done: int, total: int) -> None:
            name = what if what.startswith("loading") else f"{title}: {what}"
            bar.update(task, description=name, completed=done, total=total)

        yield report


def _in_lines(title: str) -> Report:
    """Weights are read in silence; a measurement says that it begins."""
    said: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        if not what.startswith("loading") and title not in said:
            said.add(title)
            progress_console().print(f"{title}, once for this machine and model", markup=False)

    return report
