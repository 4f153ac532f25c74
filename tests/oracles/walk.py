"""The accepted path by recursion over nested dictionaries, for both acceptance rules.

A node is `{"row": int, "probas": [...], "target": int, "children": {token: node}}`; the order of
the dictionary is the order of the siblings.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Tree = dict[str, Any]


@dataclass(frozen=True)
class Walked:
    """Rows from the root on, the tokens of those after the root, and the token that follows."""

    rows: list[int]
    tokens: list[int]
    bonus: int

    @property
    def emitted(self) -> list[int]:
        return [*self.tokens, self.bonus]


def random_tree(chooser: random.Random, n_nodes: int, vocabulary: int, most_depth: int) -> Tree:
    """A tree of at most `n_nodes` nodes; rows count in the order of creation, parents first."""
    root: Tree = {"row": 0, "depth": 0, "token": chooser.randrange(vocabulary), "children": {}}
    nodes = [root]
    for _ in range(10 * n_nodes):
        parent = chooser.choice(nodes)
        token = chooser.randrange(vocabulary)
        if len(nodes) == n_nodes:
            break
        if parent["depth"] == most_depth or token in parent["children"]:
            continue
        child: Tree = {
            "row": len(nodes),
            "depth": parent["depth"] + 1,
            "token": token,
            "children": {},
        }
        parent["children"][token] = child
        nodes.append(child)
    return root


def every_node(node: Tree) -> Iterator[Tree]:
    """The node and everything below it."""
    yield node
    for child in node["children"].values():
        yield from every_node(child)


def by_row(root: Tree) -> list[Tree]:
    """The nodes in the order of their rows."""
    return sorted(every_node(root), key=lambda node: int(node["row"]))


def first_child(node: Tree) -> int:
    """Row of the first child, -1 for none."""
    return next((int(child["row"]) for child in node["children"].values()), -1)


def next_siblings(root: Tree) -> dict[int, int]:
    """Row of the next sibling by row, -1 for none."""
    found = {0: -1}
    for node in every_node(root):
        rows = [int(child["row"]) for child in node["children"].values()]
        found.update(zip(rows, [*rows[1:], -1], strict=False))
    return found


def walk_coins(node: Tree, coins: Sequence[float], bonus_coin: float) -> Walked:
    """Coin of this depth against the running sum of the children; the rest is the residual."""
    running = 0.0
    for token, child in node["children"].items():
        running += float(node["probas"][token])
        if coins[0] < running:
            below = walk_coins(child, coins[1:], bonus_coin)
            return Walked([node["row"], *below.rows], [token, *below.tokens], below.bonus)
    return Walked([node["row"]], [], residual_token(node, bonus_coin))


def residual_token(node: Tree, coin: float) -> int:
    """A token that is no child, by its share of what the children leave."""
    kept = {
        token: float(p) for token, p in enumerate(node["probas"]) if token not in node["children"]
    }
    total = 0.0
    for p in kept.values():
        total += p
    running = 0.0
    for token, p in kept.items():
        running += p
        if total > 0 and running > coin * total:
            return token
    return max(range(len(node["probas"])), key=lambda token: (node["probas"][token], -token))


def walk_match(node: Tree) -> Walked:
    """Follow the child that carries the target's own token; else emit that token."""
    said = int(node["target"])
    if said not in node["children"]:
        return Walked([node["row"]], [], said)
    below = walk_match(node["children"][said])
    return Walked([node["row"], *below.rows], [said, *below.tokens], below.bonus)
