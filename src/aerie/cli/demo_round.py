"""One round of speculative decoding on a worked example, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.report import RoundNode, RoundTree
from aerie.fpga.tree_round import DraftLevel, Serving, TreeRound
from aerie.fpga.tree_runs import grow_unfused
from aerie.kernels.registry import Kernels

# What the worked draft thinks follows each word, most likely first. The target agrees with the
# first choice except after "its" and "of", so the tree pays off where a chain would stop.
DRAFT: dict[str, tuple[tuple[str, float], ...]] = {
    "the": (("eagle", 0.62), ("draft", 0.22), ("tree", 0.10)),
    "eagle": (("builds", 0.71), ("guards", 0.17), ("leaves", 0.06)),
    "builds": (("its", 0.66), ("a", 0.24), ("one", 0.05)),
    "its": (("nest", 0.48), ("aerie", 0.41), ("tree", 0.05)),
    "aerie": (("on", 0.77), ("of", 0.14), ("high", 0.05)),
    "nest": (("on", 0.60), ("of", 0.25), ("in", 0.10)),
    "on": (("a", 0.55), ("the", 0.33), ("one", 0.07)),
    "a": (("cliff", 0.58), ("branch", 0.27), ("tree", 0.11)),
}
FALLBACK = (("and", 0.40), ("of", 0.25), ("in", 0.15))
TARGET = {"its": "aerie", "a": "cliff", "cliff": "above"}

TOP_K = 3
WIDTH = 3
DEPTH = 6
VERIFY = 14


@dataclass(frozen=True)
class Round:
    """What one round proposed, verified and accepted."""

    words: tuple[str, ...]  # by token id
    n_nodes: int  # proposed
    tree: RoundTree  # of those verified
    gains: tuple[tuple[float, ...], ...]

    @property
    def emitted(self) -> tuple[str, ...]:
        """The accepted words, and the target's own."""
        tokens = [node.token for node in self.tree.nodes[1:] if node.is_accepted]
        return tuple(self.words[token] for token in (*tokens, self.tree.bonus))


def vocabulary() -> tuple[str, ...]:
    """Every word of the worked example; the index is the token id."""
    words = dict.fromkeys(["the", *DRAFT])
    for row in (*DRAFT.values(), FALLBACK):
        words.update(dict.fromkeys(word for word, _ in row))
    words.update(dict.fromkeys(TARGET.values()))
    return tuple(words)


def play(kernels: Kernels) -> Round:
    """Grow a tree from "the", choose nodes, verify them in one pass, commit what was accepted."""
    words = vocabulary()

    def call(name: str, **inputs: Any) -> Any:
        return kernels[name](**inputs)._asdict()

    def level(tokens: Any, slots: int) -> DraftLevel:
        probas, choices = _draft(words, tokens)
        return DraftLevel(probas, choices, np.zeros((slots, 1), np.float32))

    one = TreeRound(
        TOP_K,
        VERIFY,
        (level([words.index("the")], 1),),
        Serving(
            root_tokens=np.array([words.index("the")]),
            seq_len=np.zeros(1, np.int64),
            length_limit=np.array([VERIFY]),
            stop_tokens=np.zeros((1, 0), np.int64),
            req_to_token=np.arange(VERIFY, dtype=np.int32)[None],
            req_pool_indices=np.zeros(1, np.int64),
        ),
        logits=np.zeros((VERIFY, 0), np.float32),  # the target says its words by itself
        temperature=np.zeros(1, np.float32),
        coins=None,
        widths=(1, *[WIDTH] * (DEPTH - 1)),
    )
    grown = grow_unfused(one, call, lambda frontier: level(frontier.tokens[0], WIDTH))
    rows = grown.layout
    links = ("qo_indptr", "draft_tokens", "first_child_row", "next_sibling_row")
    verdict = call(
        "draft_tree_reject_sample",
        **{name: rows[name] for name in links},
        target_tokens=_target_tokens(words, np.asarray(rows["draft_tokens"])),
        tree_depth=DEPTH,
    )
    path = [int(row) for row in np.asarray(verdict["accept_index"])[0] if row >= 0]
    tree = RoundTree(_nodes(words, rows, path), len(path) - 1, int(verdict["bonus_token"][0]))
    gains = tuple(tuple(map(float, gains)) for gains in grown.gains)
    return Round(words, 1 + sum(one.widths) * TOP_K, tree, gains)


def _nodes(words: tuple[str, ...], rows: Any, path: list[int]) -> tuple[RoundNode, ...]:
    """The chosen nodes by their rows; those on the path are accepted."""
    tokens, parents = (np.asarray(rows[name]).tolist() for name in ("draft_tokens", "parent_row"))
    nodes = [RoundNode(tokens[0], -1, 1.0, True)]
    for row in range(1, int(rows["qo_indptr"][-1])):
        before = nodes[parents[row]]
        chance = dict(DRAFT.get(words[before.token], FALLBACK))[words[tokens[row]]]
        # As K1 multiplies: in float32.
        score = np.float32(chance) * np.float32(before.score)
        nodes.append(RoundNode(tokens[row], parents[row], float(score), row in path))
    return tuple(nodes)


def _draft(words: tuple[str, ...], tokens: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rows = [DRAFT.get(words[int(token)], FALLBACK) for token in tokens]
    probas = np.array([[p for row in rows for _, p in row]], np.float32)
    choices = np.array([[words.index(word) for row in rows for word, _ in row]], np.int64)
    return probas, choices


def _target_tokens(words: tuple[str, ...], draft_tokens: Any) -> NDArray[np.int64]:
    """What the target says after each row, all rows in one pass."""
    said = []
    for token in draft_tokens:
        word = words[int(token)]
        said.append(words.index(TARGET.get(word, DRAFT.get(word, FALLBACK)[0][0])))
    return np.array(said, np.int64)
