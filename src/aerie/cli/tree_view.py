"""Draws the tree of a round in the terminal: verified nodes, scores, the accepted path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.tree import Tree

    from aerie.engine.step import Outcome
    from aerie.text.tokenizer import Tokenizer


def draw_round(outcome: Outcome, index: int, number: int, tokenizer: Tokenizer) -> Tree:
    """The tree of one request of a step; the accepted path in green, the bonus token beneath it."""
    from rich.tree import Tree

    nodes = outcome.chosen[index].nonzero()[:, 0].tolist()
    count = int(outcome.verdict.accept_count[index])
    accepted = {nodes[row] for row in outcome.verdict.accept_index[index, : count + 1].tolist()}
    tokens, scores = outcome.tree.tokens[index], outcome.tree.scores[index]
    root = label(tokenizer, int(tokens[0]))
    title = f"round {number}: [bold]{root}[/] [dim]{len(nodes) - 1} draft nodes[/]"
    branches = {0: Tree(title, guide_style="dim")}
    last = 0
    for node in nodes[1:]:
        word = label(tokenizer, int(tokens[node]))
        is_accepted = node in accepted
        style, mark = ("bold green", " accepted") if is_accepted else ("default", "")
        parent = branches[int(outcome.tree.parents[index, node])]
        score = f"[dim]{float(scores[node]):.3f}{mark}[/]"
        branches[node] = parent.add(f"[{style}]{word}[/] {score}")
        last = node if is_accepted else last
    bonus = label(tokenizer, int(outcome.verdict.bonus_token[index]))
    branches[last].add(f"[bold cyan]{bonus}[/] [dim]the target's own[/]")
    return branches[0]


def label(tokenizer: Tokenizer, token: int) -> str:
    """A token's text on one line, safe for markup."""
    from rich.markup import escape

    text = tokenizer.token_bytes(token).decode("utf-8", errors="replace")
    return escape(repr(text)[1:-1]) or "(empty)"
