"""docs/measured.md: what was measured, every figure from the raw numbers in reports/."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import read_newest
from aerie.bench.gates.gate import Verdict
from aerie.bench.record import Row, line, page, read_json
from aerie.bench.report.checks import OPEN, PASS, STALE, shown_floor
from aerie.bench.report.front import BASELINE, RIVAL, SUMMARY, served_run
from aerie.bench.report.pages import OLDER, shown_changes
from aerie.bench.trace import bookkeeping_share

PAGE = "docs/measured.md"
SPEED, LOSSLESS = Path("reports/round_speed.json"), Path("reports/round_lossless.json")
DECODING = Path("reports/compare_cpu.json")
# Short contexts, and those of 8,192 tokens.
ENGINES = (Path("reports/engine_bench_cpu.json"), Path("reports/engine_bench_cpu_8k.json"))
RAW = tuple(str(path) for path in (DECODING, *ENGINES))
# Of all gates, what the page has room for.
SHOWN = (
    "full * single: spec-3 *",
    "full 16K x 4: spec-3 *",
    "32K single, short texts: *",
    "16K x 4: planner *",
    "planner over *",
)
_SERVED = (
    "| {point} | {lane} | {tokens_per_second:,.0f} | {ttft_ms[p50]:.0f}, {ttft_ms[p99]:.0f} |"
    " {acceptance_length:.2f} | {errors} |"
)
_SPEED = (
    "| plain step: bytes over time, as a share of a copy's | ≥ {floors[plain_share_of_ceiling]}"
    " | {plain_share_of_ceiling:.3f} ({plain[ms]:.2f} ms; {plain[floor_ms]:.2f} at"
    " {ceiling[gbps]:,.0f} GB/s) | {link} |",
    "| round tax, 5 draft levels and 64 verified rows | ≤ {floors[round_tax]}"
    " | {round_tax:.3f} ({round[ms]:.2f} ms) | {link} |",
    "| tree bookkeeping, share of a round | ≤ {floors[bookkeeping_share]:.0%}"
    " | {bookkeeping:.1%} | {link} |",
)
_RIVAL = (
    "| plain decoding over transformers, static cache and compile | ≥ {floor}"
    " | {ratio:.2f} times ({aerie_ms:.2f}, {transformers_ms:.2f} ms) | {link} |"
)
_PLACE = (
    "| {batch} | {context} | {chain5[ratio_to_plain]:.2f}"
    " | {fixed[ratio_to_plain]:.2f} ({best_fixed}) | {cast[ratio_to_plain]:.2f}"
    " | **{planner[ratio_to_plain]:.2f}** ({planner[ratio_low]:.2f} to {planner[ratio_high]:.2f})"
    " | {planner[mean_acceptance_length]:.2f} | {percent:.1f} % |"
)
_TO_PEER = "plain_to_transformers"
_PEER = (
    "\nPlain decoding itself runs at {median:.2f} ({low:.2f} to {high:.2f}) times the speed of"
    " transformers' generate, batch 1.\n"
)


def render(root: Path, gates: Sequence[Verdict]) -> str:
    """The whole page."""
    parts = {
        "Speculation against plain decoding, one GPU": [render_gates(root, gates)],
        "One round, one GPU": [render_rounds(root)],
        "Served, beside vLLM": [_served(served_run(root))],
        "On a CPU": [_decoding(root), *(render_engine(root / p, p) for p in ENGINES)],
    }
    sections = [page("measured")]
    for title, own in parts.items():
        told = [part for part in own if part]
        sections += [f"## {title}\n", *told] if told else []
    return "\n".join(sections)


def link(path: Path) -> str:
    """A file of the repository, from a page in docs/."""
    return f"[`{path.name}`](../{path})"


def render_rounds(root: Path) -> str:
    """One round on a GPU, each figure from its own record; empty without a record of speed."""
    if not (root / SPEED).is_file():
        return ""
    speed = read_json(root / SPEED)
    share = bookkeeping_share(speed["profile"]["round"], speed["round"]["ms"])
    rows = [own.format(**speed, bookkeeping=share, link=link(SPEED)) for own in _SPEED]
    if (root / RIVAL).is_file():
        rows.append(_RIVAL.format(**read_json(root / RIVAL), link=link(RIVAL)))
    if (root / LOSSLESS).is_file():
        policies = read_json(root / LOSSLESS)["policies"].items()
        equal = (f"{name} {own['identical']} of {own['texts']}" for name, own in policies)
        what = "texts equal to plain decoding, fp32"
        rows.append(line((what, "all", ", ".join(equal), link(LOSSLESS))))
    return page("measured_rounds", speed, made=speed["provenance"], rows=rows)


def render_gates(root: Path, found: Sequence[Verdict]) -> str:
    """The gates a reader asks about first, floor beside figure; empty while none has data."""
    shown = [gate for gate in found if any(fnmatch(gate.name, name) for name in SHOWN)]
    if all(gate.value is None for gate in shown):
        return ""
    changed = sorted({part for gate in shown for part in gate.changed})
    newest = read_newest(root / BASELINE).values()
    return page(
        "measured_gates",
        last=max((rows[-1] for rows in newest), key=lambda row: row.date),
        raw=link(BASELINE),
        n_passed=sum(gate.passed for gate in found),
        n_gates=len(found),
        rows=[_gate(gate) for gate in shown],
        older=f"{OLDER}{shown_changes(changed)}\n\n" if changed else "",
        loops=_loops(root),
    )


def _gate(gate: Verdict) -> str:
    figure = "" if gate.value is None else f"{gate.value:.3f}"
    verdict = STALE if gate.changed else PASS
    if not gate.passed:
        verdict = OPEN if gate.value is None else f"**fail**: {gate.reason}"
    return line((gate.name, shown_floor(gate), figure, verdict))


def _loops(root: Path) -> str:
    """How much of each text stood in it before: a loop is easy to draft."""
    shares = {
        point["scenario"]: point["repeated_8gram_share"]
        for point in read_json(root / SUMMARY)["points"]
        if point["policy"] == "spec-3" and point["scenario"].startswith(("full", "fresh"))
    }
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def _served(rows: Sequence[Row]) -> str:
    """Every load of the last run in which both took turns, with first tokens."""
    if not rows:
        return ""
    ordered = sorted(rows, key=lambda row: (row["point"].split()[0], row["load"]["clients"]))
    return page(
        "measured_served",
        made=rows[0]["made"],
        n_turns=len({row["group"] for row in rows}),
        rows=[_SERVED.format_map(row) for row in ordered],
    )


def _decoding(root: Path) -> str:
    raw = read_json(root / DECODING)
    said = "identical" if raw["identical"] else "NOT identical"
    drafted = _policy(raw["policy"])
    return page("measured_cpu", raw, said=said, drafted=drafted, raw=link(DECODING))


def _policy(policy: dict[str, Any]) -> str:
    """What drafted, as the record says it."""
    if policy["name"] != "fixed":
        return {"planner": "planned trees", "cast": "CAST trees"}[policy["name"]]
    if policy["top_k"] == 1:
        return f"a chain of {policy['depth']}"
    return f"trees of {policy['depth']} levels and {policy['nodes']} rows"


def render_engine(path: Path, name: Path) -> str:
    """The planner beside its rivals, by `aerie bench engine`."""
    raw = read_json(path)
    speeds = {(p["batch"], p["context"], p["policy"]): p for p in raw["points"]}
    rows = []
    for place in raw["planner"]:
        own = {
            n: speeds[place["batch"], place["context"], n] for n in ("chain5", "cast", "planner")
        }
        fixed = speeds[place["batch"], place["context"], place["best_fixed"]]
        rows.append(_PLACE.format(**place, **own, fixed=fixed, percent=100 * place["regret"]))
    made, rival = page("measured_engine", raw, raw=link(name), rows=rows), raw[_TO_PEER]
    return made + (_PEER.format_map(rival) if rival else "")
