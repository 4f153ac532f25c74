"""Decode with two source trees in turns, on a CPU: every turn is a fresh process of each.

    git worktree add ../before COMMIT
    PYTHONPATH=src python scripts/round_before_after.py ../before/src src --commits COMMIT HEAD

Both trees decode the same held-out prompts with the same weights (those of this checkout) on one
thread, greedily; prompts are read before the clock starts. A page, cpu_round_before_after.md, and
raw/cpu_round_before_after.json.xz have tokens a second of the later tree over the earlier one, turn
by turn, with a 90 % interval.
`--points "plain 1 512" ...` runs some points only, `--name` writes them to files of another name,
and of `--decodes` in a turn the fastest counts: where neighbours take turns with the machine, one
decode says little.
The last line is the verdict: medians of at least 0.97, no interval wholly below 0.95; where a point
misses that, the median over all points of at least 0.95 is what was agreed on.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
PAIR = ROOT / "src" / "aerie" / "assets" / "pair"
BATCHES, CONTEXTS = (1, 4, 16), (512, 8192)
PAGE, SPARE = 16, 512  # positions of a page, and of a request beyond its prompt
TOKENS, LEAST = 256, 64  # new tokens of all requests together, and of each at least
WARM = 8  # new tokens of each before that: their prompts are read by then
# A cost table of its own would be measured by either tree, and plans would differ by it.
COSTS = ROOT / "tests" / "data" / "costs_cheap.json"
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "none"},
    "chain5": {"top_k": 1, "depth": 5, "nodes": 6},
    "tree16": {"top_k": 8, "depth": 5, "nodes": 16},
    "planner": {"policy": "planner"},
}
MEDIAN, WHOLLY = 0.97, 0.95


def child(asked_file: Path) -> None:
    """One turn in this process's own tree: tokens and seconds of every point, as a JSON line."""
    import torch

    from aerie.api import Engine

    torch.set_num_threads(1)
    asked = json.loads(asked_file.read_text(encoding="utf-8"))
    prompts, n_decodes, found = asked["prompts"], asked["decodes"], dict[str, Any]()
    for method, speculation in METHODS.items():
        for context in prompts:
            batches = [b for b in BATCHES if f"{method} {b} {context}" in asked["points"]]
            if not batches:
                continue
            n_slots = 3 * int(context) + max(BATCHES) * (SPARE + 1024)
            core = Engine.load(
                str(PAIR / "target"),
                str(PAIR / "head"),
                device="cpu",
                probe="off",
                speculation=speculation,
                scheduler={"max_batch": max(BATCHES)},
                planner={"costs": str(COSTS), "foreign_costs": True},
                cache={"n_pages": n_slots // PAGE, "page_size": PAGE},
            ).core
            for batch in batches:
                decode(core, prompts[context][:batch], WARM)  # reads the prompts, and warms up
                n_new = max(TOKENS // batch, LEAST)
                own = (decode(core, prompts[context][:batch], n_new) for _ in range(n_decodes))
                found[f"{method} {batch} {context}"] = max(own, key=speed)
    print(json.dumps(found))


def decode(core: Any, prompts: list[list[int]], n_new: int) -> dict[str, float]:
    """Decode prompts together until the first one ends."""
    from aerie import SamplingParams

    params = SamplingParams(max_tokens=n_new, ignore_eos=True)
    ids = [core.submit(prompt, params) for prompt in prompts]
    while any(is_unread(core.request(i)) for i in ids):
        core.step()
    before = sum(len(core.request(i).output) for i in ids)
    begin, n_rounds = time.process_time(), 0
    while all(core.request(i).ended is None for i in ids):
        core.step()
        n_rounds += 1
    seconds = time.process_time() - begin
    tokens = sum(len(core.request(i).output) for i in ids) - before
    for request_id in ids:
        core.cancel(request_id)
    while not core.is_idle:
        core.step()
    for request_id in ids:
        core.forget(request_id)
    return {"tokens": tokens, "rounds": n_rounds, "seconds": seconds}


def speed(found: dict[str, float]) -> float:
    """Tokens a second of a decode."""
    return found["tokens"] / found["seconds"]


def is_unread(request: Any) -> bool:
    """Whether its prompt is still to be read."""
    return request.ended is None and (request.n_unread > 0 or request.held.row < 0)


def turn(tree: Path, asked: Path) -> dict[str, Any]:
    """One fresh process."""
    environment = os.environ | {"PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE), "--child", str(asked.resolve())]
    # Elsewhere: the folder a process starts in comes before its path.
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=asked.parent
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_asked(path: Path, asked: dict[str, Any]) -> None:
    """Adds held-out prompts by context to it; long ones are one document cut at other ends."""
    from aerie.bench.engine import choose_prompts
    from aerie.bench.round.setup import tokenizer_of_pair

    encode = tokenizer_of_pair().encode
    short, long = CONTEXTS
    document = choose_prompts(long, encode)(1, 0)[0]
    prompts = {
        str(short): choose_prompts(short, encode)(max(BATCHES), 0),
        str(long): [document[: len(document) - PAGE * i] for i in range(max(BATCHES))],
    }
    path.write_text(json.dumps(asked | {"prompts": prompts}), encoding="utf-8")


def compared(arms: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Speed of the later tree over the earlier one by point, and whether it is enough."""
    from aerie.bench.record import interval

    def speeds(arm: str, point: str) -> list[float]:
        return [speed(own[point]) for own in arms[arm]]

    points = {}
    for point in arms["before"][0]:
        before, after = speeds("before", point), speeds("after", point)
        found = interval([b / a for a, b in zip(before, after, strict=True)])
        is_ok = found.median >= MEDIAN and found.high >= WHOLLY
        points[point] = {"ratio": vars(found), "ok": is_ok}
    medians = [entry["ratio"]["median"] for entry in points.values()]
    return {
        "points": points,
        "every_point": all(entry["ok"] for entry in points.values()),
        "median_of_points": statistics.median(medians),
        "ok": statistics.median(medians) >= WHOLLY,
    }


def page(record: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# Rounds on a CPU, before and after",
        "",
        f"Written by `scripts/round_before_after.py`: {record['turns']} turns, in each a fresh"
        f" process of each tree, order flipped; before is {record['commits'][0]}, after is"
        f" {record['commits'][1]}. Of {record['decodes']} decodes a turn the fastest counts. One"
        f" thread, processor time, {record['provenance']['device']}."
        " Tokens a second of the later tree over the earlier one, medians with 90 % intervals.",
        "",
        "| policy | batch | context | ratio | interval | |",
        "|---|---|---|---|---|---|",
    ]
    for point, entry in record["points"].items():
        ratio = entry["ratio"]
        cells = [*point.split(), f"{ratio['median']:.3f}"]
        cells += [f"{ratio['low']:.3f} to {ratio['high']:.3f}", "" if entry["ok"] else "below"]
        lines.append(f"| {' | '.join(cells)} |")
    below = sum(not entry["ok"] for entry in record["points"].values())
    lines += ["", f"Median over the {len(record['points'])} points:"]
    lines[-1] += f" {record['median_of_points']:.3f}; {below} points are below their limits."
    return "\n".join(lines) + "\n"


def main() -> int:
    """Alternate the trees; both files are written after every turn."""
    from aerie.bench.provenance import provenance

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--commits", nargs=2, required=True)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--decodes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "reports")
    parser.add_argument("--name", default="cpu_round_before_after")
    every = [f"{m} {b} {c}" for m in METHODS for c in CONTEXTS for b in BATCHES]
    parser.add_argument("--points", nargs="+", default=every, choices=every, metavar="POINT")
    given = parser.parse_args()
    asked = given.out / f"{given.name}_asked.json"
    (given.out / "raw").mkdir(parents=True, exist_ok=True)
    write_asked(asked, {"points": given.points, "decodes": given.decodes})
    arms: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    record: dict[str, Any] = {}
    for index in range(given.turns):
        order = list(arms) if index % 2 == 0 else list(reversed(arms))
        for name in order:
            arms[name].append(turn(getattr(given, name), asked))
            print(f"turn {index + 1}, {name}", file=sys.stderr, flush=True)
        head = {"commits": given.commits, "turns": index + 1, "decodes": given.decodes}
        record = {**head, "provenance": provenance("cpu"), **compared(arms), "raw": arms}
        with lzma.open(given.out / "raw" / f"{given.name}.json.xz", "wt", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
        (given.out / f"{given.name}.md").write_text(page(record), encoding="utf-8")
    asked.unlink()
    print(json.dumps({"ok": record["ok"], "points": record["points"]}))
    return 0 if record["ok"] else 1


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        child(Path(sys.argv[2]))
    else:
        sys.exit(main())
