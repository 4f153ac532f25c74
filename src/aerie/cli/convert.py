"""`aerie convert`: write a draft head in the dialect another engine reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aerie.cli.checks import Json, out_folder
from aerie.cli.output import console, finish

Model = Annotated[Path, typer.Option(help="Directory of the target.")]
Draft = Annotated[Path, typer.Option(help="Directory of its EAGLE-3 head, in any dialect.")]
Dialect = Annotated[
    str, typer.Option(help="specforge (SGLang), speculators (vLLM) or modelopt (TensorRT-LLM).")
]
Out = Annotated[Path, out_folder(help="Folder for the converted head.")]


def convert(model: Model, draft: Draft, dialect: Dialect, out: Out, as_json: Json = False) -> None:
    """Convert a draft head; one the dialect cannot express is refused, not bent."""
    from aerie.models.eagle3.blueprint import TargetSizes
    from aerie.models.eagle3.convert import read_normal, write_head
    from aerie.models.eagle3.export import ExportDetails
    from aerie.models.eagle3.values import both_notations
    from aerie.models.geometry import read_geometry

    target = read_geometry(model)
    sizes = TargetSizes(target.n_layers, target.hidden_size, target.vocab_size)
    head = read_normal(draft, sizes)
    details = ExportDetails(target.max_positions, str(model), target.architecture)
    write_head(out, head, dialect, details)
    captured = both_notations(head.convention.boundaries)
    console().print(f"wrote {out} as {dialect}: {len(head.tensors)} tensors, {captured}")
    finish({"ok": True, "out": str(out), "dialect": dialect, "captured": captured}, as_json)
