"""`aerie inflate`: embed a small pair exactly into a production geometry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from aerie.cli.checks import Json, found_device, out_folder
from aerie.cli.output import console, finish, progress_console

Model = Annotated[Path, typer.Option(help="Directory of the small target.")]
Draft = Annotated[Path, typer.Option(help="Directory of its EAGLE-3 head, in any dialect.")]
Geometry = Annotated[str, typer.Option(help="llama-3.1-8b, or a JSON file with the sizes.")]
Out = Annotated[Path, out_folder(help="Folder that receives target/ and head/.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32 (bf16, fp32).")]
Device = Annotated[str, typer.Option(help="Where tensors are made: cpu or cuda.")]


def inflate(
    model: Model,
    draft: Draft,
    out: Out,
    geometry: Geometry = "llama-3.1-8b",
    dtype: Dtype = "bfloat16",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Write a pair with the tokens of a small one and the bytes and time of a large one."""
    import torch
    from rich.progress import Progress

    from aerie.errors import UnknownNameError
    from aerie.models.inflate.embed import InflateOptions, copy_companions, inflate_to_directory
    from aerie.models.inflate.geometry import find_geometry
    from aerie.models.inflate.pair import read_pair
    from aerie.models.load import LoadOptions

    dtypes = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    dtypes |= {"bf16": torch.bfloat16, "fp32": torch.float32}
    if dtype not in dtypes:
        raise UnknownNameError("dtype", dtype, dtypes)
    device = found_device(device)
    options = InflateOptions(LoadOptions(dtype=dtypes[dtype], device=device))
    large = find_geometry(geometry)
    pair = read_pair(model, draft)
    with Progress(console=progress_console(), transient=True) as progress:
        task = progress.add_task("inflate", total=None)
        record = inflate_to_directory(
            pair,
            large,
            out,
            options,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    record["copied"] = copy_companions(model, out)
    _print(record, out)
    finish({"ok": True, "out": str(out), **record}, as_json)


def _print(record: dict[str, Any], out: Path) -> None:
    text = console()
    for name in ("target", "head"):
        size, eps = record[f"{name}_bytes"] / 1e9, record[f"{name}_eps"]
        text.print(f"{name}: {size:.3f} GB in {record['dtype']}, eps {eps:.6g} -> {out / name}")
    text.print(f"live layers {record['live_layers']}, captured states {record['boundaries']}")
    text.print(
        f"constant {record['constant']:.6g}, copied {', '.join(record['copied']) or 'nothing'}"
    )
    for warning in record["warnings"]:
        text.print(f"[yellow]warning[/] {warning}")
