"""`aerie report`: tables and pictures from raw data, the scorecard and the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aerie.cli.checks import Json, require_checkout
from aerie.cli.output import console, finish

if TYPE_CHECKING:
    from aerie.bench.report.checks import Parity
    from aerie.bench.report.write import Judges

MATRIX = Path("reports/p0_parity_matrix.json")

Check = Annotated[
    bool, typer.Option("--check", help="Write nothing; exit 1 if a file is out of date.")
]


def report(check: Check = False, as_json: Json = False) -> None:
    """Rebuild every table and picture from raw data; write scorecard and manifest.

    Run it in the root of a checkout. Nothing is measured: a row without evidence is open and names
    the command that would make it. A row that fails makes the command exit 1; one that stands on
    older sources is stale and says so, no more.
    """
    from aerie.bench.report.write import make, missing_review

    evidence = (Path("evidence") / name for name in ("gates", "scorecard", "contracts"))
    require_checkout("aerie report", *evidence)
    made = make(Path(), judges(Path()), writes=not check)
    out = console()
    for path in made.written:
        out.print(f"out of date: {path}" if check else f"wrote {path}")
    for one in made.failed:
        out.print(f"[red]fail[/] {one.row.id}: {'; '.join(one.notes)}", markup=True)
    counts = (f"{n} {status}" for status, n in made.counts().items())
    out.print(f"scorecard: {', '.join(counts)}")
    review = missing_review(Path(), made)
    if review:
        out.print(f"[red]{review}[/]")
    is_ok = not review and not made.failed and not (check and made.written)
    finish({"ok": is_ok, **made.payload()}, as_json)


def judges(root: Path) -> Judges:
    """Ask the sources, the parity matrix and the gates."""
    from aerie.bench.gates.data import PACKAGE, Ages, Folder
    from aerie.bench.gates.gate import judge, read_gates
    from aerie.bench.report import front, measured
    from aerie.bench.report.origin import learn
    from aerie.bench.report.tables import Table
    from aerie.bench.report.write import Judges
    from aerie.parity.matrix_page import read_matrix, render
    from aerie.sources import hash_parts, read_package

    ages = Ages(hash_parts(read_package(root / PACKAGE)), learn(root))
    gates = judge(read_gates(root / "evidence/gates"), Folder(root / "reports", ages=ages))
    page = Table(
        str(MATRIX.with_suffix(".md")),
        (str(MATRIX),),
        lambda where: render(read_matrix(where / MATRIX)),
    )
    first = Table(front.PAGE, (front.PAGE,), lambda where: front.render(where, ages))
    whole = Table(measured.PAGE, measured.RAW, lambda where: measured.render(where, gates))
    close = Table(front.GPU_PAGE, (front.GPU_PAGE, front.RECORD), front.render_near_ties)
    return Judges(gates, parity_of(root), (page, first, whole, close), ages)


def parity_of(root: Path) -> dict[str, Parity]:
    """By backend: what the committed matrix says of it as it is."""
    from aerie.bench.report.checks import Parity
    from aerie.kernels.registry import BACKENDS
    from aerie.parity.matrix_page import read_matrix, why_stale

    if not (root / MATRIX).is_file():
        return {info.name: Parity(f"{MATRIX} is missing") for info in BACKENDS}
    matrix = read_matrix(root / MATRIX)
    found = {}
    for info in BACKENDS:
        own = [column for column in matrix.columns if column.backend == info.name]
        n_failed = sum(len(column.failed) for column in own)
        failed = f"{n_failed} cases of the matrix fail" if n_failed else ""
        if not own:
            failed = f"the matrix has no column of {info.name}"
        found[info.name] = Parity(failed, why_stale(matrix, info.name) or "")
    return found
