"""Law: the same six lines do not stand in two places."""

import ast
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.laws.tree import Module, report, source

WINDOW = 6
SHARE = 0.03

Line = tuple[int, str]  # line number, text without indentation


def counted_lines(module: Module) -> list[Line]:
    """Lines that can be a repeat: no imports, docstrings, comments, blanks or lone brackets."""
    skipped: set[int] = set()
    texts = [node for node in module.of(ast.Expr) if isinstance(node.value, ast.Constant)]
    for node in (*texts, *module.of(ast.Import), *module.of(ast.ImportFrom)):
        skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return [
        (number, line.strip())
        for number, line in enumerate(module.lines, 1)
        if number not in skipped
        and not line.strip().startswith("#")
        and any(character.isalnum() for character in line)
    ]


def repeats(modules: Iterable[Module]) -> tuple[float, list[str]]:
    """The share of lines that stand again elsewhere, and where each repeated block begins."""
    lines = {module.path: counted_lines(module) for module in modules}
    windows: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, counted in lines.items():
        for start in range(len(counted) - WINDOW + 1):
            key = tuple(text for _, text in counted[start : start + WINDOW])
            windows[key].append((path, start))
    repeated = {
        (path, start + offset)
        for places in windows.values()
        if len(places) > 1
        for path, start in places
        for offset in range(WINDOW)
    }
    blocks = [
        f"{path}:{lines[path][index][0]}: {lines[path][index][1]}"
        for path, index in sorted(repeated)
        if (path, index - 1) not in repeated
    ]
    return len(repeated) / max(1, sum(map(len, lines.values()))), blocks


def duplicates(modules: Iterable[Module]) -> list[str]:
    share, blocks = repeats(modules)
    summary = f"{share:.1%} of the lines stand again elsewhere, limit {SHARE:.0%}; they begin at"
    return [summary, *blocks] if share > SHARE else []


def test_package_obeys() -> None:
    violations = duplicates(source())
    assert not violations, report(violations)


BLOCK = "\n".join(f"x{i} = f({i})" for i in range(WINDOW))
SHORTER = BLOCK.rpartition("\n")[0]
INDENTED = "def f():\n" + "\n".join("    " + line for line in BLOCK.splitlines())
IMPORTS = "\n".join(f"import module_{i}" for i in range(WINDOW))


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        (BLOCK, BLOCK, 1.0),
        (BLOCK, INDENTED, 12 / 13),
        (BLOCK, BLOCK.replace("\n", "\n\n# why\n"), 1.0),
        (BLOCK + "\n" + BLOCK, "", 1.0),
        (SHORTER, SHORTER, 0.0),
        (IMPORTS, IMPORTS, 0.0),
    ],
)
def test_share_is_measured(first: str, second: str, share: float) -> None:
    modules = [Module("src/aerie/a.py", first), Module("src/aerie/b.py", second)]
    assert repeats(modules)[0] == pytest.approx(share)


def test_law_bites() -> None:
    modules = [Module("src/aerie/a.py", "y = 1\n" + BLOCK), Module("src/aerie/b.py", BLOCK)]
    assert duplicates(modules)[1:] == ["src/aerie/a.py:2: x0 = f(0)", "src/aerie/b.py:1: x0 = f(0)"]
