"""`aerie bench`: measurements with their ceilings."""

from __future__ import annotations

from typing import Annotated

import typer

from aerie.cli.output import console, finish, integers, progress_console

app = typer.Typer(help="Measure, with the ceiling beside every number.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure, with the ceiling beside every number."""


@app.command("kernels")
def kernels(
    backend: Annotated[str, typer.Option(help="Backends, comma separated.")] = "reference,pytorch",
    batch: Annotated[str, typer.Option(help="Batch sizes, comma separated.")] = "1,8,32",
    verify: Annotated[str, typer.Option(help="Rows per request, comma separated.")] = "8,32,64",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    repeats: Annotated[int, typer.Option(min=3, help="Timed calls per point.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Time every tree kernel: median, bytes, achieved bandwidth, ratio to the copy ceiling.

    Each kernel moves few bytes, so the ratio says how far a call is from being free: the distance
    is launch and Python overhead, not bandwidth. The last line of output is JSON.
    """
    from rich.progress import Progress

    from aerie.bench.kernels import Point, measure_all

    names = backend.split(",")
    points = [
        Point(name, size, rows)
        for name in names
        for size in integers(batch, "--batch")
        for rows in integers(verify, "--verify")
    ]
    with Progress(console=progress_console(), transient=True) as progress:
        task = progress.add_task("bench kernels", total=len(points))
        result = measure_all(points, device, repeats, lambda: progress.advance(task))
    if not as_json:
        out = console()
        out.print(
            f"ceiling: {result.ceiling_gbps:.1f} GB/s, a large copy on {device}"
            " (bytes read and written)"
        )
        out.print(result.table())
    finish(result.payload(), as_json=True)
