"""A speed counts only for kernels that were proven: all cases passed, of the sources that ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import Folder, Gate, Refused

MATRIX = "p0_parity_matrix.json"
# Columns of kernels that were measured and have changed since stay beside the matrix.
EARLIER = "parity_earlier_*.json"


def require_parity(gate: Gate, folder: Folder) -> None:
    """Refuse a figure whose kernels have no whole column in the matrix or beside it."""
    own = [column for column in _columns(folder.root) if column["backend"] == gate.parity]
    if not own:
        raise Refused(f"the parity matrix has no column of {gate.parity}")
    for column in own:
        passed = sum(cell["passed"] for cell in column["cells"])
        n_cases = sum(cell["cases"] for cell in column["cells"])
        if column["failed"] or passed < n_cases:
            raise Refused(f"parity of {gate.parity}: {passed} of {n_cases} cases")
    proven = {column["sources_sha256"] for column in own}
    if not all(proven & names for names in kernel_names(gate, folder)):
        raise Refused(f"the parity matrix of {gate.parity} is of other kernel sources")


def kernel_names(gate: Gate, folder: Folder) -> list[set[str]]:
    """For every kind of kernels a gate's figures were measured with, the hashes it goes by.

    Records carry the hash of the day they were made, which was of bytes once and is of syntax
    trees now; the second is found by the commit.
    """
    if gate.check == "record":
        record = folder.record(gate.file)
        given = {(str(record.get("kernel_sha256", "")), str(record["provenance"]["commit"]))}
    else:
        rows = [row for own in folder.places(gate).values() for row in own]
        given = {(row.kernel_sha256, row.commit) for row in rows}
    backend = gate.parity or ""
    return [
        {kernels, folder.ages.backend_at(commit, backend)} - {""}
        for kernels, commit in given
        if kernels
    ]


def _columns(root: Path) -> list[Mapping[str, Any]]:
    """Columns of the parity matrix, and of earlier kernels that figures were measured with."""
    if not (root / MATRIX).is_file():
        raise Refused(f"{MATRIX} does not exist")
    files = [root / MATRIX, *sorted(root.glob(EARLIER))]
    return [c for path in files for c in json.loads(path.read_text(encoding="utf-8"))["columns"]]
