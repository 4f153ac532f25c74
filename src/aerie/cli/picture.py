"""Generates docs/images/round.svg: the tree of the worked example, accepted path in colour."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from aerie.cli.demo_round import Round, play
from aerie.kernels import load

_COLUMN, _LINE, _BOX_WIDTH, _BOX_HEIGHT, _MARGIN = 132, 40, 104, 28, 16
_ACCEPTED, _VERIFIED = "#1a7f37", "#8c959f"
_FONT = "font-family='ui-monospace,Menlo,Consolas,monospace' font-size='13'"


def render() -> str:
    """The picture as SVG text; the same on every run."""
    played = play(load("reference"))
    places = _places(played)
    width = _MARGIN * 2 + _COLUMN * max(x for x, _ in places.values()) + _BOX_WIDTH
    height = _MARGIN * 2 + int(_LINE * max(y for _, y in places.values())) + _BOX_HEIGHT + 24
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'"
        f" width='{width}' height='{height}'>",
        "<title>One round: verified nodes, accepted path in green</title>",
        f"<rect width='{width}' height='{height}' fill='white'/>",
    ]
    lines += [_edge(played, places, node) for node in places if node]
    lines += [_box(played, places, node) for node in places]
    caption = "numbers: path probability under the draft; green: accepted by the target in one pass"
    lines.append(f"<text x='{_MARGIN}' y='{height - 10}' fill='#57606a' {_FONT}>{caption}</text>")
    return "\n".join([*lines, "</svg>"]) + "\n"


def _places(played: Round) -> dict[int, tuple[int, float]]:
    """Column and line of every verified node: leaves on their own lines, parents between them."""
    nodes = played.tree.nodes
    children: list[list[int]] = [[] for _ in nodes]
    for place_idx, node in enumerate(nodes[1:], start=1):
        children[node.parent].append(place_idx)
    places: dict[int, tuple[int, float]] = {}
    free_line = 0

    def place(node: int, column: int) -> float:
        nonlocal free_line
        lines = [place(child, column + 1) for child in children[node]]
        if not lines:
            lines = [float(free_line)]
            free_line += 1
        places[node] = (column, (lines[0] + lines[-1]) / 2)
        return places[node][1]

    place(0, 0)
    return places


def _corner(place: tuple[int, float]) -> tuple[float, float]:
    return _MARGIN + place[0] * _COLUMN, _MARGIN + place[1] * _LINE


def _edge(played: Round, places: dict[int, tuple[int, float]], node: int) -> str:
    own = played.tree.nodes[node]
    left, top = _corner(places[own.parent])
    right, bottom = _corner(places[node])
    middle = _BOX_HEIGHT / 2
    colour, thickness = (_ACCEPTED, 3) if own.is_accepted else (_VERIFIED, 1)
    return (
        f"<path d='M{left + _BOX_WIDTH:g} {top + middle:g} L{right:g} {bottom + middle:g}'"
        f" stroke='{colour}' stroke-width='{thickness}' fill='none'/>"
    )


def _box(played: Round, places: dict[int, tuple[int, float]], node: int) -> str:
    x, y = _corner(places[node])
    own = played.tree.nodes[node]
    colour, fill = (_ACCEPTED, "#dafbe1") if own.is_accepted else (_VERIFIED, "#f6f8fa")
    word = escape(played.words[own.token])
    label = word if node == 0 else f"{word} {own.score:.2f}"
    return (
        f"<rect x='{x:g}' y='{y:g}' width='{_BOX_WIDTH}' height='{_BOX_HEIGHT}' rx='6'"
        f" fill='{fill}' stroke='{colour}'/>"
        f"<text x='{x + 8:g}' y='{y + 19:g}' {_FONT}>{label}</text>"
    )


def main() -> None:
    """Write docs/images/round.svg below the current folder."""
    target = Path("docs/images/round.svg")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
