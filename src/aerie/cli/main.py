"""`aerie`: one command per job; heavy imports happen inside the commands."""

from __future__ import annotations

import sys

import typer

from aerie.cli import (
    bench,
    budget,
    compare,
    convert,
    demo,
    doctor,
    draft_vocab,
    gates,
    generate,
    inflate,
    parity,
    profile,
    report,
    serve,
    train,
    tune,
)
from aerie.errors import AerieError

app = typer.Typer(
    name="aerie",
    help="Lossless speculative decoding with cost-aware draft trees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("budget")(budget.budget)
app.command("compare")(compare.compare)
app.command("convert")(convert.convert)
app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("doctor")(doctor.doctor)
app.command("inflate")(inflate.inflate)
app.command("profile")(profile.profile)
app.command("report")(report.report)
app.command("serve")(serve.serve)
app.add_typer(bench.app, name="bench")
app.add_typer(draft_vocab.app, name="draft-vocab")
app.add_typer(gates.app, name="gates")
app.add_typer(parity.app, name="parity")
app.add_typer(train.app, name="train")
app.add_typer(tune.app, name="tune")


def main() -> None:
    """Run the command line; an expected error is one clear line and exit status 2."""
    try:
        app()
    except AerieError as error:
        print(f"aerie: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("aerie: interrupted", file=sys.stderr)
        sys.exit(130)
