"""The tables of near ties in docs/gpu.md, from what `aerie bench round` recorded of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from aerie.bench.report.splice import spliced

PAGE, RECORD = "docs/gpu.md", "reports/round_near_ties.json"
NAME = "near ties"


def render(root: Path) -> str:
    """The page with its tables made anew."""
    record = json.loads((root / RECORD).read_text(encoding="utf-8"))
    text = (root / PAGE).read_text(encoding="utf-8")
    made = record["provenance"]
    where = f"{made['device']}, {record['setup']['geometry'] or 'the pair as it ships'}"
    head = (
        f"{where}, {record['dtype']}, fast numerics, greedy, {made['date'][:10]}, commit"
        f" {made['commit'][:10]} (`{RECORD}`):\n"
    )
    parts = [head, _parted(record)]
    if record.get("by_size"):
        parts.append(_by_size(record["by_size"]))
    return spliced(text, NAME, "\n".join(parts))


def _parted(record: dict[str, Any]) -> str:
    """Texts that part from plain decoding, and by how many steps their two choices lay apart."""
    lines = ["| policy | texts that part from plain | near ties that turned, a token |"]
    lines.append("|---|---:|---:|")
    steps: Counter[int] = Counter()
    for name, own in record["policies"].items():
        n_parted, n_texts = own["texts"] - own["identical"], own["texts"]
        rate = n_parted / own["tokens"]
        lines.append(f"| {name} | {n_parted} of {n_texts} | {rate:.1e} |")
        for entry in own["divergences"]:
            step = entry["gap"] / entry["gap_ulps"]
            steps[round(entry["own_gap"] / step)] += 1
    shown = ", ".join(f"{steps[n]} at {n}" for n in sorted(steps)) or "none"
    lines += ["", f"Steps of the dtype between the two choices, by its own pass: {shown}."]
    return "\n".join(lines) + "\n"


def _by_size(points: list[dict[str, Any]]) -> str:
    """What engines counted, beside the texts that parted."""
    lines = ["| context | batch | near ties, plain | near ties, chain of 7 | texts that part |"]
    lines.append("|---:|---:|---:|---:|---:|")
    lines += [
        f"| {p['context']:,} | {p['batch']} | {_rate(p['plain'])} | {_rate(p['chain 7'])}"
        f" | {p['parted']} of {p['texts']} |"
        for p in points
    ]
    return "\n".join(lines) + "\n"


def _rate(own: dict[str, Any]) -> str:
    return "not counted" if own["rate"] is None else f"{own['rate']:.1e} of {own['tokens']:,}"
