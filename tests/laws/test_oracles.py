"""Law: an oracle is independent: nothing it imports leads to the kernels it judges."""

from collections.abc import Iterable

import pytest

from tests.laws.tree import Law, Module, edges, matches, reachable, report, source, suite

ORACLES = ("tests/oracle*.py", "tests/**/oracle*.py", "tests/oracles/**")
JUDGED = "aerie.kernels"


def is_judged(name: str) -> bool:
    return name == JUDGED or name.startswith(JUDGED + ".")


def dependent_oracles(modules: Iterable[Module]) -> list[str]:
    known = {module.name: module for module in modules}
    graph = edges(known.values(), at_import_only=False)
    out = []
    for module in known.values():
        if not matches(module.path, ORACLES):
            continue
        for item in module.imports:
            if is_judged(item.target):
                out.append(f"{module.at(item.line)}: the oracle imports {item.target}")
        through = sorted(filter(is_judged, reachable(module.name, graph)))
        if through:
            out.append(f"{module.at(1)}: what the oracle imports leads to {through[0]}")
    return out


def test_oracles_obey() -> None:
    violations = dependent_oracles(source() + suite())
    assert not violations, report(violations)


DIRECT = {"tests/unit/oracle_trees.py": "def f():\n    from aerie.kernels import load"}
NESTED = {"tests/oracles/deep/walk.py": "import aerie.kernels.card"}
THROUGH = {
    "tests/oracles/walk.py": "from tests.unit import cases",
    "tests/unit/cases.py": "from aerie.parity import matrix",
    "src/aerie/parity/matrix.py": "from aerie.kernels import registry",
    "src/aerie/kernels/registry.py": "",
}


@pytest.mark.parametrize(
    ("law", "files", "place"),
    [
        (dependent_oracles, DIRECT, "tests/unit/oracle_trees.py:2"),
        (dependent_oracles, NESTED, "tests/oracles/deep/walk.py:1"),
        (dependent_oracles, THROUGH, "tests/oracles/walk.py:1"),
    ],
)
def test_law_bites(law: Law, files: dict[str, str], place: str) -> None:
    violations = law([Module(path, text) for path, text in files.items()])
    assert [found for found in violations if found.startswith(place + ":")]


def test_independent_oracle_is_legal() -> None:
    files = {
        "tests/oracles/walk.py": "import numpy",
        "tests/unit/test_a.py": "import aerie.kernels",
    }
    assert dependent_oracles([Module(path, text) for path, text in files.items()]) == []
