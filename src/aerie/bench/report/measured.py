"""docs/measured.md: what was measured, every figure from the raw numbers in reports/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import read_newest
from aerie.bench.gates.gate import Verdict
from aerie.bench.record import Row
from aerie.bench.report.checks import OPEN, PASS, STALE, shown_floor
from aerie.bench.report.front import served_run
from aerie.bench.report.pages import OLDER, shown_changes
from aerie.bench.round.kernels import bookkeeping_share

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


PAGE = "docs/measured.md"
DECODING = Path("reports/compare_cpu.json")
# Short contexts, and those of 8,192 tokens.
ENGINES = (Path("reports/engine_bench_cpu.json"), Path("reports/engine_bench_cpu_8k.json"))
RAW = tuple(str(path) for path in (DECODING, *ENGINES))
_HEAD = """# Measured

Generated by `aerie report` from the raw rows in [`reports/`](../reports); nothing here is typed. A
figure whose sources have changed since it was measured is *stale* and says so. What each promise
rests on: [`scorecard.md`](../reports/scorecard.md); every raw file with its hash, commit and
command: [`manifest.csv`](../reports/manifest.csv); how to measure it again:
[operator.md](operator.md).

No 8B checkpoint ships with aerie. Its built-in pair, a target of 11M parameters and an EAGLE-3 head
trained for it, is embedded exactly into the Llama-3.1-8B geometry
([how](decisions/0004-inflated-geometry.md)): speeds are of this geometry, acceptance is of the
built-in pair.
"""


def render(root: Path, gates: Sequence[Verdict]) -> str:
    """The whole page."""
    decoding = json.loads((root / DECODING).read_text(encoding="utf-8"))
    engines = [_engine(json.loads((root / p).read_text(encoding="utf-8")), p) for p in ENGINES]
    parts = {
        "Speculation against plain decoding, one GPU": [render_gates(root, gates)],
        "One round, one GPU": [render_rounds(root)],
        "Served, beside vLLM": [_served(served_run(root))],
        "On a CPU": [_decoding(decoding), *engines],
    }
    sections = [_HEAD]
    for title, own in parts.items():
        told = [part for part in own if part]
        sections += [f"## {title}\n", *told] if told else []
    return "\n".join(sections)


def _served(rows: Sequence[Row]) -> str:
    """Every load of the last run in which both took turns, with first tokens."""
    if not rows:
        return ""
    made, turns = rows[0]["made"], {row["group"] for row in rows}
    lines = [
        f"The last run in which both were loaded on one machine ({made['device']}, bfloat16,"
        f" {made['date'][:10]}, commit {made['commit'][:10]}, turns: {len(turns)}; kind: measured;"
        " raw: [`reports/peers/`](../reports/peers)). Fresh prompts of 1K, 200 tokens out, client"
        " and server on the same machine; *sampled*: temperature 0.8, top-p 0.95; *first*: the"
        " first requests after a server is ready. `chainN` drafts N tokens. A p99 of seconds in the"
        " first sampled load is a server that compiles under it.",
        "",
        "| load, clients | lane | tokens/s | first text p50, p99 ms | accepted a round | errors |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: (row["point"].split()[0], row["load"]["clients"])):
        wait = row["ttft_ms"]
        lines.append(
            f"| {row['point']} | {row['lane']} | {row['tokens_per_second']:,.0f} |"
            f" {wait['p50']:.0f}, {wait['p99']:.0f} | {row['acceptance_length']:.2f} |"
            f" {row['errors']} |"
        )
    return "\n".join(lines) + "\n"


def _decoding(raw: dict[str, Any]) -> str:
    made, speeds, passes = raw["provenance"], raw["tokens_per_second"], raw["target_passes"]
    lines = [
        f"The built-in pair on a CPU, greedy, {raw['tokens']} tokens,"
        f" {_policy(raw.get('policy'))}, median of {raw['repeats']} interleaved pairs"
        f" ({made['device']}, {made['threads']} thread, torch"
        f" {made['torch']}, {made['date'][:10]}, commit {made['commit'][:10]}; kind: measured; raw:"
        f" {link(DECODING)}):",
        "",
        "| | plain | speculative |",
        "|---|---:|---:|",
        f"| tokens/s | {speeds['plain']:.0f} | {speeds['speculative']:.0f} |",
        f"| target passes | {passes['plain']} | {passes['speculative']} |",
        "",
        f"{raw['ratio']:.2f} times plain decoding at an acceptance length of"
        f" {raw['mean_acceptance_length']:.2f} and a round tax of {raw['round_tax']:.2f}; all"
        f" tokens {'identical' if raw['identical'] else 'NOT identical'}. The prompt is the demo's,"
        " and its text repeats itself, which flatters acceptance; the model card has held-out"
        " text.",
    ]
    return "\n".join(lines) + "\n"


def _policy(policy: dict[str, Any] | None) -> str:
    """What drafted, as the record says it; older records do not."""
    if policy is None:
        return "draft policy not recorded"
    if policy["name"] != "fixed":
        return {"planner": "planned trees", "cast": "CAST trees"}[policy["name"]]
    if policy["top_k"] == 1:
        return f"a chain of {policy['depth']}"
    return f"trees of {policy['depth']} levels and {policy['nodes']} rows"


def _engine(raw: dict[str, Any], path: Path) -> str:
    made = raw["provenance"]
    speeds = {(p["batch"], p["context"], p["policy"]): p for p in raw["points"]}
    lines = [
        f"Tokens per second over plain decoding on held-out text, all policies in turns, medians of"
        f" {raw['contract']['repeats']} with 90 % intervals ({made['device']}, {made['threads']}"
        f" thread, {made['date'][:10]}, commit {made['commit'][:10]}; kind: measured; raw:"
        f" {link(path)}):",
        "",
        "| batch | context | chain 5 | best fixed tree | CAST | planner | accepted | regret |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for place in raw["planner"]:
        where = (place["batch"], place["context"])
        found = speeds[*where, "planner"]
        best = place["best_fixed"]
        lines.append(
            f"| {where[0]} | {where[1]} | {speeds[*where, 'chain5']['ratio_to_plain']:.2f}"
            f" | {speeds[*where, best]['ratio_to_plain']:.2f} ({best})"
            f" | {speeds[*where, 'cast']['ratio_to_plain']:.2f}"
            f" | **{found['ratio_to_plain']:.2f}** ({found['ratio_low']:.2f} to"
            f" {found['ratio_high']:.2f}) | {found['mean_acceptance_length']:.2f}"
            f" | {100 * place['regret']:.1f} % |"
        )
    rival = raw["plain_to_transformers"]
    if rival is not None:
        lines += [
            "",
            f"Plain decoding itself runs at {rival['median']:.2f} ({rival['low']:.2f} to"
            f" {rival['high']:.2f}) times the speed of transformers' generate, batch 1.",
        ]
    return "\n".join(lines) + "\n"
