"""Prints rows of peers as tables: speeds by lane, equal texts, time to ready, ratios by group."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

GREEDY = {"temperature": 0.0}
# What a served row is compared by beside its speed, and which of its percentiles; less is better.
WAITS = {
    "TTFT, median": ("ttft_ms", "p50"),
    "TTFT, p99": ("ttft_ms", "p99"),
    "gap, p99": ("gap_ms", "p99"),
    "gap by its tokens, p99": ("gap_per_token_ms", "p99"),
}
Cells = Mapping[tuple[str, str], Sequence[Any]]


def print_tables(files: Iterable[Path]) -> None:
    """Everything these files tell."""
    from aerie.bench.peers import best_chains
    from aerie.bench.record import read_rows

    by_kind: dict[str, list[Any]] = defaultdict(list)
    for row in read_rows(files):
        by_kind[row["kind"]].append(row)
    decode = [{**row, "point": _point(row)} for row in by_kind["decode"]]
    served = by_kind["served"]
    _grid("Seconds until ready: median", _cells(by_kind["ready"], lambda row: "ready"), _seconds)
    _grid("Decode tokens/s: median (least..most), acceptance length", _cells(decode), _speed)
    _grid("First token of a fresh group, ms: median", _cells(decode), _fresh)
    _grid("First token, prompts cached, ms: median", _cells(decode), _one)
    _same_texts(decode)
    for point, lane in best_chains(decode).items():
        print(f"fastest of vLLM at {point}: {lane}")
    _ratios("Decode tokens/s", decode)
    _means([row for row in decode if row["sampling"] == GREEDY])
    _grid("Served tokens/s: median, acceptance length; errors", _cells(served), _served)
    _ratios("Served tokens/s", served)
    for name, (figure, percentile) in WAITS.items():
        known = [{**row, "wait": row[figure][percentile]} for row in served if row[figure]]
        _grid(f"Served: {name}, ms: median", _cells(known), _wait)
        _ratios(name, known, lambda row: float(row["wait"]))


def _point(row: Mapping[str, Any]) -> str:
    """The point; one that is not greedy says so."""
    is_greedy = row["sampling"] == GREEDY
    return str(row["point"]) if is_greedy else f"{row['point']} {json.dumps(row['sampling'])}"


def _cells(rows: Iterable[Any], line: Callable[[Any], str] = lambda row: row["point"]) -> Cells:
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        found[line(row), row["lane"]].append(row)
    return found


def _grid(title: str, cells: Cells, show: Callable[[Sequence[Any]], str]) -> None:
    if not cells:
        return
    lines, lanes = (list(dict.fromkeys(key[axis] for key in cells)) for axis in (0, 1))
    print(f"\n{title}\n\n| | {' | '.join(lanes)} |\n|---|{'---|' * len(lanes)}")
    for line in lines:
        shown = [show(cells[line, lane]) if (line, lane) in cells else "-" for lane in lanes]
        print(f"| {line} | {' | '.join(shown)} |")


def _ratios(title: str, rows: Sequence[Any], value: Callable[[Any], float] | None = None) -> None:
    """Ours over the peer's, by group, with a 90 % interval."""
    from aerie.bench.peers import ratios, speed

    found = ratios(rows, value or speed)
    if not found:
        return
    print(f"\n{title}: ours over the peer's, by group\n\n| point | ours | peer | groups | ratio |")
    print("|---|---|---|---|---|")
    for one in found:
        span = f"{one.value.median:.3f} ({one.value.low:.3f}..{one.value.high:.3f})"
        print(f"| {one.point} | {one.lane} | {one.base} | {one.n_groups} | {span} |")


def _means(rows: Sequence[Any]) -> None:
    """Of greedy points together."""
    from aerie.bench.peers import geometric_means, ratios

    for (lane, is_plain), mean in geometric_means(ratios(rows)).items():
        rival = "plain decoding" if is_plain else "the fastest chain at each point"
        print(f"{lane} over {rival}, greedy: geometric mean {mean:.3f}")


def _same_texts(decode: Iterable[Any]) -> None:
    """Texts equal to those of the first lane; a near tie parts two engines in bf16."""
    texts = {(row["point"], row["group"], row["lane"]): row["ids"] for row in decode if row["ids"]}
    first = next(iter(texts), ("", 0, ""))[2]
    same: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for (point, group, lane), ids in texts.items():
        rival = texts.get((point, group, first))
        if rival is not None:
            same[point, lane] += [own == other for own, other in zip(ids, rival, strict=True)]
    _grid(f"Texts equal to those of {first}", same, lambda own: f"{sum(own)} of {len(own)}")


def _speed(rows: Sequence[Any]) -> str:
    speeds = [row["tokens_per_second"] for row in rows]
    length = statistics.median(row["acceptance_length"] for row in rows)
    middle = statistics.median(speeds)
    return f"{middle:.0f} ({min(speeds):.0f}..{max(speeds):.0f}), {length:.2f}"


def _seconds(rows: Sequence[Any]) -> str:
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in rows[-1]["phases"].items())
    seconds = statistics.median(row["seconds"] for row in rows)
    return f"{seconds:.1f}" + (f" ({phases})" if phases else "")


def _fresh(rows: Sequence[Any]) -> str:
    return f"{1e3 * statistics.median(row['fresh_s'] for row in rows if row['turn'] == 0):.0f}"


def _one(rows: Sequence[Any]) -> str:
    return f"{1e3 * statistics.median(row['one_s'] for row in rows):.0f}"


def _served(rows: Sequence[Any]) -> str:
    middle = statistics.median(row["tokens_per_second"] for row in rows)
    lengths = [row["acceptance_length"] for row in rows if row["acceptance_length"]]
    length = f", {statistics.median(lengths):.2f}" if lengths else ""
    return f"{middle:.0f}{length}; {sum(row['errors'] for row in rows)}"


def _wait(rows: Sequence[Any]) -> str:
    return f"{statistics.median(row['wait'] for row in rows):.1f}"
