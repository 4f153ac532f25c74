"""Pages of this repository that tell what was measured: README.md, docs/measured.md, docs/gpu.md.

`aerie report` writes them, every figure from the records in reports/.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import Ages, Measured, read_newest
from aerie.bench.gates.gate import Verdict
from aerie.bench.peers import PEER, best_chains, ratios, speed
from aerie.bench.record import Row, line, page, read_json, read_rows
from aerie.bench.report.checks import OPEN, PASS, STALE, shown_floor
from aerie.bench.report.pages import OLDER, STALE_ROW, shown_changes
from aerie.bench.trace import bookkeeping_share

GPU_PAGE, RECORD = "docs/gpu.md", "reports/round_near_ties.json"
NAME = "near ties"
README, MEASURED = "README.md", "docs/measured.md"
PEERS = "reports/peers/served_*.jsonl.xz"
RIVAL = Path("reports/round_transformers.json")
SUMMARY = Path("reports/h200_baseline_summary.json")
BASELINE = Path("reports/h200_baseline_raw.csv.xz")
EXACT = Path("reports/round_exact.json")
# The long point whose texts loop least.
SHORT_TEXTS, ONE, LONG = "planner-fresh-32k", 1, 32768
Line = dict[str, Any]  # of the table: what `_ROW` has a place for
# What rows ran in that were written before the option had a name.
UNTOLD = "fast"
_ROW = (
    "| {where} | {plain} | {peer} | {aerie:,.0f} | {ratio:.2f} | {numerics}"
    " | {made[date]:.10}, `{made[commit]:.7}`{stale} |"
)
_PARTED = "| {name} | {n_parted} of {texts} | {rate:.1e} |"
_SIZE = "| {context:,} | {batch} | {plain} | {chain} | {parted} of {texts} |"
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
_SERVED_ROW = (
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


def spliced(text: str, name: str, made: str) -> str:
    """A page whose part of that name is made anew; the rest is written by hand."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n{made}{end}{rest.partition(end)[2]}"


def render_near_ties(root: Path) -> str:
    """The page with its tables made anew."""
    record = read_json(root / RECORD)
    steps: Counter[int] = Counter()
    rows = []
    for name, own in record["policies"].items():
        n_parted = own["texts"] - own["identical"]
        told = {"name": name, "n_parted": n_parted, "rate": n_parted / own["tokens"]}
        rows.append(_PARTED.format(**own, **told))
        # By how many steps the two choices of a text that parts lay apart.
        for entry in own["divergences"]:
            steps[round(entry["own_gap"] / (entry["gap"] / entry["gap_ulps"]))] += 1
    made = page(
        "near_ties",
        record,
        geometry=record["setup"]["geometry"] or "the pair as it ships",
        raw=RECORD,
        rows=rows,
        steps=", ".join(f"{steps[n]} at {n}" for n in sorted(steps)) or "none",
    )
    points = [
        _SIZE.format(**{**own, "plain": _rate(own["plain"]), "chain": _rate(own["chain 7"])})
        for own in record.get("by_size", ())
    ]
    made += page("near_ties_by_size", rows=points) if points else ""
    return spliced((root / GPU_PAGE).read_text(encoding="utf-8"), NAME, made)


def _rate(own: dict[str, Any]) -> str:
    return "not counted" if own["rate"] is None else f"{own['rate']:.1e} of {own['tokens']:,}"


def render_readme(root: Path, ages: Ages) -> str:
    """README.md with its table made anew."""
    served = served_run(root)
    rows = []
    for own in (*_transformers(root), *_short_texts(root), *_served(served)):
        measured = Measured(own["made"]["commit"], own["made"].get("source_sha256", ""))
        stale = STALE_ROW if ages.changed([measured], "gpu engine") else ""
        rows.append(_ROW.format_map({"plain": "", "peer": "", "stale": stale, **own}))
    told = (
        [f"Turns of the run over HTTP: {len({row['group'] for row in served})}."] if served else []
    )
    made = page("front", rows=rows) + "\n".join(["", *told, *_exact(root)]) + "\n"
    return spliced((root / README).read_text(encoding="utf-8"), "measured", made)


