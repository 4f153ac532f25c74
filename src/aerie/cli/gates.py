"""`aerie gates`: floors against recorded data; `aerie gates run` measures first."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from aerie.cli.checks import found_device, in_file, require_checkout
from aerie.cli.output import console, finish, progress_console
from aerie.errors import UsageError

app = typer.Typer(invoke_without_command=True)

Gates = Annotated[Path, typer.Option("--gates", help="Folder of the gates' TOML files.")]
Out = Annotated[Path, typer.Option(help="Folder of the reports.")]
Json = Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")]


@app.callback()
def gates(
    context: typer.Context,
    folder: Gates = Path("evidence/gates"),
    reports: Out = Path("reports"),
    as_json: Json = False,
) -> None:
    """Hold recorded figures against their floors; exit 1 if one is below.

    Figures are computed again from raw rows. Data without provenance is refused, and a speed
    passes only for kernels whose parity matrix is whole and of the same sources. A figure whose
    sources have changed since says which.
    """
    if context.invoked_subcommand is not None:
        return
    from aerie.bench.gates.data import Folder, read_ages
    from aerie.bench.gates.gate import judge, read_gates

    require_checkout("aerie gates", folder)
    if not reports.is_dir():
        raise UsageError(f"{reports} is not a folder of reports: run it in the root of a checkout")
    found = judge(read_gates(folder), Folder(reports, ages=read_ages(Path())))
    _finish([asdict(verdict) for verdict in found], as_json)


@app.command("run")
def run(
    suite: Annotated[str, typer.Argument(help="micro or full.")],
    contract: Annotated[Path, in_file(help="TOML file: what is run, and how.")] = Path(
        "evidence/contracts/h200.toml"
    ),
    folder: Gates = Path("evidence/gates"),
    out: Out = Path("reports"),
    as_json: Json = False,
) -> None:
    """Measure a suite of gates, then check it.

    micro runs three passes; full refuses to start before three of them have passed in a row with
    the same contract and kernels.
    """
    from aerie.bench.contract import read_contract
    from aerie.bench.gates.run import require_passes
    from aerie.bench.gpu import SUITES, Asked, run_asked
    from aerie.config.values import choice
    from aerie.parity.matrix import sources_hash

    choice("suite", suite, SUITES)
    require_checkout("aerie gates run", folder)
    terms = read_contract(contract)
    found_device(terms.model.device)
    kernels = sources_hash(terms.model.backend)
    if suite == "full":
        require_passes(out, kernels, terms)  # before a model is loaded
    screen = progress_console() if as_json else console()
    asked = Asked(contract, out, kernels, (suite,), gates=folder)
    _finish(run_asked(asked, lambda text: screen.print(text))["gates"], as_json)


def _finish(found: list[dict[str, Any]], as_json: bool) -> None:
    if not as_json:
        console().print(_table(found))
    finish({"ok": all(own["passed"] for own in found), "gates": found}, as_json=True)


def _table(found: list[dict[str, Any]]) -> Any:
    from aerie.bench.record import BOUNDS, shown

    rows = [
        {
            "gate": own["name"],
            "value": "-" if own["value"] is None else f"{own['value']:g}",
            "floor": f"{BOUNDS[own['sense']][0]} {own['floor']:g}",
            "aim": "" if own["aim"] is None else f"{own['aim']:g}",
            "passed": "yes" if own["passed"] else "NO",
            "source": own["source"],
            "reason": own["reason"],
            "changed since": ", ".join(own["changed"]),
        }
        for own in found
    ]
    return shown({name: f"{{{name}}}" for name in rows[0]}, rows, "gates")
