"""`aerie parity`: a backend against the NumPy definition, on cases, on dumps, as a matrix."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.cli import parity_capture
from aerie.cli.checks import Device, Json, found_device, in_file, out_file
from aerie.cli.output import console, finish, progress_console

if TYPE_CHECKING:
    from aerie.parity import ParityReport
    from aerie.parity.matrix import Column

Backend = Annotated[str, typer.Option(help="Backend to check against the reference.")]
Kernel = Annotated[str | None, typer.Option(help="Only this kernel.")]
Dumps = Annotated[Path, typer.Option(help="Folder of dumps.")]

COMMITTED = Path("reports/p0_parity_matrix")

app = typer.Typer(invoke_without_command=True)
app.command("capture")(parity_capture.capture)
app.command("export")(parity_capture.export)


@app.callback()
def parity(
    context: typer.Context,
    backend: Backend = "pytorch",
    device: Device = "cpu",
    kernel: Kernel = None,
    as_json: Json = False,
) -> None:
    """Run every parity case of every kernel on a backend and compare with the reference."""
    from rich.progress import Progress

    from aerie.errors import UsageError
    from aerie.kernels import load
    from aerie.kernels.cases import all_cases, cases_for
    from aerie.parity import run_parity

    if context.invoked_subcommand is not None:
        if (backend, device, kernel, as_json) != ("pytorch", "cpu", None, False):
            raise UsageError(f"give options after the command: {context.invoked_subcommand} ...")
        return
    device = found_device(device)
    cases = cases_for(kernel) if kernel else all_cases()
    kernels = load(backend, device=device)
    reference = load("reference", data_errors=kernels.data_errors)
    with Progress(console=progress_console(), transient=True) as progress:
        task = progress.add_task(f"parity {backend}", total=len(cases))
        report = run_parity(kernels, reference, cases, lambda _: progress.advance(task))
    _print_table(report, "reference")
    finish(_payload(report), as_json)


@app.command("run")
def run(
    dumps: Dumps,
    backend: Backend = "pytorch",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Replay dumps on a backend and compare with what was recorded."""
    from rich.progress import Progress

    from aerie.kernels import load
    from aerie.parity.dump import find_dumps
    from aerie.parity.replay import replay_dumps

    paths, device = find_dumps(dumps), found_device(device)
    kernels = load(backend, device=device, data_errors="status")
    with Progress(console=progress_console(), transient=True) as progress:
        task = progress.add_task(f"replay on {backend}", total=len(paths))
        report = replay_dumps(kernels, paths, lambda _: progress.advance(task))
    _print_table(report, f"the dumps in {dumps}")
    finish(_payload(report), as_json)


@app.command("matrix")
def matrix(
    backend: Annotated[str, typer.Option(help="Comma separated; empty: all of the device.")] = "",
    device: Device = "cpu",
    dumps: Dumps = Path("tests/data/dumps"),
    merge: Annotated[
        list[Path] | None, in_file(help="Matrix files of other machines to add.")
    ] = None,
    out: Annotated[Path, out_file(help="Path without suffix.")] = COMMITTED,
    as_json: Json = False,
) -> None:
    """Write kernel x backend x group of cases as Markdown and JSON: passed, tolerance, worst."""
    from aerie.bench.gates.run import keep_columns
    from aerie.kernels.cases import all_cases
    from aerie.parity import matrix as matrices
    from aerie.parity import matrix_page
    from aerie.parity.dump import find_dumps

    device = found_device(device)
    names, absent = (backend.split(","), {}) if backend else _available(device)
    others = [(matrix_page.read_matrix(path), str(path)) for path in merge or ()]
    recorded, columns = find_dumps(dumps), []
    for name in names:
        with progress_console().status(f"parity {name} on {device}"):
            columns.append(matrices.measure_column(name, device, all_cases(), recorded))
    made = matrices.Matrix(matrices.contract_hash(), tuple(columns))
    for other, path in others:
        made = matrix_page.merge(made, other, path)
    known = {column.backend for column in made.columns}
    remarks = tuple(f"Not run: {why}." for name, why in absent.items() if name not in known)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out == COMMITTED:
        for kept in keep_columns(Path(), {column.sources_sha256 for column in made.columns}):
            console().print(f"kept {kept}: recorded figures were measured with these kernels")
    made = replace(made, remarks=remarks)
    out.with_suffix(".json").write_text(matrix_page.render_json(made), encoding="utf-8")
    out.with_suffix(".md").write_text(matrix_page.render(made), encoding="utf-8")
    for column in made.columns:
        _print_column(column)
    finish({**made.payload(), "columns": len(made.columns), "out": str(out)}, as_json)


def _available(device: str) -> tuple[list[str], dict[str, str]]:
    """Backends that run here, and why each of the others does not."""
    from aerie.errors import BackendUnavailableError, UsageError
    from aerie.kernels.registry import BACKENDS, load

    found, absent = [], {}
    for info in BACKENDS:
        try:
            load(info.name, device=device)
            found.append(info.name)
        except (BackendUnavailableError, UsageError) as error:
            absent[info.name] = str(error)
    return found, absent


def _print_column(column: Column) -> None:
    cases, passed = (sum(getattr(c, n) for c in column.cells) for n in ("cases", "passed"))
    console().print(f"{column.backend} on {column.device}: {passed} of {cases} pass")
    for failure in column.failed:
        console().print(f"[red]differs[/] {failure.kernel} / {failure.case}: {failure.reason}")


def _print_table(report: ParityReport, against: str) -> None:
    from rich.table import Table

    from aerie.kernels import catalogue

    cases = Counter(result.kernel for result in report.results)
    passed = Counter(result.kernel for result in report.results if result.ok)
    table = Table("", "kernel", "cases", "passed", "worst ulps", box=None)
    for name in report.kernels:
        ulps = max(result.ulps for result in report.results if result.kernel == name)
        card = catalogue()[name]
        table.add_row(card.number, name, str(cases[name]), str(passed[name]), str(ulps))
    out = console()
    out.print(f"backend {report.backend} on {report.device} against {against}")
    out.print(table)
    for failure in report.failed:
        out.print(f"[red]differs[/] {failure.kernel} / {failure.case}: {failure.reason}")
    verdict = "all equal" if not report.failed else f"{len(report.failed)} differ"
    out.print(f"{len(report.results)} cases of {len(report.kernels)} kernels: {verdict}")


def _payload(report: ParityReport) -> dict[str, Any]:
    return {
        "ok": not report.failed and bool(report.results),
        "backend": report.backend,
        "device": report.device,
        "kernels": len(report.kernels),
        "cases": len(report.results),
        "results": [
            {"kernel": result.kernel, "case": result.case, "ok": result.ok}
            for result in report.results
        ],
        "failed": [
            {"kernel": result.kernel, "case": result.case, "reason": result.reason}
            for result in report.failed
        ],
    }
