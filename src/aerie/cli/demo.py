"""`aerie demo`: one round of speculative decoding, drawn as a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aerie.cli.checks import Json
from aerie.cli.output import console, finish

if TYPE_CHECKING:
    from aerie.cli.demo_round import Round


def demo(as_json: Json = False) -> None:
    """Play one round on a worked example with two backends and draw the tree."""
    from aerie.cli.demo_round import VERIFY, play
    from aerie.cli.tree_view import draw_round
    from aerie.kernels import load

    out = console()
    out.print(
        "One round of lossless speculative decoding on a worked example (no model needed).\n"
        "The draft proposes a tree of continuations of [bold]the[/]; the target checks the most\n"
        f"promising {VERIFY} nodes in one pass and keeps the path it would have written itself.\n"
    )
    played = play(load("reference"))
    again = play(load("pytorch"))
    out.print(draw_round(played.tree, "after", lambda token: played.words[token]))
    _print_gains(played)
    words = " ".join(played.emitted)
    out.print(
        f"\n[green]accepted[/] {played.tree.n_accepted} draft tokens and 1 token of the target's"
        f" own: [bold]{words}[/]"
        f"\n{len(played.emitted)} tokens from 1 target pass; plain decoding needs"
        f" {len(played.emitted)} passes for the same words."
    )
    paths = [[node.is_accepted for node in own.tree.nodes] for own in (played, again)]
    same = played.emitted == again.emitted and paths[0] == paths[1]
    out.print(f"reference (NumPy) and pytorch backends agree: {'yes' if same else 'NO'}")
    out.print("next: aerie parity --backend pytorch · aerie bench kernels · docs/tour.md")
    finish(
        {
            "ok": same,
            "emitted": list(played.emitted),
            "accepted": played.tree.n_accepted,
            "nodes": played.n_nodes,
            "verified": len(played.tree.nodes),
        },
        as_json,
    )


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
