"""`aerie parity capture` and `aerie parity export`: kernel calls as dump files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.cli import generate
from aerie.cli.checks import Json, count, out_folder
from aerie.cli.engine_options import EngineOptions, takes_engine_options
from aerie.cli.output import console, finish, progress_console
from aerie.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from aerie.parity.capture import Written
    from aerie.parity.capture_run import CapturedRun

Prompts = Annotated[list[str] | None, typer.Argument(help="Prompts, decoded together.")]
Out = Annotated[Path, out_folder(help="Folder that receives the dumps.")]
Calls = Annotated[int, count(1, "Calls kept per kernel and condition.")]
When = Annotated[
    list[str] | None,
    typer.Option(
        help="first, any, batch-change, width-change, rows-change, zero-accepted, all-accepted,"
        " finished or refused; may be given several times."
    ),
]
Only = Annotated[list[str] | None, typer.Option("--kernel", help="Only these kernels.")]
Most = Annotated[int, count(1, "Largest call to keep, in KB.")]
Geometry = Annotated[
    str | None, typer.Option(help="Embed the pair first: llama-3.1-8b, or a JSON file.")
]


@takes_engine_options
def capture(
    options: EngineOptions,
    prompts: Prompts = None,
    out: Out = Path("dumps"),
    calls: Calls = 3,
    when: When = None,
    only: Only = None,
    most_kb: Most = 1024,
    geometry: Geometry = None,
    max_new_tokens: generate.NewTokens = 48,
    temperature: generate.Temperature = 0.0,
    top_k: generate.TopK = 0,
    top_p: generate.TopP = 1.0,
    seed: generate.Seed = 0,
    as_json: Json = False,
) -> None:
    """Decode with a tap on every kernel and write chosen calls as dumps (docs/dump_format.md).

    Here auto stands for backend pytorch, engine direct (a recorded round cannot be tapped), 64 KV
    pages (the width of the slot table) and a batch of all prompts.
    """
    from aerie.parity.capture import Capture, CapturePlan
    from aerie.parity.capture_conditions import find_condition
    from aerie.parity.capture_run import PROMPTS, EngineRecipe, run_capture
    from aerie.requests.params import SamplingParams

    asked = tuple(prompts or PROMPTS)
    conditions = tuple(find_condition(name) for name in when or ["first"])
    plan = CapturePlan(out, conditions, calls, most_kb * 1024, frozenset(only or ()))
    options.config()  # as it was asked for: junk must not vanish behind what a capture takes
    options = _tapped(options, len(asked))
    params = SamplingParams(max_new_tokens, temperature, top_k, top_p, seed=seed)
    model, config = options.model.model, options.config()
    name = f"{model or 'built-in pair'}{f' in {geometry}' if geometry else ''}"
    origin = _origin(config.model.device, config.backend, name)
    kept = Capture(plan, {**origin, "seed": seed})
    options.set_threads()
    recipe = EngineRecipe(model, options.head, geometry, options.settings())
    with progress_console().status("decoding with the taps on"):
        run = run_capture(recipe, asked, params, kept)
    _report(kept.written, run, out)
    finish(_payload(kept.written, run), as_json)


def _tapped(options: EngineOptions, n_prompts: int) -> EngineOptions:
    """The options with what auto stands for in a capture."""
    model, memory = options.model, options.memory
    if model.engine == "graphs":
        raise UsageError("a recorded round cannot be tapped: leave --engine graphs out")
    backend = "pytorch" if model.backend == "auto" else model.backend
    return replace(
        options,
        model=replace(model, engine="direct", backend=backend),
        memory=replace(
            memory, n_pages=memory.n_pages or 64, max_batch=memory.max_batch or n_prompts
        ),
    )


def _report(written: Written, run: CapturedRun, out: Path) -> None:
    for kernel in run.calls:
        files, large = written.files[kernel], written.too_large[kernel]
        skipped = f", {large} too large" if large else ""
        console().print(f"{kernel}: {files} of {run.calls[kernel]} calls kept{skipped}")
    console().print(f"{written.files.total()} dumps, {written.n_bytes} bytes -> {out}")


def _payload(written: Written, run: CapturedRun) -> dict[str, Any]:
    return {
        "ok": written.files.total() > 0,
        "dumps": written.files.total(),
        "bytes": written.n_bytes,
        "tokens": run.tokens,
        "calls": run.calls,
        "files": dict(written.files),
        "too_large": dict(written.too_large),
    }


def export(
    out: Out = Path("dumps"),
    only: Only = None,
    case: Annotated[list[str] | None, typer.Option(help="Only these cases: kernel/name.")] = None,
    as_json: Json = False,
) -> None:
    """Write the parity cases, refusals included, with the reference's answers as dumps."""
    from aerie.kernels import load
    from aerie.kernels.cases import all_cases, cases_for
    from aerie.parity.dump_cases import dump_cases

    found = [c for name in only for c in cases_for(name)] if only else list(all_cases())
    named = {f"{entry.kernel}/{entry.name}": entry for entry in found}
    for name in case or ():
        if name not in named:
            raise UnknownNameError("case", name, named)
    chosen = [named[name] for name in case] if case else found
    if out.is_dir() and any(out.glob("*.safetensors")):
        raise UsageError(f"{out} already holds dumps; choose another folder")
    reference = load("reference", data_errors="status")
    origin = {**_origin("cpu", "reference", "none"), "seed": 0}
    n_dumps = dump_cases(reference, chosen, out, origin)
    console().print(f"{n_dumps} dumps -> {out}")
    finish({"ok": True, "dumps": n_dumps}, as_json)


def _origin(device: str, backend: str, model: str) -> dict[str, Any]:
    import datetime

    from aerie.bench.provenance import provenance

    found = provenance(device)
    return {
        "commit": found["commit"],
        "source_sha256": found["source_sha256"],
        "device": f"{device} ({found['device']})",
        "torch": found["torch"],
        "backend": backend,
        "model": model,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
