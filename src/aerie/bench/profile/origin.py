"""What every row of a profile carries: options, commit, source hash, device, versions, date."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from aerie.bench.packed import as_lines, open_rows
from aerie.bench.profile.energy import device_facts
from aerie.bench.provenance import provenance

# Columns a raw row repeats; the JSON beside it has everything.
COLUMNS = ("contract", "commit", "source_sha256", "device", "driver", "torch", "triton", "sm_mhz",
           "memory_mhz", "date")  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where a run's numbers come from."""

    options: Mapping[str, Any]  # all that is needed to run it again
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any], device: str) -> Origin:
        """Read here and now."""
        text = json.dumps(options, sort_keys=True)
        has_triton = importlib.util.find_spec("triton") is not None
        facts = {
            **provenance(device),
            **device_facts(device),
            "triton": metadata.version("triton") if has_triton else None,
            "contract": hashlib.sha256(text.encode()).hexdigest(),
        }
        return cls(dict(options), facts)

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return {"options": dict(self.options), "provenance": dict(self.facts)}

    def write_csv(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows with the columns of provenance behind their own."""
        own = {name: self.facts.get(name) for name in COLUMNS}
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_rows(path, "wt") as file:
            writer = csv.DictWriter(file, [*(rows[0] if rows else ()), *own], lineterminator="\n")
            writer.writeheader()
            writer.writerows({**row, **own} for row in rows)

    def lines(self) -> list[str]:
        """The same for the end of a page."""
        facts = self.facts
        versions = f"torch {facts['torch']}, triton {facts['triton']}, driver {facts['driver']}"
        return [
            f"{facts['device']}, {versions}; commit {facts['commit']}, {facts['date']}.",
            f"Options: `{json.dumps(self.options, sort_keys=True)}`.",
        ]


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """One report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_lines(values), encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(str(value) for value in row) + " |" for row in rows)]
