"""The tables of README.md and docs/gpu.md, spliced into pages written by hand."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import Ages, Measured, read_newest
from aerie.bench.peers import PEER, best_chains, ratios, speed
from aerie.bench.record import Row, page, read_json, read_rows
from aerie.bench.report.pages import STALE_ROW

GPU_PAGE, RECORD = "docs/gpu.md", "reports/round_near_ties.json"
NAME = "near ties"
PAGE = "README.md"
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


def render(root: Path, ages: Ages) -> str:
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
    return spliced((root / PAGE).read_text(encoding="utf-8"), "measured", made)


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
