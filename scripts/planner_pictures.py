"""Draws the two pictures of docs/planner.md from real runs of the built-in pair.

Usage: python3 -m scripts.planner_pictures docs/images
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from aerie.api import Engine
from aerie.bench.engine import SHORT, choose_prompts
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
LEAST = 30  # nodes of a bin that is shown


def draw_plan(path: Path) -> None:
    """One round of a batch of three: every request has its own tree."""
    engine = Engine.load(device="cpu")
    for text in PROMPTS.values():
        engine.submit(text, SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True))
    rounds = []
    for _ in range(ROUNDS):
        engine.step()
        rounds.append([tree for _, tree in sorted(engine.core.launcher.trees.items())])
    whole = [trees for trees in rounds if len(trees) == len(PROMPTS)]
    # The round in which the easy text got most beyond the hard one.
    shown = max(whole, key=lambda trees: len(trees[0].nodes) - len(trees[2].nodes))
    figure = Figure(figsize=(13, 4.6))
    panels = figure.subplots(1, len(PROMPTS))
    deepest = max(max(_depths(tree)) for tree in shown)
    for name, tree, panel in zip(PROMPTS, shown, panels, strict=True):
        _draw_tree(engine, tree, panel)
        panel.set_title(f"{name}: {len(tree.nodes)} rows, {tree.n_accepted} accepted", fontsize=10)
        panel.axis("off")
        panel.margins(0.15)
        panel.set_ylim(-deepest - 0.5, 0.5)
    figure.suptitle("One round, one batch, three requests: red is the accepted path")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _draw_tree(engine: Engine, tree: RoundTree, panel: Any) -> None:
    """Leaves side by side, a parent above the middle of its children."""
    across, depths, leaves = [0.0] * len(tree.nodes), _depths(tree), itertools.count()

    def place(parent: int) -> float:
        below = [place(n) for n, node in enumerate(tree.nodes) if node.parent == parent]
        across[parent] = float(np.mean(below)) if below else float(next(leaves))
        return across[parent]

    place(0)
    for node, x, depth in zip(tree.nodes, across, depths, strict=True):
        colour = "#c0392b" if node.is_accepted else "#888888"
        if node.parent >= 0:
            panel.plot([across[node.parent], x], [1 - depth, -depth], color=colour, zorder=1)
        text = f"{engine.tokenizer.decode([node.token])!r}\n{node.score:.2f}"
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": colour}
        panel.text(x, -depth, text, ha="center", va="center", fontsize=6, bbox=box)


def _depths(tree: RoundTree) -> list[int]:
    """Of every node; parents come before their children."""
    depths: list[int] = []
    for node in tree.nodes:
        depths.append(0 if node.parent < 0 else depths[node.parent] + 1)
    return depths


def draw_calibration(path: Path) -> None:
    """How often paths of a score were accepted, by the draft's word and by the planner's."""
    engine = Engine.load(device="cpu")
    policy = engine.core.parts.policy
    assert isinstance(policy, Planner)
    params = SamplingParams(max_tokens=160, temperature=0.0, ignore_eos=True)
    prompts = choose_prompts(SHORT, engine.tokenizer.encode)
    # Of every verified node but the root: its score, its corrected weight, whether it was accepted.
    seen: list[Any] = []
    for repeat in range(6):
        for prompt in prompts(4, repeat):
            engine.submit(prompt, params)
        while not engine.core.is_idle:
            table = policy.learnt.calibration.table()
            engine.step()
            for tree in engine.core.launcher.trees.values():
                nodes = tree.nodes[1:]
                scores = torch.tensor([[node.score for node in nodes]])
                if not nodes:
                    continue
                weights = corrected(scores, torch.tensor([_depths(tree)[1:]]), table)
                seen += zip(scores[0], weights[0], (n.is_accepted for n in nodes), strict=True)
    said, believed, accepted = np.array(seen, dtype=np.float64).T
    figure = Figure(figsize=(5.2, 4.6))
    panel = figure.subplots()
    for name, values in {"draft's score": said, "after calibration": believed}.items():
        own = [np.digitize(values, BINS[1:-1]) == place for place in range(len(BINS) - 1)]
        points = [(values[b].mean(), accepted[b].mean()) for b in own if b.sum() >= LEAST]
        brier = float(np.mean((values - accepted) ** 2))
        panel.plot(*zip(*points, strict=True), marker="o", label=f"{name} (Brier {brier:.4f})")
    panel.plot([0, 1], [0, 1], color="#888888", linestyle="--", linewidth=1)
    panel.set(
        xlabel="said", ylabel="accepted", title=f"{len(seen):,} verified nodes, learnt online"
    )
    panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    torch.set_num_threads(1)
    draw_plan(Path(sys.argv[1]) / "planner_plan.png")
    draw_calibration(Path(sys.argv[1]) / "planner_calibration.png")
