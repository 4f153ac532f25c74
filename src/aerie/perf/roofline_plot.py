"""Draws rooflines: operations per byte of each kernel under the bandwidth of each device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aerie.perf.budget import BudgetRow
from aerie.perf.device import Device

DOTS_PER_INCH = 120


def draw_rooflines(rows: Sequence[BudgetRow], devices: Sequence[Device], out: Path) -> None:
    """Bandwidth lines in operations a second, kernels where their bytes let them be."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    spans = [row.N_ops / (row.B_in + row.B_out) for row in rows]
    reach = (min(spans) / 3, max(spans) * 3)
    for device in devices:
        lines = [("peak", "-", device.memory.peak_gbps)]
        if device.memory.measured_gbps is not None:
            lines.append(("measured copy", "--", device.memory.measured_gbps))
        for basis, style, gbps in lines:
            label = f"{device.title}, {basis}: {gbps:,.0f} GB/s"
            axes.plot(reach, [span * gbps for span in reach], style, label=label)
    for row, span in zip(rows, spans, strict=True):
        gops = row.N_ops / row.T_us / 1e3
        axes.plot([span], [gops], "o", color="black")
        axes.annotate(row.number, (span, gops), textcoords="offset points", xytext=(5, 4))
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="10^9 operations/s")
    axes.set_title("Tree kernels one by one on the first device's fabric (kind: modelled)")
    axes.legend(fontsize="small")
    figure.savefig(out, dpi=DOTS_PER_INCH)
