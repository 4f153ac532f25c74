"""A round as clients see it: verified nodes, their scores, which were accepted, what came after."""

from __future__ import annotations

from typing import Any

from aerie.engine.round_tree import RoundTree
from aerie.text.tokenizer import Tokenizer

CAPTURED = "rounds captured in graphs are not shown; start the server with --engine eager"


def describe_round(tree: RoundTree, tokenizer: Tokenizer) -> dict[str, Any]:
    """The tree of one request, its tokens as text."""
    nodes = [
        {
            **_written(tokenizer, node.token),
            "parent": node.parent,
            "score": round(node.score, 4),
            "is_accepted": node.is_accepted,
        }
        for node in tree.nodes
    ]
    return {
        "nodes": nodes,
        "n_accepted": tree.n_accepted,
        "bonus": _written(tokenizer, tree.bonus),
    }


def _written(tokenizer: Tokenizer, token_id: int) -> dict[str, Any]:
    """A token's text; its bytes too where they are part of a character."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return {"text": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"text": raw.decode("utf-8", errors="replace"), "bytes": list(raw)}
