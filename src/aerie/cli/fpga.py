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
