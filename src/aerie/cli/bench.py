"""`aerie bench`: measurements with their ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aerie.cli.bench_peer import peer
from aerie.cli.checks import amount, count, found_device, in_file, out_folder
from aerie.cli.output import console, finish, integers, progress_console

if TYPE_CHECKING:
    from aerie.bench.round.setup import RoundSetup

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
    repeats: Annotated[int, count(3, "Timed calls per point.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Time every tree kernel: median, bytes, achieved bandwidth, ratio to the copy ceiling.

    Each kernel moves few bytes, so the ratio says how far a call is from being free: the distance
    is launch and Python overhead, not bandwidth. The last line of output is JSON.
    """
    from rich.progress import Progress

    from aerie.bench.kernels.times import Point, measure_all, table_of
    from aerie.kernels import load

    device = found_device(device)
    names = backend.split(",")
    for name in names:
        load(name, device)
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
            f"ceiling: {result['ceiling_gbps']:.1f} GB/s, a large copy on {device}"
            " (bytes read and written)"
        )
        out.print(table_of(result))
    finish(result, as_json=True)


@app.command("engine")
def engine(
    batch: Annotated[str, typer.Option(help="Batch sizes, comma separated.")] = "1,4,8,16",
    context: Annotated[str, typer.Option(help="Prompt tokens, comma separated.")] = "512,8192",
    tokens: Annotated[int, count(16, "New tokens a run, all requests.")] = 256,
    repeats: Annotated[int, count(1, "Interleaved runs per policy.")] = 9,
    costs: Annotated[str | None, typer.Option(help="A file of aerie tune costs.")] = None,
    transformers: Annotated[bool, typer.Option(help="Compare plain decoding with it.")] = True,
    threads: Annotated[int, count(1, "CPU threads.")] = 1,
    out: Annotated[Path | None, out_folder(help="Folder for CSV, PNG and JSON.")] = None,
    name: Annotated[str, typer.Option(help="Name of those files.")] = "engine_bench_cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Compare the planner with plain decoding, chains, dynamic trees, CAST and the oracle.

    All policies take turns on the same prompts of the built-in pair; ratios are medians over the
    turns with a 90 % interval. The full run takes half an hour on a quiet core.
    """
    import torch

    from aerie.bench.engine import Terms, run_session
    from aerie.config import PlannerConfig

    torch.set_num_threads(threads)
    terms = Terms(
        batches=tuple(integers(batch, "--batch")),
        contexts=tuple(integers(context, "--context")),
        tokens=tokens,
        repeats=repeats,
    )
    screen = progress_console()
    planner = PlannerConfig(costs)
    session = run_session(terms, planner, transformers, lambda text: screen.print(text))
    if out is not None:
        session.write(out, name)
    if not as_json:
        console().print(session.table())
    finish(session.record, as_json=True)


@app.command("round")
def round_(
    stage: Annotated[str, typer.Option(help="Stages, comma separated.")] = "speed",
    out: Annotated[Path, out_folder(help="Folder of the reports.")] = Path("reports"),
    geometry: Annotated[str, typer.Option(help="Inflate to this; none: as shipped.")] = (
        "llama-3.1-8b"
    ),
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    device: Annotated[str, typer.Option(help="cuda, or cpu for a rehearsal.")] = "cuda",
    backend: Annotated[str, typer.Option(help="Kernel backend.")] = "triton",
    context: Annotated[int, count(16, "Prompt tokens; 64 times in stress.")] = 1024,
    draft_products: Annotated[
        str, typer.Option(help="How the draft head multiplies: dense, fp8 or auto.")
    ] = "auto",
    rounds: Annotated[int, count(4, "Timed rounds.")] = 48,
    prompts: Annotated[int, count(1, "Prompts of the lossless stage.")] = 64,
    costs: Annotated[
        str | None, typer.Option(help="Table of aerie tune costs; default: a shipped one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Time captured rounds of the inflated pair, and check that their tokens are plain ones.

    Plain decoding is held against the bytes it must move and a large copy; a speculative round
    against a plain step of the same engine. Stages: speed; lossless, sampled, sizes and near_ties
    (tokens against plain decoding); stress. The last line of output is JSON.
    """
    from aerie.bench.round.stages import STAGES, RoundBench
    from aerie.errors import UnknownNameError

    stages = stage.split(",")
    for name in stages:
        if name not in STAGES:
            raise UnknownNameError("stage", name, STAGES)
    setup = round_setup(device, dtype, geometry, backend, costs, draft_products)
    bench = RoundBench(setup, out, context, rounds, prompts)
    records = {name: bench.run(name) for name in stages}
    finish({"ok": all(r["ok"] for r in records.values()), **records}, as_json=True)


def round_setup(
    device: str,
    dtype: str,
    geometry: str,
    backend: str,
    costs: str | None = None,
    draft_products: str = "auto",
) -> RoundSetup:
    """What rounds are measured on; what is wrong with it is said before anything is loaded."""
    from aerie.bench.round.setup import RoundSetup
    from aerie.costs.table import load_costs
    from aerie.kernels.registry import backend_info
    from aerie.models.inflate.geometry import find_geometry

    inflated = None if geometry == "none" else geometry
    found = found_device(device)
    setup = RoundSetup(found, dtype, inflated, backend, costs=costs, draft_products=draft_products)
    assert setup.model, "names of dtypes are checked by the configuration"
    backend_info(backend)
    if inflated is not None:
        find_geometry(inflated)
    if costs is not None:
        load_costs(Path(costs))
    return setup


@app.command("gpu")
def gpu(
    contract: Annotated[Path, in_file(help="TOML file: what is run, and how.")] = Path(
        "evidence/contracts/h200.toml"
    ),
    points: Annotated[str, typer.Option(help="Scenarios or 4x16384, comma separated.")] = "",
    what: Annotated[
        str,
        typer.Option(help="micro, full, repeats, tail, slots, acceptance, matrix; with commas."),
    ] = "matrix",
    then: Annotated[
        list[Path] | None, in_file(help="Contracts that follow on the same engine.")
    ] = None,
    gates: Annotated[Path, typer.Option(help="Folder of the gates' TOML files.")] = Path(
        "evidence/gates"
    ),
    out: Annotated[Path, out_folder(help="Folder of the reports.")] = Path("reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Run a contract: plain decoding, fixed trees and the planner in turns on one engine.

    Ceilings come first; raw rows are appended as they are measured, and points that are finished
    for the same sources and contract are skipped. The last line of output is JSON.
    """
    from aerie.bench.contract import read_contract
    from aerie.bench.gpu import Asked, run_asked
    from aerie.parity.matrix import sources_hash

    model = read_contract(contract).model
    found_device(model.device)
    backend = model.backend
    chosen = tuple(points.split(",")) if points else ()
    wanted = tuple(name for name in what.split(",") if name)
    kernels = sources_hash(backend)
    asked = Asked(contract, out, kernels, wanted, chosen, tuple(then or ()), gates)
    screen = progress_console() if as_json else console()
    finish(run_asked(asked, lambda text: screen.print(text)), as_json=True)


@app.command("serve")
def serve(
    url: Annotated[str, typer.Option(help="A running server.")] = "http://127.0.0.1:8000",
    clients: Annotated[str, typer.Option(help="At a time, comma separated.")] = "1,4,16",
    turns: Annotated[int, count(3, "Interleaved turns.")] = 7,
    tokens: Annotated[int, count(8, "New tokens a request.")] = 128,
    wait: Annotated[float, amount(0, "Seconds until it must be ready.")] = 0.0,
    out: Annotated[Path | None, out_folder(help="Folder of the reports.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Say what HTTP costs: the same completions over a server and straight from an engine.

    The built-in pair on a CPU, the same chain on both sides, in turns; the engine is the ceiling.
    `scripts/bench_server.sh` starts the server, too. The last line of output is JSON.
    """
    from rich.progress import Progress

    from aerie.bench.record import write_json
    from aerie.bench.serve.load import (
        REPORT,
        SERVER_OPTIONS,
        Load,
        measure,
        table_of,
        wait_until_ready,
    )

    load = Load(url, tuple(integers(clients, "--clients")), turns, tokens)
    wait_until_ready(url, wait, f"start it with: aerie serve {SERVER_OPTIONS}")
    with Progress(console=progress_console(), transient=True) as progress:
        # Three ways to ask, in every turn and in the one that warms up.
        task = progress.add_task("bench serve", total=3 * (turns + 1) * len(load.clients))
        found = measure(load, lambda: progress.advance(task))
    if out is not None:
        write_json(out / REPORT, found)
    if not as_json:
        console().print(table_of(found))
    finish(found, as_json=True)


app.command("peer")(peer)
