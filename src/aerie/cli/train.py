"""`aerie train`: reproduce the built-in pair, or train a head for another target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Train the built-in target and EAGLE-3 heads; report the shipped pair's acceptance.",
    no_args_is_help=True,
)

Seconds = Annotated[float, typer.Option(help="Training budget, wall clock; setup not counted.")]
Out = Annotated[Path, typer.Option(help="Folder that receives the files.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Seed of weights and batches.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")]
Wall = Annotated[
    float, typer.Option(help="Wall clock for everything; shortens training. 0: no limit.")
]
Workers = Annotated[int, typer.Option(help="Processes for the corpus; 0 is one per core.")]


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
    from aerie.train.pair import Folders, make_corpus, make_target, within_wall
    from aerie.train.progress import Progress
    from aerie.train.train_target import TargetPlan

    progress = Progress()
    folders = Folders(out)
    corpus = make_corpus(CorpusSettings(n_workers=workers), folders, progress)
    plan = TargetPlan(
        seconds=seconds,
        device=device,
        seed=seed,
        checkpoints=out / "target-checkpoint",
        is_resumed=resume,
    )
    make_target(corpus, within_wall(plan, wall, progress), folders, progress)
