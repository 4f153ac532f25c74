"""`aerie compare`: every stage of a checkpoint against another engine, or against float64."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.cli.checks import Device, Json, found_device, out_folder
from aerie.cli.output import console, finish, integers

if TYPE_CHECKING:
    from aerie.models.probe import ProbeReport
    from aerie.parity.stage_dump import StageDump
    from aerie.parity.stage_run import LoadedPair, Subject
    from aerie.parity.stages import StageReport

DTYPES = ("float32", "bfloat16", "float16")
SELF = "self, float64"

Model = Annotated[str, typer.Option(help="Target: a directory, or a hub id in the local cache.")]
Draft = Annotated[str | None, typer.Option(help="EAGLE-3 head of that target, likewise.")]
Taps = Annotated[
    str | None,
    typer.Option(help="Layer boundaries the head reads: 2,18,33; default: as it says."),
]
Against = Annotated[
    Path | None,
    typer.Option(help="Stages another engine dumped (docs/stages.md). Without it: float64."),
]
Dump = Annotated[Path | None, out_folder(help="Write this run's stages there.")]
Dtype = Annotated[str, typer.Option(help=f"{', '.join(DTYPES)}; sets the tolerance too.")]


def compare(
    model: Model,
    draft: Draft = None,
    taps: Taps = None,
    against: Against = None,
    dump: Dump = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Compare each stage of a target, and of its draft head, with a reference run.

    The first stage that departs is named: what follows it is its consequence. A head is probed
    too: how often it agrees with its target, and whether another reading of it would do better.
    """
    import torch

    from aerie.errors import UnknownNameError
    from aerie.models.hub import find_model
    from aerie.parity.stage_dump import read_dump, write_dump
    from aerie.parity.stage_run import Subject, load_pair
    from aerie.parity.stages import TOLERANCES, compare_stages

    if dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    device = found_device(device)
    head = None if draft is None else find_model(draft, os.environ)
    boundaries = None if taps is None else tuple(integers(taps, "--taps", least=0))
    target = find_model(model, os.environ)
    subject = Subject(target, head, getattr(torch, dtype), device, boundaries)
    given = None if against is None else read_dump(against)
    pair = load_pair(subject)
    theirs, ours = _both_runs(subject, pair, given)
    if dump is not None:
        write_dump(dump, ours)
    report = compare_stages(theirs.stages, ours.stages, TOLERANCES[subject.dtype])
    label = SELF if against is None else str(against)
    missing = [name for name in ours.stages if name not in theirs.stages]
    _print(pair, report, f"{model} in {dtype} on {device} against {label}", missing)
    probed = _probe(pair, target)
    payload = {
        "ok": report.ok,
        "model": model,
        "draft": draft,
        "dtype": dtype,
        "reference": label,
        "tokens": ours.tokens.shape[0],
        "stages": [_strict(asdict(stage)) for stage in report.stages],
        "first_departure": report.first_departure,
        "not_compared": missing,
        "probe": probed and {"agreement": probed.agreement, "problem": probed.problem},
    }
    finish(payload, as_json)


def _probe(pair: LoadedPair, folder: Path) -> ProbeReport | None:
    """How often a head agrees with its target, printed; it is no stage and decides nothing."""
    from aerie.models.probe import probe_head
    from aerie.models.probe_text import read_built_in, write_freely
    from aerie.text.tokenizer import load_tokenizer

    if pair.head is None:
        return None
    has_text = (folder / "tokenizer.json").is_file()
    texts = (
        read_built_in(load_tokenizer(folder).encode, pair.target)
        if has_text
        else write_freely(pair.target)
    )
    found = probe_head(pair.target, pair.head, texts)
    out = console()
    out.print(f"\nprobe of the head over {found.n_pairs} tokens\n{found.table()}", markup=False)
    out.print(found.problem or "the head is read as it was trained", markup=False, soft_wrap=True)
    return found


def _strict(stage: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity; a number that is not finite becomes null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in stage.items()
    }


def _both_runs(
    subject: Subject, pair: LoadedPair, theirs: StageDump | None
) -> tuple[StageDump, StageDump]:
    """The reference's stages and ours, over the same tokens."""
    from aerie.parity.stage_run import N_TOKENS, draw_tokens, load_exact_pair, run_stages

    if theirs is not None:
        return theirs, run_stages(pair, theirs.tokens, theirs.features)
    tokens = draw_tokens(pair.target.geometry.vocab_size, N_TOKENS)
    return run_stages(load_exact_pair(subject), tokens), run_stages(pair, tokens)


def _print(pair: LoadedPair, report: StageReport, title: str, missing: list[str]) -> None:
    from rich.table import Table

    out = console()
    if pair.head is not None:
        for resolved in pair.head.summary.resolved:
            out.print(f"draft {resolved}", markup=False)
    table = Table("stage", "mean abs", "max abs", "cosine", "top-k", "", box=None, title=None)
    for stage in report.stages:
        numbers = (f"{stage.mean_abs:.2e}", f"{stage.max_abs:.2e}", f"{stage.cosine:.6f}")
        verdict = "[green]ok[/]" if stage.ok else "[red]departs[/]"
        table.add_row(stage.name, *numbers, f"{stage.topk_overlap:.3f}", verdict)
    out.print(title, markup=False)
    out.print(table)
    if missing:
        out.print(f"not in the reference: {', '.join(missing)}", markup=False)
    first = report.first_departure
    out.print("every stage within tolerance" if first is None else f"first departure: {first}")
