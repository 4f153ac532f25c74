"""One round of speculative decoding on a worked example, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.report import RoundNode, RoundTree
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
    store = _new_store(1 + TOP_K + (DEPTH - 1) * WIDTH * TOP_K, words.index("the"))
    sort_scores = np.zeros((1, VERIFY), np.float32)
    sort_scores[0, 0] = 1.0
    count, gains = _grow(kernels, words, store, sort_scores)
    selected = _choose(store["cumu_scores"][0], count)
    rows = kernels["update_node_data"](
        cumu_tokens=store["cumu_tokens"],
        cumu_deltas=store["cumu_deltas"],
        prev_indexs=store["prev_indexs"],
        node_count=np.array([count]),
        selected=selected[None],
        seq_len=np.zeros(1, np.int64),
        row_capacity=VERIFY,
    )
    verdict = kernels["draft_tree_reject_sample"](
        qo_indptr=rows.qo_indptr,
        draft_tokens=rows.draft_tokens,
        first_child_row=rows.first_child_row,
        next_sibling_row=rows.next_sibling_row,
        target_tokens=_target_tokens(words, np.asarray(rows.draft_tokens)),
        tree_depth=DEPTH,
    )
    path = [int(row) for row in np.asarray(verdict.accept_index)[0] if row >= 0]
    tree = RoundTree(
        nodes=_nodes(store, np.flatnonzero(selected).tolist(), path),
        n_accepted=len(path) - 1,
        bonus=int(verdict.bonus_token[0]),
    )
    return Round(words, count, tree, gains)


def _nodes(store: dict[str, Any], chosen: list[int], path: list[int]) -> tuple[RoundNode, ...]:
    """The chosen nodes by their rows; those on the path are accepted."""
    tokens, parents, scores = (
        store[name][0].tolist() for name in ("cumu_tokens", "prev_indexs", "cumu_scores")
    )
    rows = {node: row for row, node in enumerate(chosen)}
    return tuple(
        RoundNode(tokens[node], rows.get(parents[node], -1), scores[node], row in path)
        for node, row in rows.items()
    )


def _new_store(capacity: int, root: int) -> dict[str, Any]:
    links = ("prev_indexs", "next_indexs", "side_indexs")
    store: dict[str, Any] = {name: np.full((1, capacity), -1, np.int64) for name in links}
    store["cumu_tokens"] = np.zeros((1, capacity), np.int64)
    store["cumu_tokens"][0, 0] = root
    store["cumu_deltas"] = np.zeros((1, capacity), np.int64)
    store["cumu_scores"] = np.zeros((1, capacity), np.float32)
    store["cumu_scores"][0, 0] = 1.0
    return store


def _grow(
    kernels: Kernels, words: tuple[str, ...], store: dict[str, Any], sort_scores: Any
) -> tuple[int, tuple[tuple[float, ...], ...]]:
    """Layer by layer: K1 scores and sorts, K2 stores, K3 weighs what the layer brings."""
    count, fed, gains = 1, 0, []
    frontier, scores = np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)
    tokens = store["cumu_tokens"][:, :1]
    mask = np.zeros((1, 1, DEPTH * TOP_K), np.bool_)
    for _ in range(DEPTH):
        probas, choices = _draft(words, tokens[0])
        layer = kernels["draft_tree_layer_score_index_gen_op"](
            topk_probas=probas,
            topk_tokens=choices,
            last_layer_scores=scores,
            input_hidden=np.zeros((frontier.shape[1], 1), np.float32),
            cumu_count=count,
        )
        state = kernels["update_cumu_draft_state"](
            **store,
            sort_scores=sort_scores,
            curr_layer_scores=layer.curr_layer_scores,
            topk_tokens=layer.mapped_tokens,
            sort_layer_scores=layer.sort_layer_scores,
            sort_layer_indices=layer.sort_layer_indices,
            frontier_indexs=frontier,
            input_tree_mask=mask,
            cumu_count=count,
            verify_num=VERIFY,
            fed_count=fed,
        )
        delta = kernels["calculate_work_deltas"](
            work_scores=state.work_scores, node_top_k=TOP_K, verify_num=VERIFY
        )
        gains.append(tuple(float(gain) for gain in np.asarray(delta.G)))
        count += choices.shape[1]
        fed += TOP_K
        frontier = np.asarray(layer.cache_topk_indices)[:, :WIDTH].copy()
        scores = np.asarray(state.output_scores)[:, :WIDTH].copy()
        tokens = np.asarray(state.output_tokens)[:, :WIDTH].copy()
        mask = np.asarray(state.output_tree_mask)[:, :WIDTH].copy()
    return count, tuple(gains)


def _draft(words: tuple[str, ...], tokens: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rows = [DRAFT.get(words[int(token)], FALLBACK) for token in tokens]
    probas = np.array([[p for row in rows for _, p in row]], np.float32)
    choices = np.array([[words.index(word) for row in rows for word, _ in row]], np.int64)
    return probas, choices


def _choose(scores: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """The best nodes by (score descending, id ascending): any prefix of it is a tree."""
    order = np.argsort(-scores[:count], kind="stable")[:VERIFY]
    selected = np.zeros(len(scores), np.bool_)
    selected[order] = True
    return selected


def _target_tokens(words: tuple[str, ...], draft_tokens: Any) -> NDArray[np.int64]:
    """What the target says after each row, all rows in one pass."""
    said = []
    for token in draft_tokens:
        word = words[int(token)]
        said.append(words.index(TARGET.get(word, DRAFT.get(word, FALLBACK)[0][0])))
    return np.array(said, np.int64)
