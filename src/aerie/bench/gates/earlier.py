"""Puts columns of the parity matrix aside that recorded figures still need, before it changes."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path

from aerie.bench.gates.ages import read_ages
from aerie.bench.gates.data import Folder, Gate, Refused
from aerie.bench.gates.gate import read_gates
from aerie.bench.gates.parity import MATRIX, kernel_names
from aerie.bench.record import as_lines


def keep_columns(root: Path, staying: Container[str]) -> list[Path]:
    """Write a file for every column that figures were measured with and that does not stay.

    `staying` are the sources of the matrix that is about to be written.
    """
    path = root / "reports" / MATRIX
    if not path.is_file() or not (root / "gates").is_dir():
        return []
    folder = Folder(root / "reports", ages=read_ages(root))
    gates = [gate for gate in read_gates(root / "gates") if gate.parity]
    needed = {(gate.parity, name) for gate in gates for name in _names(gate, folder)}
    matrix = json.loads(path.read_text(encoding="utf-8"))
    kept = []
    for column in matrix["columns"]:
        sources, device = column["sources_sha256"], column["device"]
        if (column["backend"], sources) in needed and sources not in staying:
            kept.append(path.with_name(f"parity_earlier_{sources[:8]}_{device}.json"))
            kept[-1].write_text(as_lines({**matrix, "columns": [column]}), encoding="utf-8")
    return kept


def _names(gate: Gate, folder: Folder) -> set[str]:
    try:
        return {name for names in kernel_names(gate, folder) for name in names}
    except Refused:
        return set()  # without figures there is nothing to prove
