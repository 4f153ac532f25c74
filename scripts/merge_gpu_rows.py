"""Adds the raw rows of further GPU calls to those of the repository.

    python scripts/merge_gpu_rows.py reports/h200_baseline_raw.csv.xz CALL.csv.xz [CALL.csv.xz ...]

Every call of `scripts/bench_gpu_matrix.sh` begins with the repository's rows, so that each brings
them again. A point that was cut off, with fewer turns than nine or not the same number of every
policy, is left out and named.
"""

from __future__ import annotations

import csv
import lzma
import sys
from collections import Counter, defaultdict
from pathlib import Path

TURNS = 9
POINT = ("session", "scenario", "batch", "context")


def read(path: Path) -> list[dict[str, str]]:
    """Rows by column."""
    with lzma.open(path, "rt", newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def main() -> None:
    """Append what is new and whole."""
    base, *calls = (Path(name) for name in sys.argv[1:])
    rows = read(base)
    known = {tuple(row.values()) for row in rows}
    for call in calls:
        points: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
        for row in read(call):
            if tuple(row.values()) not in known:
                points[tuple(row[name] for name in POINT)].append(row)
        for point, own in points.items():
            turns = Counter(row["policy"] for row in own)
            is_whole = len(set(turns.values())) == 1 and max(turns.values()) >= TURNS
            print(*point[1:], dict(turns), "" if is_whole else "left out", flush=True)
            if is_whole:
                rows += own
                known |= {tuple(row.values()) for row in own}
    with lzma.open(base, "wt", preset=9, newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
