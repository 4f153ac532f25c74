"""The tables of README.md and docs/gpu.md, spliced into pages written by hand."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.bench.gates.data import Ages, Measured, read_newest
from aerie.bench.peers import PEER, best_chains, ratios, speed
from aerie.bench.record import Row, read_json, read_rows
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
# What rows ran in that were written before the option had a name.
UNTOLD = "fast"
_HEAD = (
    "| greedy, tokens/s | plain | peer | aerie | aerie over | numerics | measured |",
    "|---|---:|---:|---:|---:|---|---|",
)


def spliced(page: str, name: str, made: str) -> str:
    """A page whose part of that name is made anew; the rest is written by hand."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{made}{end}{rest.partition(end)[2]}"


def render_near_ties(root: Path) -> str:
    """The page with its tables made anew."""
    record = read_json(root / RECORD)
    text = (root / GPU_PAGE).read_text(encoding="utf-8")
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


@dataclass(frozen=True)
class Line:
    """One row of the table; `plain` or `peer` is what aerie is divided by."""

    where: str
    plain: str
    peer: str
    aerie: float
    ratio: float
    numerics: str
    made: dict[str, Any]

    def render(self, ages: Ages) -> str:
        """The row, which says whether the sources were changed since."""
        measured = Measured(self.made["commit"], self.made.get("source_sha256", ""))
        is_stale = bool(ages.changed([measured], "gpu engine"))
        when = f"{self.made['date'][:10]}, `{self.made['commit'][:7]}`"
        cells = (
            self.where,
            self.plain,
            self.peer,
            f"{self.aerie:,.0f}",
            f"{self.ratio:.2f}",
            self.numerics,
            when + (STALE_ROW if is_stale else ""),
        )
        return f"| {' | '.join(cells)} |"


def render(root: Path, ages: Ages) -> str:
    """README.md with its table made anew."""
    text = (root / PAGE).read_text(encoding="utf-8")
    served = served_run(root)
    lines = [*_transformers(root), *_short_texts(root), *_served(served)]
    table = [*_HEAD, *(line.render(ages) for line in lines), ""]
    n_turns = len({row["group"] for row in served})
    table += [f"Turns of the run over HTTP: {n_turns}."] if served else []
    return spliced(text, "measured", "\n".join([*table, *_exact(root)]) + "\n")


def _transformers(root: Path) -> list[Line]:
    """Plain decoding, ours and theirs, in turns in one process."""
    if not (root / RIVAL).is_file():
        return []
    raw = read_json(root / RIVAL)
    peer = f"{1e3 / raw['transformers_ms']:,.0f} (transformers {raw['versions']['transformers']})"
    numerics = raw["setup"].get("numerics", UNTOLD)
    speed = 1e3 / raw["aerie_ms"]
    where = "in process, 1 × 1K, no drafts"
    return [Line(where, "", peer, speed, raw["ratio"], numerics, raw["provenance"])]


def _short_texts(root: Path) -> list[Line]:
    """The planner over our own plain decoding."""
    if not (root / SUMMARY).is_file():
        return []
    points = read_json(root / SUMMARY)["points"]
    place = (SHORT_TEXTS, ONE, LONG)
    found = {
        point["policy"]: point
        for point in points
        if (point["scenario"], point["batch"], point["context"]) == place
    }
    if not {"plain", "planner"} <= set(found):
        return []
    row = read_newest(root / BASELINE)[place][-1]
    made = {"commit": row.commit, "source_sha256": row.source_sha256, "date": row.date}
    plain, own = found["plain"]["tokens_per_second"], found["planner"]
    return [
        Line(
            f"in process, 1 × 32K, {own['mean_acceptance_length']:.1f} accepted a round",
            f"{plain:,.0f}",
            "",
            own["tokens_per_second"],
            own["ratio_to_plain"],
            UNTOLD,
            made,
        )
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
            Line(
                f"HTTP, {n_clients} client{'s' if n_clients > 1 else ''}, 1K prompts",
                "",
                f"{_middle(theirs):,.0f} ({rival} drafted)",
                _middle(own),
                one.value.median,
                first["server"].get("numerics", UNTOLD),
                first["made"],
            )
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
