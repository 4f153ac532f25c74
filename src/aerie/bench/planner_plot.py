"""Draws the two pictures of docs/planner.md from real runs of the built-in pair.

Usage: python -m aerie.bench.planner_plot docs/images
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aerie.api import Engine
from aerie.bench.engine import SHORT, choose_prompts
from aerie.bench.plots import save
from aerie.engine.report import RoundTree
from aerie.requests.params import SamplingParams
from aerie.speculation.calibration import corrected
from aerie.speculation.planner import Planner

# Text that repeats itself, code, and prose about nothing in particular: easy to hard.
PROMPTS = {
    "easy": "A = 1\nB = 2\nC = 3\nD = 4\nE = 5\nF = 6\nG = 7\n",
    "ordinary": 'def read_lines(path):\n    """Read a text file and return its lines."""\n',
    "hard": "# The weather in the harbour was kind to us that year, and old sailors said",
}
ROUNDS = 40
BINS = np.array([0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1.0])


@dataclass
class Observed:
    """Verified nodes: what the draft said, what the planner believed, what happened."""

    scores: list[NDArray[np.float64]] = field(default_factory=list)
    weights: list[NDArray[np.float64]] = field(default_factory=list)
    accepted: list[NDArray[np.bool_]] = field(default_factory=list)


def main(folder: Path) -> None:
    """Run the pair and write both pictures."""
    torch.set_num_threads(1)
    draw_plan(folder / "planner_plan.png")
    draw_calibration(folder / "planner_calibration.png")


def _planner(engine: Engine) -> Planner:
    policy = engine.core.parts.policy
    assert isinstance(policy, Planner)
    return policy


def draw_plan(path: Path) -> None:
    """One round of a batch of three: every request has its own tree."""
    engine = Engine.load(device="cpu")
    params = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
    for text in PROMPTS.values():
        engine.submit(text, params)
    best: tuple[int, list[RoundTree]] | None = None
    for _ in range(ROUNDS):
        engine.step()
        trees = [tree for _, tree in sorted(engine.core.launcher.trees.items())]
        if len(trees) == len(PROMPTS):
            spread = len(trees[0].nodes) - len(trees[2].nodes)
            if best is None or spread > best[0]:
                best = (spread, trees)
    assert best is not None, "no round held all three requests"
    _plot_trees(engine, best[1], path)


def _plot_trees(engine: Engine, trees: list[RoundTree], path: Path) -> None:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PROMPTS), figsize=(13, 4.6))
    deepest = max(max(_depths(tree)) for tree in trees)
    for name, tree, panel in zip(PROMPTS, trees, panels, strict=True):
        places = _places(tree)
        for (x, y), node in zip(places, tree.nodes, strict=True):
            colour = "#c0392b" if node.is_accepted else "#888888"
            if node.parent >= 0:
                above = places[node.parent]
                panel.plot([above[0], x], [above[1], y], color=colour, zorder=1)
            text = engine.tokenizer.decode([node.token])
            panel.text(
                x,
                y,
                f"{text!r}\n{node.score:.2f}",
                ha="center",
                va="center",
                fontsize=6,
                bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": colour},
            )
        panel.set_title(f"{name}: {len(tree.nodes)} rows, {tree.n_accepted} accepted", fontsize=10)
        panel.axis("off")
        panel.margins(0.15)
        panel.set_ylim(-deepest - 0.5, 0.5)
    figure.suptitle("One round, one batch, three requests: red is the accepted path")
    save(figure, path, 110)


def _depths(tree: RoundTree) -> list[int]:
    """Of every node; parents come before their children."""
    depths: list[int] = []
    for node in tree.nodes:
        depths.append(0 if node.parent < 0 else depths[node.parent] + 1)
    return depths


def _places(tree: RoundTree) -> list[tuple[float, float]]:
    """Leaves side by side, a parent above the middle of its children."""
    across, leaves = [0.0] * len(tree.nodes), itertools.count()

    def place(parent: int) -> float:
        below = [place(n) for n, node in enumerate(tree.nodes) if node.parent == parent]
        across[parent] = float(np.mean(below)) if below else float(next(leaves))
        return across[parent]

    place(0)
    return [(x, -float(depth)) for x, depth in zip(across, _depths(tree), strict=True)]


def draw_calibration(path: Path) -> None:
    """How often paths of a score were accepted, by the draft's word and by the planner's."""
    engine = Engine.load(device="cpu")
    policy = _planner(engine)
    params = SamplingParams(max_tokens=160, temperature=0.0, ignore_eos=True)
    prompts = choose_prompts(SHORT, engine.tokenizer.encode)
    seen = Observed()
    for repeat in range(6):
        for prompt in prompts(4, repeat):
            engine.submit(prompt, params)
        while not engine.core.is_idle:
            table = policy.learnt.calibration.table()
            engine.step()
            for tree in engine.core.launcher.trees.values():
                _observe(seen, tree, table)
    _plot_calibration(seen, path)


def _observe(seen: Observed, tree: RoundTree, table: NDArray[np.float64]) -> None:
    """Every verified node but the root."""
    nodes = tree.nodes[1:]
    if nodes:
        scores = torch.tensor([[node.score for node in nodes]])
        weights = corrected(scores, torch.tensor([_depths(tree)[1:]]), table)
        seen.scores.append(scores[0].double().numpy())
        seen.weights.append(weights[0].double().numpy())
        seen.accepted.append(np.array([node.is_accepted for node in nodes]))


def _plot_calibration(seen: Observed, path: Path) -> None:
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(5.2, 4.6))
    accepted = np.concatenate(seen.accepted)
    lines: dict[str, Any] = {"draft's score": seen.scores, "after calibration": seen.weights}
    for name, parts in lines.items():
        values = np.concatenate(parts)
        bins = np.digitize(values, BINS[1:-1])
        said = [values[bins == b].mean() for b in range(len(BINS) - 1) if (bins == b).sum() >= 30]
        did = [accepted[bins == b].mean() for b in range(len(BINS) - 1) if (bins == b).sum() >= 30]
        brier = float(np.mean((values - accepted) ** 2))
        panel.plot(said, did, marker="o", label=f"{name} (Brier {brier:.4f})")
    panel.plot([0, 1], [0, 1], color="#888888", linestyle="--", linewidth=1)
    panel.set(
        xlabel="said", ylabel="accepted", title=f"{len(accepted):,} verified nodes, learnt online"
    )
    panel.legend(fontsize=8)
    save(figure, path, 110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
