"""Keeps the measured table of README.md equal to the raw numbers in reports/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerie.bench.gates.gate import Verdict
from aerie.bench.report.readme_gpu import render_gates, render_rounds

DECODING = Path("reports/compare_cpu.json")
# Short contexts, and those of 8,192 tokens.
ENGINES = (Path("reports/engine_bench_cpu.json"), Path("reports/engine_bench_cpu_8k.json"))


def render(root: Path, gates: Sequence[Verdict]) -> str:
    """README.md of a checkout with its measured table made anew."""
    text = (root / "README.md").read_text(encoding="utf-8")
    decoding = json.loads((root / DECODING).read_text(encoding="utf-8"))
    engines = [_engine(json.loads((root / p).read_text(encoding="utf-8")), p) for p in ENGINES]
    parts = (render_gates(root, gates), render_rounds(root), _decoding(decoding), *engines)
    tables = "\n".join(part for part in parts if part)
    return spliced(text, "measured", tables)


def spliced(page: str, name: str, made: str) -> str:
    """A page whose part of that name is made anew; the rest is written by hand."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{made}{end}{rest.partition(end)[2]}"


def _decoding(raw: dict[str, Any]) -> str:
    made, speeds, passes = raw["provenance"], raw["tokens_per_second"], raw["target_passes"]
    lines = [
        f"The built-in pair on a CPU, greedy, {raw['tokens']} tokens,"
        f" {_policy(raw.get('policy'))}, median of {raw['repeats']} interleaved pairs"
        f" ({made['device']}, {made['threads']} thread, torch"
        f" {made['torch']}, {made['date'][:10]}, commit {made['commit'][:10]}; kind: measured; raw:"
        f" [`{DECODING}`]({DECODING})):",
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
        f" [`{path}`]({path})):",
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