def _transformers(root: Path) -> list[Line]:
    """Plain decoding, ours and theirs, in turns in one process."""
    if not (root / RIVAL).is_file():
        return []
    raw = read_json(root / RIVAL)
    theirs = f"{1e3 / raw['transformers_ms']:,.0f} (transformers {raw['versions']['transformers']})"
    return [
        {
            "where": "in process, 1 × 1K, no drafts",
            "peer": theirs,
            "aerie": 1e3 / raw["aerie_ms"],
            "ratio": raw["ratio"],
            "numerics": raw["setup"].get("numerics", UNTOLD),
            "made": raw["provenance"],
        }
    ]


def _short_texts(root: Path) -> list[Line]:
    """The planner over our own plain decoding."""
    if not (root / SUMMARY).is_file():
        return []
    place = (SHORT_TEXTS, ONE, LONG)
    found = {
        point["policy"]: point
        for point in read_json(root / SUMMARY)["points"]
        if (point["scenario"], point["batch"], point["context"]) == place
    }
    if not {"plain", "planner"} <= set(found):
        return []
    own = found["planner"]
    return [
        {
            "where": f"in process, 1 × 32K, {own['mean_acceptance_length']:.1f} accepted a round",
            "plain": f"{found['plain']['tokens_per_second']:,.0f}",
            "aerie": own["tokens_per_second"],
            "ratio": own["ratio_to_plain"],
            "numerics": UNTOLD,
            "made": vars(read_newest(root / BASELINE)[place][-1]),
        }
    ]


def served_run(root: Path) -> list[Row]:
    """Rows of the last run in which aerie and a peer took turns; empty if there is none."""
    rows = [row for row in read_rows(sorted(root.glob(PEERS))) if row["kind"] == "served"]
    runs: dict[str, list[Row]] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    raced = [run for run, own in runs.items() if {_is_peer(row) for row in own} == {True, False}]
    return runs[max(raced)] if raced else []


def _is_peer(row: Row) -> bool:
    return bool(row["lane"].startswith(PEER))


def _served(run: Sequence[Row]) -> list[Line]:
    """Over HTTP beside the fastest of the peer's lanes, by number of clients."""
    rows = [row for row in run if row["point"].startswith("greedy")]
    rivals = best_chains(rows)
    found = []
    for one in ratios(rows):
        if one.base != rivals.get(one.point):
            continue
        own, theirs = (
            [row for row in rows if (row["point"], row["lane"]) == (one.point, lane)]
            for lane in (one.lane, one.base)
        )
        first, n_clients = own[0], own[0]["load"]["clients"]
        rival = f"vLLM {theirs[0]['server']['version']}, {one.base.removeprefix(PEER + 'chain')}"
        found.append(
            {
                "where": f"HTTP, {n_clients} client{'s' if n_clients > 1 else ''}, 1K prompts",
                "peer": f"{_middle(theirs):,.0f} ({rival} drafted)",
                "aerie": _middle(own),
                "ratio": one.value.median,
                "numerics": first["server"].get("numerics", UNTOLD),
                "made": first["made"],
            }
        )
    return found


def _middle(rows: Sequence[Row]) -> float:
    return statistics.median(speed(row) for row in rows)


def _exact(root: Path) -> list[str]:
    """What exact numerics keep of the speed of fast ones."""
    if not (root / EXACT).is_file():
        return []
    raw = read_json(root / EXACT)
    kept = [point["kept"] for point in raw["rounds"]]
    return [
        f"Exact numerics, the default there in bfloat16, keep {min(kept):.2f} to {max(kept):.2f}"
        f" of the speed of fast ones ([`{EXACT.name}`]({EXACT}), {len(kept)} points)."
    ]


def render_measured(root: Path, gates: Sequence[Verdict]) -> str:
    """The whole page."""
    parts = {
        "Speculation against plain decoding, one GPU": [render_gates(root, gates)],
        "One round, one GPU": [render_rounds(root)],
        "Served, beside vLLM": [_served_table(served_run(root))],
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


def _served_table(rows: Sequence[Row]) -> str:
    """Every load of the last run in which both took turns, with first tokens."""
    if not rows:
        return ""
    ordered = sorted(rows, key=lambda row: (row["point"].split()[0], row["load"]["clients"]))
    return page(
        "measured_served",
        made=rows[0]["made"],
        n_turns=len({row["group"] for row in rows}),
        rows=[_SERVED_ROW.format_map(row) for row in ordered],
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
