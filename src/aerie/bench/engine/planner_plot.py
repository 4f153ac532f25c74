"""Draws the two pictures of docs/planner.md from real runs of the built-in pair.

Usage: python -m aerie.bench.engine.planner_plot docs/images
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.api import Engine
from aerie.bench.engine.contract import SHORT, choose_prompts
from aerie.engine.params import SamplingParams
from aerie.engine.step import Outcome
from aerie.speculation.calibration import accepted_nodes, calibrated
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
    best: tuple[int, Outcome] | None = None
    for _ in range(ROUNDS):
        engine.step()
        outcome = engine.core.last_outcome
        assert outcome is not None
        if len(outcome.chosen) == len(PROMPTS):
            counts = outcome.chosen.sum(1).tolist()
            spread = counts[0] - counts[2]
            if best is None or spread > best[0]:
                best = (spread, outcome)
    assert best is not None, "no round held all three requests"
    _plot_trees(engine, best[1], path)


def _plot_trees(engine: Engine, outcome: Outcome, path: Path) -> None:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PROMPTS), figsize=(13, 4.6))
    on_path = accepted_nodes(outcome.chosen, outcome.verdict)
    for index, (name, panel) in enumerate(zip(PROMPTS, panels, strict=True)):
        nodes = outcome.chosen[index].nonzero()[:, 0].tolist()
        places = _places(outcome.tree.parents[index], outcome.tree.depths[index], nodes)
        for node in nodes:
            x, y = places[node]
            parent = int(outcome.tree.parents[index, node])
            colour = "#c0392b" if bool(on_path[index, node]) else "#888888"
            if parent >= 0:
                panel.plot([places[parent][0], x], [places[parent][1], y], color=colour, zorder=1)
            text = engine.tokenizer.decode([int(outcome.tree.tokens[index, node])])
            score = float(outcome.tree.scores[index, node])
            panel.text(
                x,
                y,
                f"{text!r}\n{score:.2f}",
                ha="center",
                va="center",
                fontsize=6,
                bbox={"boxstyle": "round", "facecolor": "white", "edgecolor": colour},
            )
        n_accepted = int(on_path[index].sum()) - 1
        panel.set_title(f"{name}: {len(nodes)} rows, {n_accepted} accepted", fontsize=10)
        panel.axis("off")
        panel.margins(0.15)
        panel.set_ylim(-float(outcome.tree.depths[outcome.chosen].max()) - 0.5, 0.5)
    figure.suptitle("One round, one batch, three requests: red is the accepted path")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _places(parents: Tensor, depths: Tensor, nodes: list[int]) -> dict[int, tuple[float, float]]:
    """Leaves side by side, a parent above the middle of its children."""
    children: dict[int, list[int]] = {node: [] for node in nodes}
    for node in nodes:
        if int(parents[node]) >= 0:
            children[int(parents[node])].append(node)
    across: dict[int, float] = {}
    n_leaves = 0
    for node in _post_order(children):
        if children[node]:
            across[node] = float(np.mean([across[child] for child in children[node]]))
        else:
            across[node] = float(n_leaves)
            n_leaves += 1
    return {node: (across[node], -float(depths[node])) for node in nodes}


def _post_order(children: dict[int, list[int]]) -> list[int]:
    order, open_nodes = [], [0]
    while open_nodes:
        node = open_nodes.pop()
        order.append(node)
        open_nodes += children[node]
    return order[::-1]


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
            table = torch.from_numpy(policy.calibration.table()).float()
            engine.step()
            outcome = engine.core.last_outcome
            if outcome is not None and policy.last is not None:
                _observe(seen, outcome, table, policy.shape.depth)
    _plot_calibration(seen, path)


def _observe(seen: Observed, outcome: Outcome, table: Tensor, deepest: int) -> None:
    nodes = outcome.chosen & (outcome.tree.depths > 0)
    weights = calibrated(outcome.tree, table, deepest)
    seen.scores.append(outcome.tree.scores[nodes].double().numpy())
    seen.weights.append(weights[nodes].double().numpy())
    seen.accepted.append(accepted_nodes(outcome.chosen, outcome.verdict)[nodes].numpy())


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
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
