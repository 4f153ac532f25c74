"""One request's tree of a step, read off its arrays: for those who draw it."""

from __future__ import annotations

from dataclasses import dataclass

from aerie.engine.step import Outcome


@dataclass(frozen=True)
class RoundNode:
    """A verified node; `parent` is its place among the nodes, -1 for the root."""

    token: int
    parent: int
    score: float
    is_accepted: bool


@dataclass(frozen=True)
class RoundTree:
    """Verified nodes, the root first, parents before children; then what the target added."""

    nodes: tuple[RoundNode, ...]
    n_accepted: int  # draft tokens
    bonus: int


def round_tree(outcome: Outcome, row: int) -> RoundTree:
    """The tree of the request in that row of a step."""
    tree, verdict = outcome.tree, outcome.verdict
    chosen = outcome.chosen[row].nonzero()[:, 0].tolist()
    place = {node: index for index, node in enumerate(chosen)}
    n_accepted = int(verdict.accept_count[row])
    accepted = set(verdict.accept_index[row, : n_accepted + 1].tolist())
    nodes = tuple(
        RoundNode(
            token=int(tree.tokens[row, node]),
            parent=place[int(tree.parents[row, node])] if index else -1,
            score=float(tree.scores[row, node]),
            is_accepted=index in accepted,
        )
        for index, node in enumerate(chosen)
    )
    return RoundTree(nodes, n_accepted, int(verdict.bonus_token[row]))
