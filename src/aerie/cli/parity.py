"""`aerie parity`: every kernel of a backend against the NumPy definition."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.cli.output import console, finish, progress_console

if TYPE_CHECKING:
    from aerie.parity import ParityReport

Backend = Annotated[str, typer.Option(help="Backend to check against the reference.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Kernel = Annotated[str | None, typer.Option(help="Only this kernel.")]
Json = Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")]


def parity(
    backend: Backend = "pytorch",
    device: Device = "cpu",
    kernel: Kernel = None,
    as_json: Json = False,
) -> None:
    """Run every parity case of every kernel on a backend and compare with the reference."""
    from rich.progress import Progress

    from aerie.kernels import load
    from aerie.kernels.cases import all_cases, cases_for
    from aerie.parity import run_parity

    cases = cases_for(kernel) if kernel else all_cases()
    kernels = load(backend, device=device)
    reference = load("reference", data_errors=kernels.data_errors)
    with Progress(console=progress_console(), transient=True) as progress:
        task = progress.add_task(f"parity {backend}", total=len(cases))
        report = run_parity(kernels, reference, cases, lambda _: progress.advance(task))
    _print_table(report)
    finish(_payload(report), as_json)


def _print_table(report: ParityReport) -> None:
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
    out.print(f"backend {report.backend} on {report.device} against reference")
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
