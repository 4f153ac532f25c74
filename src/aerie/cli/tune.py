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
    context: Annotated[
        str | None, typer.Option(help="Contexts; default: 256 to 8192, on a GPU 512 to 32768.")
    ] = None,
    most_rows: Annotated[int, typer.Option(min=2, help="Rows verified, all requests.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds per point; the median counts.")] = 7,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    engine: Annotated[str, typer.Option(help="eager or graphs; auto: by device.")] = "auto",
    geometry: Annotated[
        str | None, typer.Option(help="Inflate the built-in pair to this; with engine graphs.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")] = False,
) -> None:
    """Measure what drafting and verifying cost here; the planner reads the file.

    Use it with `Engine.load(planner={"costs": "costs.json"})`. Without a file an engine measures
    a coarse table when it loads. With engine graphs the rounds are captured and replayed, and
    timed where the device runs them.
    """
    import torch

    from aerie.bench.engine.tune_costs import Asked, tune
    from aerie.config import ModelConfig

    torch.set_num_threads(threads)
    is_captured = engine == "graphs" or (engine == "auto" and device.startswith("cuda"))
    asked = Asked(
        ModelConfig(model, draft, device, dtype),
        "graphs" if is_captured else "eager",
        geometry,
        tuple(integers(batch, "--batch")),
        tuple(integers(context, "--context")) if context else None,
        most_rows,
        repeats,
    )
    screen = progress_console()
    table = tune(asked, lambda text: screen.print(text), lambda found: found.save(Path(out)))
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
    from aerie.bench.kernels.gemm import tune_to_file

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
