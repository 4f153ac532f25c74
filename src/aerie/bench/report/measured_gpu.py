"""The GPU part of docs/measured.md: captured rounds, losslessness and the gates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import read_newest
from aerie.bench.gates.gate import Verdict
from aerie.bench.report.checks import OPEN, PASS, STALE, shown_floor
from aerie.bench.report.pages import OLDER, shown_changes
from aerie.bench.round.profile import bookkeeping_share

BASELINE = Path("reports/h200_baseline_raw.csv.xz")
SUMMARY = Path("reports/h200_baseline_summary.json")
PICTURE = Path("reports/h200_planner.png")
SPEED = Path("reports/round_speed.json")
RIVAL = Path("reports/round_transformers.json")
LOSSLESS = Path("reports/round_lossless.json")
# Of all gates, what the page has room for.
SHOWN = (
    "full * single: spec-3 *",
    "full 16K x 4: spec-3 *",
    "32K single, short texts: *",
    "16K x 4: planner *",
    "planner over *",
)
Line = tuple[str, str, str, str]  # what, floor, measured, raw


def render_rounds(root: Path) -> str:
    """One round on a GPU, each figure from its own record; empty without a record of speed."""
    if not (root / SPEED).is_file():
        return ""
    speed = _read(root / SPEED)
    made = speed["provenance"]
    lines = [
        f"Captured rounds of the pair inflated to the Llama-3.1-8B geometry, {made['device']},"
        f" {speed['setup']['dtype']}, {speed['setup']['numerics']} numerics, batch 1, context"
        f" {speed['context']}, median of {speed['plain']['rounds']} rounds"
        f" (torch {made['torch']}, {made['date'][:10]}, commit {made['commit'][:10]}; kind:"
        " measured):",
        "",
        "| what | floor | measured | raw |",
        "|---|---:|---:|---|",
        *(f"| {' | '.join(line)} |" for line in (*_speed(speed), *_rival(root), *_lossless(root))),
    ]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def link(path: Path) -> str:
    """A file of the repository, from a page in docs/."""
    return f"[`{path.name}`](../{path})"


def _speed(speed: dict[str, Any]) -> list[Line]:
    floors, plain, whole = speed["floors"], speed["plain"], speed["round"]
    return [
        (
            "plain step: bytes over time, as a share of a copy's",
            f"≥ {floors['plain_share_of_ceiling']}",
            f"{speed['plain_share_of_ceiling']:.3f} ({plain['ms']:.2f} ms;"
            f" {plain['floor_ms']:.2f} at {speed['ceiling']['gbps']:,.0f} GB/s)",
            link(SPEED),
        ),
        (
            "round tax, 5 draft levels and 64 verified rows",
            f"≤ {floors['round_tax']}",
            f"{speed['round_tax']:.3f} ({whole['ms']:.2f} ms)",
            link(SPEED),
        ),
        (
            "tree bookkeeping, share of a round",
            f"≤ {floors['bookkeeping_share']:.0%}",
            f"{bookkeeping_share(speed['profile']['round'], whole['ms']):.1%}",
            link(SPEED),
        ),
    ]


def _rival(root: Path) -> list[Line]:
    if not (root / RIVAL).is_file():
        return []
    rival = _read(root / RIVAL)
    measured = (
        f"{rival['ratio']:.2f} times ({rival['aerie_ms']:.2f}, {rival['transformers_ms']:.2f} ms)"
    )
    what = "plain decoding over transformers, static cache and compile"
    return [(what, f"≥ {rival['floor']}", measured, link(RIVAL))]


def _lossless(root: Path) -> list[Line]:
    if not (root / LOSSLESS).is_file():
        return []
    found = _read(root / LOSSLESS)
    shown = [
        f"{name} {own['identical']} of {own['texts']}" for name, own in found["policies"].items()
    ]
    return [("texts equal to plain decoding, fp32", "all", ", ".join(shown), link(LOSSLESS))]


def render_gates(root: Path, found: Sequence[Verdict]) -> str:
    """The gates a reader asks about first, floor beside figure; empty while none has data."""
    shown = [gate for gate in found if any(fnmatch(gate.name, name) for name in SHOWN)]
    if all(gate.value is None for gate in shown):
        return ""
    n_passed = sum(gate.passed for gate in found)
    last = max((rows[-1] for rows in read_newest(root / BASELINE).values()), key=lambda r: r.date)
    lines = [
        f"Against plain decoding on one {last.device}, the pair inflated to the Llama-3.1-8B"
        f" geometry, bf16, fast numerics, held-out text, policies in turns (torch {last.torch},"
        f" {last.date[:10]}; kind: measured; commit in every row of {link(BASELINE)})."
        f" {n_passed} of {len(found)} gates pass; `aerie gates` shows them all.",
        "",
        "| gate | floor | measured | |",
        "|---|---:|---:|---|",
    ]
    for gate in shown:
        figure = "" if gate.value is None else f"{gate.value:.3f}"
        verdict = STALE if gate.changed else PASS
        if not gate.passed:
            verdict = OPEN if gate.value is None else f"**fail**: {gate.reason}"
        lines.append(f"| {gate.name} | {shown_floor(gate)} | {figure} | {verdict} |")
    changed = sorted({part for gate in shown for part in gate.changed})
    lines += ["", f"{OLDER}{shown_changes(changed)}"] if changed else []
    lines += ["", f"![the planner beside the best fixed policy](../{PICTURE})", "", _loops(root)]
    return "\n".join(lines) + "\n"


def _loops(root: Path) -> str:
    """How much of each text stood in it before: a loop is easy to draft."""
    shares = {
        point["scenario"]: point["repeated_8gram_share"]
        for point in _read(root / SUMMARY)["points"]
        if point["policy"] == "spec-3" and point["scenario"].startswith(("full", "fresh"))
    }
    shown = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return (
        "Greedy texts of the small target repeat themselves, which flatters acceptance; share of"
        f" 8-grams that stood in their text before, by scenario: {shown}."
    )
