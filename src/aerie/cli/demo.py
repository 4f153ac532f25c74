"""`aerie demo`: one round of speculative decoding, drawn as a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aerie.cli.checks import Json
from aerie.cli.output import console, finish

if TYPE_CHECKING:
    from rich.tree import Tree

    from aerie.cli.demo_round import Round


def demo(as_json: Json = False) -> None:
    """Play one round on a worked example with two backends and draw the tree."""
    from aerie.cli.demo_round import VERIFY, play
    from aerie.kernels import load

    out = console()
    out.print(
        "One round of lossless speculative decoding on a worked example (no model needed).\n"
        "The draft proposes a tree of continuations of [bold]the[/]; the target checks the most\n"
        f"promising {VERIFY} nodes in one pass and keeps the path it would have written itself.\n"
    )
    played = play(load("reference"))
    again = play(load("pytorch"))
    out.print(_drawing(played))
    _print_gains(played)
    words = " ".join(played.words[token] for token in played.emitted)
    out.print(
        f"\n[green]accepted[/] {len(played.accepted)} draft tokens and 1 token of the target's own:"
        f" [bold]{words}[/]"
        f"\n{len(played.emitted)} tokens from 1 target pass; plain decoding needs"
        f" {len(played.emitted)} passes for the same words."
    )
    same = played.emitted == again.emitted and played.accepted == again.accepted
    out.print(f"reference (NumPy) and pytorch backends agree: {'yes' if same else 'NO'}")
    out.print("next: aerie parity --backend pytorch · aerie bench kernels · docs/tour.md")
    finish(
        {
            "ok": same,
            "emitted": [played.words[token] for token in played.emitted],
            "accepted": len(played.accepted),
            "nodes": len(played.tokens),
            "verified": int(played.selected.sum()),
        },
        as_json,
    )


def _drawing(played: Round) -> Tree:
    """The verified nodes as a tree, the accepted path in colour, path scores beside them."""
    from rich.tree import Tree

    drawing = Tree(f"[bold]{played.words[played.tokens[0]]}[/] [dim]the last committed token[/]")
    branches = {0: drawing}
    for node in range(1, len(played.tokens)):
        if not played.selected[node]:
            continue
        word, score = played.words[played.tokens[node]], played.scores[node]
        is_accepted = node in played.accepted
        style, mark = ("bold green", " [green]accepted[/]") if is_accepted else ("default", "")
        label = f"[{style}]{word}[/] [dim]{score:.3f}[/]{mark}"
        branches[node] = branches[int(played.parents[node])].add(label)
    return drawing


def _print_gains(played: Round) -> None:
    from rich.table import Table

    table = Table(
        "draft level", "gain of its best node", "of its best three", box=None, title_justify="left"
    )
    for level, gains in enumerate(played.gains, start=1):
        table.add_row(str(level), f"{gains[1]:.3f}", f"{gains[3]:.3f}")
    out = console()
    out.print("\nWhat each level adds to the expected number of accepted tokens (kernel K3):")
    out.print(table)
