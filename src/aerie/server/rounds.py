"""A round as clients see it: verified nodes, their scores, which were accepted, what came after."""

from __future__ import annotations

from typing import Any

from aerie.engine.step import Outcome
from aerie.text.tokenizer import Tokenizer


def describe_round(outcome: Outcome, row: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The tree of one request; a node's parent is its place in the list, the root's is -1."""
    tree, verdict = outcome.tree, outcome.verdict
    nodes = outcome.chosen[row].nonzero()[:, 0].tolist()
    place = {node: index for index, node in enumerate(nodes)}
    count = int(verdict.accept_count[row])
    accepted = set(verdict.accept_index[row, : count + 1].tolist())
    described = [
        {
            "text": _text(tokenizer, int(tree.tokens[row, node])),
            "parent": place[int(tree.parents[row, node])] if index else -1,
            "score": round(float(tree.scores[row, node]), 4),
            "is_accepted": index in accepted,
        }
        for index, node in enumerate(nodes)
    ]
    bonus = _text(tokenizer, int(verdict.bonus_token[row]))
    return {"nodes": described, "n_accepted": count, "bonus": bonus}


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")
