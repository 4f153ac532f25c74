"""`aerie budget`: bytes, cycles and rooflines of the tree kernels for any size and device card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aerie.cli.checks import Json, count, in_file, out_file
from aerie.cli.output import console, finish

if TYPE_CHECKING:
    from aerie.perf.onchip import WeightBlock
    from aerie.perf.sheet import Sheet

_CUDA = "reports/raw/triton_kernel_times_h200.csv"  # only a checkout has it
_COLUMNS = ("kernel", "B_in", "B_out", "N_ops", "B_onchip", "II/f", "C_total", "T_us", "CUDA us")


def budget(
    device: Annotated[str, typer.Option(help="Card of the FPGA: v80 or FILE.toml.")] = "v80",
    against: Annotated[str, typer.Option(help="Cards to race: h100,h200 or files.")] = "h100,h200",
    geometry: Annotated[
        str, typer.Option(help="eagle4, llama-3.1-8b, built-in or FILE.toml.")
    ] = "eagle4",
    batch: Annotated[int, typer.Option(min=1, max=128, help="Requests.")] = 1,
    width: Annotated[int, typer.Option(min=1, max=10, help="Nodes fed a level.")] = 8,
    top_k: Annotated[int, typer.Option(min=1, max=10, help="Children a node.")] = 8,
    depth: Annotated[int, typer.Option(min=1, max=127, help="Levels of the draft.")] = 5,
    verify: Annotated[int, typer.Option(min=1, max=128, help="Rows a request.")] = 32,
    context: Annotated[int, count(1, "Tokens before the draft.")] = 1024,
    weights: Annotated[
        str | None, typer.Option(help="Inventory FILE.csv or checkpoint; default: that of eagle4.")
    ] = None,
    cuda: Annotated[
        Path | None, in_file(help=f"Measured GPU times of the kernels; default: {_CUDA}.")
    ] = None,
    plot: Annotated[Path | None, out_file(help="Draw the rooflines to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Fill the budget sheet: bytes, operations, cycles, time, and what fits on the chip."""
    from aerie.perf.cuda_times import read_cuda_times
    from aerie.perf.device import find_device
    from aerie.perf.point import Point, Tree, find_sizes
    from aerie.perf.sheet import make_sheet

    rivals = [find_device(name) for name in against.split(",") if name]
    tree = Tree(top_k=top_k, width=width, depth=depth, verify=verify)
    point = Point(find_sizes(geometry), tree, batch, context)
    times = read_cuda_times(cuda or Path(_CUDA))
    sheet = make_sheet(point, find_device(device), rivals, _inventory(weights), times)
    if plot:
        from aerie.perf.roofline_plot import draw_rooflines

        draw_rooflines(sheet.rows, [sheet.device, *rivals], plot)
    if not as_json:
        _show(sheet)
    finish({"ok": True, **sheet.payload()}, as_json)


def _inventory(weights: str | None) -> list[WeightBlock]:
    from aerie.perf.onchip import blocks_of, read_inventory

    if weights is None:
        return read_inventory()
    path = Path(weights)
    if not path.is_dir():
        return read_inventory(path)
    from aerie.models.weights import open_checkpoint

    entries = open_checkpoint(path).entries
    return blocks_of((name, one.end - one.start, one.dtype) for name, one in entries.items())


def _show(sheet: Sheet) -> None:
    from rich.table import Table

    screen = console()
    table = Table(title=f"Budget of one call each, {sheet.device.title} (kind: modelled)")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "kernel" else "right")
    for row in sheet.rows:
        numbers = (row.B_in, row.B_out, row.N_ops, row.B_onchip)
        table.add_row(
            f"{row.number} {row.kernel}",
            *(f"{number:,}" for number in numbers),
            row.II_f,
            f"{row.C_total:,}",
            f"{row.T_us:,.3f}",
            "" if row.cuda_us is None else f"{row.cuda_us:.2f}",
        )
    screen.print(table)
    said = sheet.payload()
    screen.print(f"on chip: {said['on_chip']['megabytes']} MB")
    for block in said["on_chip"]["blocks"]:
        fate = "resident" if block["is_resident"] else "streamed"
        screen.print(f"  {block['block']}: {block['megabytes']:,.2f} MB {block['dtype']}, {fate}")
    for factor in sheet.factors:
        screen.print(
            f"against {factor.against} by {factor.basis}: {factor.parity:.2f} times fewer bytes"
            f" for parity, {factor.ahead:.2f} for 20 % more"
        )
