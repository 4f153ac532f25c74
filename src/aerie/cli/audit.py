"""`aerie audit`: a certificate that speculation does not change a text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.cli.checks import Json, amount, count, out_file
from aerie.cli.engine_options import EngineOptions, given, refuse, takes_engine_options
from aerie.cli.output import console, finish, integers, progress_console
from aerie.cli.progress import shown
from aerie.errors import UsageError

if TYPE_CHECKING:
    from aerie.bench.audit.cells import Plan
    from aerie.bench.audit.certificate import Rows

MOST_SERVERS = 2
_Axis = str | None
Policies = Annotated[_Axis, typer.Option(help="off, chain, tree, planner, asked.")]
Batches = Annotated[_Axis, typer.Option(help="Texts at a time: 1,8,32.")]
Chunks = Annotated[_Axis, typer.Option(help="Prompt tokens read in a step: 512,2048.")]
Texts = Annotated[_Axis, typer.Option(help="Of a cell: a number, or one for each batch size.")]
Samplings = Annotated[_Axis, typer.Option(help="greedy, sampled (temperature 0.8, top-p 0.95).")]
Url = Annotated[
    list[str] | None,
    typer.Option(help="Audit a running server instead, or on (first) against off (second)."),
]
Draws = Annotated[int | None, count(1, "With --url: draws of each side of the chi-square test.")]
Wait = Annotated[float, amount(0, "With --url: seconds until it must be ready.")]
Scenes = Annotated[
    _Axis, typer.Option(help="together, arrivals, cancels, prefix, preemption; all of them.")
]
SceneTexts = Annotated[int | None, count(1, "Of a cell of any scene but together.")]
Context = Annotated[int | None, count(2, "Tokens of a prompt.")]
NewTokens = Annotated[int | None, count(1, "Tokens of a text.")]
Seed = Annotated[
    int, typer.Option(min=0, max=1 << 62, help="Of the first prompt; others count up.")
]
Quick = Annotated[bool, typer.Option("--quick", help="About a minute on a CPU.")]
Geometry = Annotated[
    str | None, typer.Option(help="Inflate the built-in pair in memory: llama-3.1-8b.")
]
Record = Annotated[
    Path | None,
    out_file("--record", help="JSON lines, appended; what they tell of is not run again."),
]
NoRun = Annotated[bool, typer.Option("--no-run", help="Certify what --record tells, load nothing.")]
Seconds = Annotated[float, amount(0, "Begin no cell after so long; 0: no limit.")]
Out = Annotated[Path | None, out_file(help="The certificate, as JSON.")]


@takes_engine_options
def audit(
    options: EngineOptions,
    policies: Policies = None,
    batches: Batches = None,
    chunks: Chunks = None,
    texts: Texts = None,
    samplings: Samplings = None,
    scenes: Scenes = None,
    scene_texts: SceneTexts = None,
    context: Context = None,
    new_tokens: NewTokens = None,
    seed: Seed = 0,
    quick: Quick = False,
    geometry: Geometry = None,
    record: Record = None,
    no_run: NoRun = False,
    seconds: Seconds = 0.0,
    url: Url = None,
    draws: Draws = None,
    wait: Wait = 0.0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Certify that texts with speculation are those without, token for token.

    Every cell decodes held-out prompts under one policy, batch size, chunk size, sampling and
    scene, and every text is compared, whole, with the plain text of its prompt and seed. With --url
    the same requests go to a running server alone, together, twice and without speculation. Exit
    status 1 where a text differs. docs/audit.md says what that means.
    """
    axes = {
        "policies": _names(policies),
        "batches": _numbers(batches, "--batches"),
        "chunks": _numbers(chunks, "--chunks"),
        "samplings": _names(samplings),
        "scenes": _names(scenes),
        "scene_texts": scene_texts,
    }
    sizes: dict[str, Any] = {"context": context, "new_tokens": new_tokens, "seed": seed}
    sizes["texts"] = _numbers(texts, "--texts")
    refuse("aerie audit", options.memory)
    if url:
        used = {"geometry": geometry, "record": record, "no_run": no_run, "seconds": seconds}
        _refuse({**axes, **used}, "with --url")
        found = _ask(url, wait, quick, _given({**sizes, "draws": draws}), options)
    else:
        _refuse({"draws": draws, "wait": wait}, "without --url")
        plan = _plan(options, quick, _given({**axes, **sizes}))
        done = None if no_run else _run(options, plan, geometry, record, seconds)
        found = _certify(done, plan, record)
    if out is not None:
        from aerie.bench.record import write_json

        write_json(out, found)
    finish(found, as_json)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _refuse(values: dict[str, Any], when: str) -> None:
    unused = [f"--{name.replace('_', '-')}" for name, value in values.items() if value]
    if unused:
        raise UsageError(f"{', '.join(unused)} cannot be used {when}: leave it out")


