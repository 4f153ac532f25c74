"""`aerie train`: reproduce the built-in pair, or train a head for another target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aerie.cli.checks import Device, amount, count, found_device, in_file, out_folder

app = typer.Typer(
    help="Train the built-in target and EAGLE-3 heads; report the shipped pair's acceptance.",
    no_args_is_help=True,
)

Seconds = Annotated[float, amount(0.0, "Training budget, wall clock; setup not counted.")]
Out = Annotated[Path, out_folder(help="Folder that receives the files.")]
Seed = Annotated[int, count(0, "Seed of weights and batches.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")]
Wall = Annotated[float, amount(0.0, "Wall clock for everything; shortens training. 0: no limit.")]
Workers = Annotated[int, count(0, "Processes for the corpus; 0 is one per core.")]


@app.callback()
def _train() -> None:
    """Train the built-in target and EAGLE-3 heads; report the shipped pair's acceptance."""


@app.command("target")
def target(
    out: Out = Path("build/pair"),
    seconds: Seconds = 380.0,
    device: Device = "cuda",
    seed: Seed = 1,
    workers: Workers = 0,
    wall: Wall = 0.0,
    resume: Resume = False,
) -> None:
    """Train the target from the Python sources on this machine.

    Writes target/ (weights, config, tokenizer), heldout/ (prompts) and the records of the corpus
    and of the run.
    """
    from aerie.train.corpus import CorpusSettings
    from aerie.train.pair import SETUP_SECONDS, Folders, make_corpus, make_target, within_wall
    from aerie.train.progress import Progress
    from aerie.train.train_target import TargetPlan

    device = found_device(device)
    progress = Progress()
    folders = Folders(out)
    corpus = make_corpus(CorpusSettings(n_workers=workers), folders, progress)
    plan = TargetPlan(
        seconds=within_wall(seconds, wall, SETUP_SECONDS, progress),
        device=device,
        seed=seed,
        checkpoints=out / "target-checkpoint",
        is_resumed=resume,
    )
    make_target(corpus, plan, folders, progress)


@app.command("head")
def head(
    model: Annotated[
        Path | None, typer.Option(help="Target's directory; the built-in target if absent.")
    ] = None,
    text: Annotated[
        list[Path] | None, in_file(help="Text files to train on, for a given --model.")
    ] = None,
    out: Out = Path("build/pair"),
    seconds: Seconds = 360.0,
    device: Device = "cuda",
    wall: Wall = 0.0,
    resume: Resume = False,
) -> None:
    """Train an EAGLE-3 head and measure its acceptance.

    For the built-in target the text is the corpus it was trained on, and text it writes itself.
    With --resume and no checkpoint, training goes on from the shipped head; with --seconds 0 it
    is only measured. For any other target give --model and --text.
    """
    device = found_device(device)
    if model is not None:
        from aerie.train.given_target import train_for_given

        train_for_given(model, text or (), out, device, seconds, resume)
        return
    from aerie.bench.provenance import provenance
    from aerie.train.run_head import train_for_built_in

    train_for_built_in(out, device, seconds, wall, resume, provenance(device))


@app.command("pair")
def pair(
    out: Out = Path("build/pair"),
    toy: Annotated[
        bool, typer.Option("--toy", help="Tiny sizes on a CPU: the whole recipe in half a minute.")
    ] = False,
    target_seconds: Annotated[float, amount(0.0, "Budget of the target.")] = 380.0,
    head_seconds: Annotated[float, amount(0.0, "Budget of the head.")] = 360.0,
    device: Device = "cuda",
    seed: Seed = 1,
) -> None:
    """Train the target and then its head, and write both with their model cards."""
    from aerie.train.run_pair import train_pair, train_toy_pair
    from aerie.train.toy import ToySteps

    if toy:
        train_toy_pair(out, ToySteps(), seed)
    else:
        train_pair(out, target_seconds, head_seconds, found_device(device), seed)


@app.command("cards")
def cards(
    pair_folder: Annotated[
        Path,
        typer.Argument(
            exists=True, file_okay=False, help="Folder with target/, head/ and records."
        ),
    ],
) -> None:
    """Write the model cards again from the records of the runs."""
    from aerie.train.card import write_cards
    from aerie.train.pair import Folders

    write_cards(Folders(pair_folder))


@app.command("report")
def report(
    short: Annotated[int, count(0, "Short prompts to compute again.")] = 16,
    long: Annotated[int, count(0, "Prompts at 32K to compute again.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Only the closing JSON line.")] = False,
) -> None:
    """Acceptance and held-out loss of the shipped pair, and some of it computed again on a CPU.

    The committed table holds one row per prompt, measured on a GPU. Prompts that were shipped are
    decoded again here; the means must agree within the interval. The last line of output is JSON.
    """
    import sys

    from aerie.cli.output import console, finish
    from aerie.train.pair import ASSETS
    from aerie.train.progress import Progress
    from aerie.train.report import report as make_report

    progress = Progress(write=lambda line: print(line, file=sys.stderr, flush=True))
    payload = make_report(ASSETS, short, long, progress)
    if not as_json:
        out = console()
        for floor in payload["floors"]:  # type: ignore[attr-defined]
            out.print(floor)
        for bucket, again in payload["recomputed"].items():  # type: ignore[attr-defined]
            out.print(f"computed again at {bucket}: {again}")
    finish(payload, as_json=True)
