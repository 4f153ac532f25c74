"""Measured times of the tree kernels on a GPU, from the file the kernel bench writes."""

from __future__ import annotations

import csv
from pathlib import Path

from aerie.errors import UsageError

Times = dict[tuple[str, int, int], float]  # kernel, batch, rows a request: microseconds
VARIANT = "triton"
_FIELDS = {"what", "batch", "rows", "us", "variant"}


def read_cuda_times(path: Path) -> Times:
    """Medians of the fastest variant; none if the file is not there."""
    if not path.is_file():
        return {}
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    if rows and not set(rows[0]) >= _FIELDS:
        raise UsageError(f"{path} has no times of kernels; its columns are {sorted(_FIELDS)}")
    return {
        (row["what"], int(row["batch"]), int(row["rows"])): float(row["us"])
        for row in rows
        if row["variant"] == VARIANT
    }


def at_cell(times: Times, batch: int, rows: int) -> dict[str, float]:
    """Times by kernel at one cell; kernels not timed there are left out."""
    return {name: us for (name, b, r), us in times.items() if (b, r) == (batch, rows)}
