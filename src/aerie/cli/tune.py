"""`aerie tune`: measure once what later runs plan from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aerie.cli.output import console, finish, integers, progress_console

app = typer.Typer(help="Measure once what later runs plan from.", no_args_is_help=True)


@app.callback()
def _tune() -> None:
    """Measure once what later runs plan from."""


@app.command("costs")
def costs(
    out: Annotated[str, typer.Option(help="File to write.")] = "costs.json",
    model: Annotated[str | None, typer.Option(help="Directory or hub id.")] = None,
    draft: Annotated[str | None, typer.Option(help="EAGLE-3 head for --model.")] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, comma separated.")] = "1,2,4,8,16,32",
    context: Annotated[str, typer.Option(help="Contexts, comma separated.")] = "256,2048,8192",
    most_rows: Annotated[int, typer.Option(min=2, help="Rows verified, all requests.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds per point; the median counts.")] = 7,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")] = False,
) -> None:
    """Measure what drafting and verifying cost here; the planner reads the file.

    Use it with `Engine.load(planner={"costs": "costs.json"})`. Without a file an engine measures
    a coarse table when it loads.
    """
    import torch

    from aerie.bench.tune_costs import tune_costs
    from aerie.config import ModelConfig
    from aerie.engine.measure import FULL, Grid

    torch.set_num_threads(threads)
    grid = Grid(
        tuple(integers(batch, "--batch")),
        tuple(integers(context, "--context")),
        most_rows,
        repeats,
        FULL.most_tokens,
    )
    screen = progress_console()
    table = tune_costs(
        model, draft, ModelConfig(model, draft, device), grid, lambda text: screen.print(text)
    )
    table.save(Path(out))
    n_samples = len(table.verify.samples) + len(table.draft.samples) + len(table.extend.samples)
    if not as_json:
        console().print(f"wrote {out}: {n_samples} samples")
    finish({"ok": True, "file": out, "samples": n_samples}, as_json)


@app.command("gemm")
def gemm(
    out: Annotated[str, typer.Option(help="Table to write.")] = "gemm.json",
    shapes: Annotated[
        str | None, typer.Option(help="JSON list of n_out, n_in, rows; default: an 8B decoder's.")
    ] = None,
    rows: Annotated[str, typer.Option(help="Numbers of rows.")] = "1,2,4,8,16,32,64,128",
    seconds: Annotated[float, typer.Option(min=1, help="Time for measuring.")] = 60.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that compile.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")] = False,
) -> None:
    """Choose the product of every linear layer of few rows: cuBLAS or a Triton plan, on this GPU.

    Each candidate is timed inside CUDA graphs over weights that overflow the cache. `--shapes`
    takes what a run has seen: `TunedLinears.usage.shapes()`.
    """
    from aerie.bench.gemm import tune_to_file

    screen = progress_console()
    found = tune_to_file(
        Path(out),
        Path(shapes) if shapes else None,
        integers(rows, "--rows"),
        seconds,
        workers,
        screen.print,
    )
    if not as_json:
        console().print(f"wrote {out}: {found} shapes")
    finish({"ok": found > 0, "file": out, "entries": found}, as_json)
