"""`aerie fpga` without tools: packed weights, the memory model, the chip's plan, and the race."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from aerie.cli.checks import Json, out_folder
from aerie.cli.output import console, finish

Out = Annotated[Path, out_folder(help="Folder of the reports.")]


def as_lines(record: Mapping[str, object]) -> str:
    """JSON, a row a line."""
    return json.dumps(record).replace("}, {", "},\n{") + "\n"


def write_page(out: Path, name: str, record: Mapping[str, object], page: str) -> None:
    """A record and the page that is made from it."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(as_lines(record), "utf-8")
    (out / f"{name}.md").write_text(page, "utf-8")


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
    write_page(out, "fpga_memory", found, memory_study.page(found))
    finish({"ok": True, "stripe": found["stripe"], **found["published"]}, as_json)


def plan_chip(
    out: Out = Path("reports"),
    device: Annotated[str, typer.Option(help="Card: v80 or FILE.toml.")] = "v80",
    as_json: Json = False,
) -> None:
    """Place every buffer of the draft in whole blocks, and say what double buffering hides."""
    from aerie.bench.provenance import provenance
    from aerie.bench.record import read_json
    from aerie.fpga import chip_plan
    from aerie.perf.device import find_device
    from aerie.perf.point import Point, Tree, find_sizes

    speeds = sorted(read_json(out / "fpga_memory.json")["effective_gbps"].values())
    sizes = [find_sizes(name) for name in ("eagle4", "llama-3.1-8b")]
    points = [Point(one, Tree(), batch) for one in sizes for batch in (1, 8, 32)]
    rows = chip_plan.study(points, find_device(device), {"low": speeds[0], "high": speeds[-1]})
    found = {"rows": rows, "provenance": provenance("cpu")}
    page = chip_plan.page(found)
    write_page(out, "fpga_plan", chip_plan.totals(found), page)
    finish({"ok": all(row["fits"] for row in rows), "points": len(rows)}, as_json)


def compare_with_gpu(
    out: Out = Path("reports"),
    geometry: Annotated[str, typer.Option(help="Sizes of the raced pair.")] = "llama-3.1-8b",
    as_json: Json = False,
) -> None:
    """Race the card against the measured GPU: fpga_vs_h200_summary.md and _raw.csv."""
    from aerie.bench.provenance import provenance
    from aerie.bench.record import as_csv
    from aerie.fpga import race

    origin = provenance("cpu")
    found = race.race(Path(), geometry)
    rows = [{**row, "commit": origin["commit"]} for row in found["rows"]]
    (out / "fpga_vs_h200_raw.csv").write_text(as_csv(rows), "utf-8")
    (out / "fpga_vs_h200_summary.md").write_text(race.page(found, origin), "utf-8")
    for row in rows:
        told = ("gpu", "hybrid", "card_alone")
        speeds = ", ".join(f"{name} {row[f'{name}_tokens_per_second']}" for name in told)
        console().print(f"{row['policy']} at {row['context']}, {row['side']}: {speeds}")
    finish({"ok": bool(rows), "rows": len(rows)}, as_json)
