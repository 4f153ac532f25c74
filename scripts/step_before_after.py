"""Time the steps of two source trees in turns: every turn is one fresh process of each.

    git archive START | tar x -C /tmp/start
    python scripts/step_before_after.py /tmp/start src --commits START END --out reports

Both trees decode the same prompts with the same weights (those of this checkout), one thread, and
are watched by `aerie.bench.engine.step` of this one. Writes cpu_round_before_after.json and .md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SRC = HERE.parents[1] / "src"
PAIR = SRC / "aerie" / "assets" / "pair"
# Batch size, steps of a turn.
POINTS = ((1, 24), (8, 10), (16, 6))


def child(prompts_file: Path, backend: str, with_rival: bool) -> None:
    """One turn in this process's own tree: a JSON line of every step's phases."""
    import torch

    torch.set_num_threads(1)
    bench = _bench()
    prompts = json.loads(prompts_file.read_text(encoding="utf-8"))
    settings = {} if backend == "default" else {"backend": backend}
    found: dict[str, Any] = {}
    for batch, steps in POINTS:
        for method, speculation in bench.METHODS.items():
            core = bench.Engine.load(
                str(PAIR / "target"),
                str(PAIR / "head"),
                device="cpu",
                probe="off",
                speculation=speculation,
                scheduler={"max_batch": batch},
                cache={"prefix_reuse": False},
                **settings,
            ).core
            bench.run_steps(core, prompts[:batch], 2)
            series = bench.run_steps(core, prompts[:batch], steps)
            found[f"{method} {batch}"] = {
                "steps": [{"/".join(label): ms for label, ms in s.items()} for s in series.steps],
                "tokens": series.tokens,
                "batch": batch,
            }
    if with_rival:
        from aerie.bench.engine.step_session import _rival_ms
        from aerie.bench.engine.transformers_rival import load_rival

        found["transformers"] = _rival_ms(load_rival(), prompts[0])
    print(json.dumps(found))


def _bench() -> Any:
    """This checkout's stopwatch, whatever tree the rest comes from."""
    spec = importlib.util.spec_from_file_location("step_bench", SRC / "aerie/bench/engine/step.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["step_bench"] = module
    spec.loader.exec_module(module)
    return module


def turn(tree: Path, prompts: Path, backend: str, with_rival: bool) -> dict[str, Any]:
    """One fresh process."""
    command = [sys.executable, str(HERE), "--child", str(prompts), backend, str(int(with_rival))]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def spread(values: list[float]) -> str:
    """Least and median."""
    return f"{min(values):.2f} / {statistics.median(values):.2f}"


def steps_of(arm: list[dict[str, Any]], point: str, kind: str = "") -> list[float]:
    """Milliseconds of every step of a point, or of the calls of one kind inside it."""
    return [
        sum(ms for label, ms in step.items() if label.endswith(kind))
        for found in arm
        for step in found[point]["steps"]
    ]


def tokens_of(arm: list[dict[str, Any]], point: str) -> float:
    """Tokens of a step and request."""
    tokens = sum(found[point]["tokens"] for found in arm)
    return tokens / sum(len(found[point]["steps"]) * found[point]["batch"] for found in arm)


def page(arms: dict[str, list[dict[str, Any]]], head: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# A round on a CPU, before and after",
        "",
        f"Written by `scripts/step_before_after.py`: {head['turns']} turns, in each of them a fresh"
        " process of every arm, order flipped; one thread, built-in pair, greedy, 512-token"
        f" prompts; {head['device']}, a shared machine (load average {head['load']}).",
        "Milliseconds, least / median over all steps of all turns;"
        f" before is {head['commits'][0]}, after is {head['commits'][1]}.",
        "",
        "| | " + " | ".join(arms) + " |",
        "|---|" + "---|" * len(arms),
    ]
    for point in [key for key in arms["before"][0] if key != "transformers"]:
        label = "{}, batch {}".format(*point.split())
        for kind in ("", "products", "kernels"):
            cells = [spread(steps_of(arm, point, kind)) for arm in arms.values()]
            lines.append(f"| {label}: {kind or 'step'} | " + " | ".join(cells) + " |")
        tokens = [f"{tokens_of(arm, point):.2f}" for arm in arms.values()]
        lines.append(f"| {label}: tokens a step | " + " | ".join(tokens) + " |")
    rival = [found["transformers"] for found in arms["after"]]
    lines += ["", f"transformers' `generate`, batch 1: {spread(rival)} ms a token."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Alternate the arms and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--commits", nargs=2, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lists of token ids")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    plan = {
        "before": (given.before, "default"),
        "after": (given.after, "default"),
        "after, pytorch kernels": (given.after, "pytorch"),
    }
    given.out.mkdir(parents=True, exist_ok=True)
    arms: dict[str, list[dict[str, Any]]] = {name: [] for name in plan}
    for index in range(given.turns):
        order = list(plan.items())
        for name, (tree, backend) in order if index % 2 == 0 else reversed(order):
            arms[name].append(turn(tree.resolve(), given.prompts, backend, name == "after"))
            print(f"turn {index + 1}, {name}", file=sys.stderr, flush=True)
        # After every turn: on a shared machine a long run may be cut short.
        write(given.out, arms, head_of(given.commits, index + 1))


def head_of(commits: list[str], turns: int) -> dict[str, Any]:
    """What the figures are of."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "commits": commits,
        "turns": turns,
        "device": names[0] if names else "CPU",
        "load": f"{os.getloadavg()[2]:.1f} over 15 minutes",
    }


def write(folder: Path, arms: dict[str, list[dict[str, Any]]], head: dict[str, Any]) -> None:
    """The raw steps and the page."""
    raw = json.dumps({"head": head, "arms": arms})
    (folder / "cpu_round_before_after.json").write_text(raw, encoding="utf-8")
    (folder / "cpu_round_before_after.md").write_text(page(arms, head), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--child":
        child(Path(sys.argv[2]), sys.argv[3], bool(int(sys.argv[4])))
    else:
        main()
