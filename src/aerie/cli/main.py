"""`aerie`: one command per job; heavy imports happen inside the commands."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Annotated, Any

import typer

import aerie
from aerie.cli import (
    audit,
    bench,
    budget,
    compare,
    convert,
    demo,
    doctor,
    draft_vocab,
    fpga,
    gates,
    generate,
    inflate,
    parity,
    profile,
    report,
    serve,
    top,
    train,
    tune,
)
from aerie.errors import AerieError

INTERRUPTED = 130

app = typer.Typer(
    name="aerie",
    help="Lossless speculative decoding with cost-aware draft trees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("audit")(audit.audit)
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
app.command("top")(top.top)
app.add_typer(bench.app, name="bench")
app.add_typer(draft_vocab.app, name="draft-vocab")
app.add_typer(fpga.app, name="fpga")
app.add_typer(gates.app, name="gates")
app.add_typer(parity.app, name="parity")
app.add_typer(train.app, name="train")
app.add_typer(tune.app, name="tune")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"aerie {aerie.__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", help="Print it.", is_eager=True, callback=_print_version),
]


@app.callback()
def _aerie(version: Version = False) -> None:
    """Lossless speculative decoding with cost-aware draft trees."""


def main() -> None:
    """Run the command line; an expected error is one clear line and exit status 2."""
    warnings.showwarning = _warn
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # of ASCII, or of a code page of Windows
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(standalone_mode=False)
    except Exception as error:
        status = _say(error)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:
        print("aerie: interrupted", file=sys.stderr)
    sys.exit(status or 0)


def _warn(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """What we warn of is for the user: its text, and not the line of code that said it."""
    if category.__module__.startswith("aerie."):
        print(f"aerie: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, *where[:2]), end="", file=sys.stderr)


def _say(error: Exception) -> int:
    """One line for what a user can mend, and the exit status; what is our fault is raised again."""
    if isinstance(error, BrokenPipeError):
        # The reader of our output has gone; nothing may be flushed to it at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2  # the help was its message
    # Typer has a copy of click of its own in some versions: its errors are known by what they do.
    of_typer = getattr(error, "format_message", None)
    if of_typer is not None:
        path = getattr(getattr(error, "ctx", None), "command_path", "aerie")
        print(f"aerie: {of_typer()} (see {path} --help)", file=sys.stderr)
        return 2
    if isinstance(error, AerieError | OSError):
        print(f"aerie: {error}", file=sys.stderr)
        return 2
    raise error