def _ask(
    urls: list[str], wait: float, is_quick: bool, asked: dict[str, Any], options: EngineOptions
) -> dict[str, Any]:
    refuse("aerie audit --url", options.model, options.drafts)
    if len(urls) > MOST_SERVERS:
        raise UsageError(f"--url was given {len(urls)} times, limit {MOST_SERVERS}: on, and off")
    if len(asked.get("texts", (1,))) != 1:
        raise UsageError("--texts is one number with --url: every step asks for the same texts")
    from aerie.bench.serve.load import wait_until_ready

    for url in urls:
        wait_until_ready(url, wait, "start a server there, or give --wait SECONDS")
    from aerie.bench.audit.servers import QUICK, ServerAudit, Terms
    from aerie.bench.audit.transcript import lines_of, table_of
    from aerie.bench.provenance import peer_provenance

    asked |= {"texts": asked["texts"][0]} if "texts" in asked else {}
    screen, notes = console(), progress_console()
    found = ServerAudit.find(urls, replace(QUICK if is_quick else Terms(), **asked)).run(
        lambda step: notes.print(f"{step['sampling']}, {step['step']}: {step['texts']} texts")
    )
    screen.print(table_of(found))
    for line in lines_of(found):
        screen.print(line, markup=False, soft_wrap=True)
    return {**found, "kind": "served", "provenance": peer_provenance()}


def _plan(options: EngineOptions, is_quick: bool, asked: dict[str, Any]) -> Plan:
    if options.drafts.rule != "match":
        raise UsageError("rule coins keeps a distribution, not the tokens: nothing to compare")
    options.check()
    from aerie.bench.audit.cells import ASKED, QUICK, Plan

    plan = replace(QUICK if is_quick else Plan(), **asked)
    if given(replace(options.drafts, costs=None)) and "policies" not in asked:
        plan = replace(plan, policies=(*plan.policies, ASKED))
    return plan


def _run(
    options: EngineOptions, plan: Plan, geometry: str | None, path: Path | None, seconds: float
) -> Rows:
    from aerie.bench.audit.cells import ASKED, POLICIES
    from aerie.bench.audit.certificate import Rows, read_record
    from aerie.bench.audit.run import Audit, Engines, load_models, with_own_numerics

    read_record(path)  # what cannot be gone on with is said before anything is loaded
    config, screen = with_own_numerics(options.config()), progress_console()
    options.set_threads()
    with shown() as progress:
        models = load_models(config, geometry, progress)
    policies = {**POLICIES, ASKED: options.drafts.chosen()[0]}
    engines = Engines(config, models, policies, plan.most_together)
    rows = Rows.open({**engines.terms(), "seed": plan.seed}, path)
    n_cells = len(plan.cells())

    def tell(row: Any) -> None:
        name = " ".join(str(value) for value in row["cell"].values())
        place = f"{n_cells - len(rows.left(plan))}/{n_cells}"
        screen.print(f"{place} {name}: {row['differing']} differ", markup=False)

    Audit(plan, engines, rows).run(tell, seconds)
    return rows


def _certify(done: Rows | None, plan: Plan, path: Path | None) -> dict[str, Any]:
    from aerie.bench.audit.certificate import Rows, certify, differences, statement, table_of

    rows = done or Rows.open(None, path)
    found, screen = certify(rows, len(rows.left(plan))), console()
    screen.print(table_of(found))
    for line in (*differences(found), statement(found)):
        screen.print(line, markup=False, soft_wrap=True)
    return found


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split(","))


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    return None if text is None else tuple(integers(text, option))
