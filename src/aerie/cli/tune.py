"""`aerie tune`: measure once what later runs plan from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aerie.cli.checks import Json, amount, count, in_file, out_file
from aerie.cli.engine_options import EngineOptions, refuse, takes_engine_options
from aerie.cli.output import console, finish, integers, progress_console
from aerie.cli.progress import every_line, shown

app = typer.Typer(help="Measure once what later runs plan from.", no_args_is_help=True)


@app.callback()
def _tune() -> None:
    """Measure once what later runs plan from."""


@app.command("costs")
@takes_engine_options
def costs(
    options: EngineOptions,
    out: Annotated[Path, out_file(help="File to write.")] = Path("costs.json"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Also where engines look for a table of this pair.")
    ] = False,
    batch: Annotated[
        str | None, typer.Option(help="Batch sizes; default: 1 to 32, on a GPU 1 to 64.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Contexts; default: 256 to 8192, on a GPU 512 to 32768.")
    ] = None,
    most_rows: Annotated[
        int | None, count(2, "Rows verified, all requests; default: 256, on a GPU 512.")
    ] = None,
    repeats: Annotated[int, count(1, "Rounds per point; the median counts.")] = 7,
    geometry: Annotated[
        str | None, typer.Option(help="Inflate the built-in pair to this; with engine graphs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what drafting and verifying cost here; the planner reads the file.

    Use it with `--costs costs.json` or `Engine.load(planner={"costs": "costs.json"})`. Without a
    file an engine measures a coarse table when it first loads a pair, and keeps it. With engine
    graphs the rounds are recorded and replayed, and timed where the device runs them.
    """
    from aerie.assemble.costs import identity_of, keep_costs
    from aerie.bench.tune_costs import tune

    refuse("tune costs", options.memory, options.drafts)
    asked = {
        "batches": tuple(integers(batch, "--batch")) if batch else None,
        "contexts": tuple(integers(context, "--context")) if context else None,
        "most_rows": most_rows,
        "repeats": repeats,
    }
    sizes = {name: value for name, value in asked.items() if value is not None}
    config = options.config()
    options.set_threads()
    with shown(every_line) as progress:
        table = tune(config, geometry, sizes, progress, lambda found: found.save(out))
    table.save(out)
    if keep:
        keep_costs(table, identity_of(table))
    n_samples = len(table.verify.samples) + len(table.draft.samples) + len(table.extend.samples)
    busy = table.provenance.get("busy")
    if not as_json:
        console().print(f"wrote {out}: {n_samples} samples")
        if busy:
            console().print(
                f"[yellow]the machine was busy[/]: {busy}; measure again on a quiet one"
            )
    finish({"ok": True, "file": str(out), "samples": n_samples, "busy": busy}, as_json)


@app.command("gemm")
def gemm(
    out: Annotated[Path, out_file(help="Table to write.")] = Path("gemm.json"),
    shapes: Annotated[
        Path | None, in_file(help="JSON list of n_out, n_in, rows; default: an 8B decoder's.")
    ] = None,
    rows: Annotated[str, typer.Option(help="Numbers of rows.")] = "1,2,4,8,16,32,64,128",
    seconds: Annotated[float, amount(1, "Time for measuring.")] = 60.0,
    workers: Annotated[int, count(1, "Processes that compile.")] = 8,
    as_json: Json = False,
) -> None:
    """Choose the product of every linear layer of few rows: cuBLAS or a Triton plan, on this GPU.

    Each candidate is timed inside CUDA graphs over weights that overflow the cache. `--shapes`
    takes what a run has seen: `TunedLinears.usage.shapes()`.
    """
    from aerie.bench.kernels.gemm import tune_to_file

    screen = progress_console()
    found = tune_to_file(
        out,
        shapes,
        integers(rows, "--rows"),
        seconds,
        workers,
        screen.print,
    )
    if not as_json:
        console().print(f"wrote {out}: {found} shapes")
    finish({"ok": found > 0, "file": str(out), "entries": found}, as_json)
