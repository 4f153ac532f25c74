"""Draws the tree of a round in the terminal: verified nodes, scores, the accepted path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.tree import Tree

    from aerie.engine.report import RoundTree
    from aerie.text.tokenizer import Tokenizer


def draw_round(tree: RoundTree, title: str, label: Callable[[int], str]) -> Tree:
    """The tree of a round; the accepted path in green, the bonus token beneath it."""
    from rich.tree import Tree

    root, *drafts = tree.nodes
    title = f"{title}: [bold]{label(root.token)}[/]"
    branches = [Tree(f"{title} [dim]{len(drafts)} draft nodes[/]", guide_style="dim")]
    last = branches[0]
    for node in drafts:
        style, mark = ("bold green", " accepted") if node.is_accepted else ("default", "")
        word = label(node.token)
        score = f"[dim]{node.score:.3f}{mark}[/]"
        branches.append(branches[node.parent].add(f"[{style}]{word}[/] {score}"))
        last = branches[-1] if node.is_accepted else last
    last.add(f"[bold cyan]{label(tree.bonus)}[/] [dim]the target's own[/]")
    return branches[0]


def label(tokenizer: Tokenizer, token: int) -> str:
    """A token's text on one line, safe for markup."""
    from rich.markup import escape

    text = tokenizer.token_bytes(token).decode("utf-8", errors="replace")
    return escape(repr(text)[1:-1]) or "(empty)"
