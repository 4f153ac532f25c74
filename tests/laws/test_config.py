"""Law: configuration stays small: few lines, few fields, few environment names, all AERIE_*."""

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.laws.tree import Law, Module, dotted, report, source

CONFIG = "src/aerie/config/"
# Lines of the whole package; 120 of them read values as people write them. 60 lines and 10 fields
# are of partial KV, whose names users of SpecPV know; 20 and 6 of a draft's window and hot ids; 2
# of how a draft is multiplied.
LINES, FIELDS, ENVIRONMENT = 547, 66, 6
READERS = ("os.environ", "environ")
CALLS = (
    "os.getenv",
    "getenv",
    *(f"{r}.{m}" for r in READERS for m in ("get", "pop", "setdefault")),
)


def long_config(modules: Iterable[Module]) -> list[str]:
    own = [module for module in modules if module.path.startswith(CONFIG)]
    n_lines = sum(len(module.lines) for module in own)
    longest = max(own, key=lambda module: len(module.lines), default=None)
    if longest is None or n_lines <= LINES:
        return []
    return [f"{longest.at(len(longest.lines))}: {n_lines} lines in all, limit {LINES}"]


def many_fields(modules: Iterable[Module]) -> list[str]:
    fields = [
        module.at(statement.lineno)
        for module in modules
        if module.path.startswith(CONFIG)
        for node in module.classes
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    ]
    return [f"{fields[FIELDS]}: {len(fields)} fields, limit {FIELDS}"] if fields[FIELDS:] else []


def environment_keys(module: Module) -> Iterator[tuple[ast.expr, int]]:
    """The key of every access to the process environment."""
    for node in (*module.of(ast.Subscript), *module.of(ast.Call), *module.of(ast.Compare)):
        match node:
            case ast.Subscript(value=value, slice=key) if dotted(value) in READERS:
                yield key, node.lineno
            case ast.Call(func=func, args=[key, *_]) if dotted(func) in CALLS:
                yield key, node.lineno
            case ast.Compare(left=key, comparators=[place]) if dotted(place) in READERS:
                yield key, node.lineno


def constants(module: Module) -> dict[str, str]:
    """Module-level names that hold a string: an environment name may be written that way."""
    return {
        statement.targets[0].id: statement.value.value
        for statement in module.tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        if isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    }


def environment_name(module: Module, key: ast.expr) -> str | None:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    return constants(module).get(key.id) if isinstance(key, ast.Name) else None


def foreign_environment(modules: Iterable[Module]) -> list[str]:
    out = []
    for module in modules:
        for key, line in environment_keys(module):
            name = environment_name(module, key)
            if name is None:
                out.append(f"{module.at(line)}: {ast.unparse(key)} must be a literal name")
            elif not name.startswith("AERIE_"):
                out.append(f"{module.at(line)}: {name} must begin with AERIE_")
    return out


def many_environment_names(modules: Iterable[Module]) -> list[str]:
    first_use: dict[str, str] = {}
    for module in modules:
        for key, line in environment_keys(module):
            first_use.setdefault(environment_name(module, key) or ast.unparse(key), module.at(line))
    return [
        f"{place}: {name} is one of {len(first_use)} environment names, limit {ENVIRONMENT}"
        for name, place in list(first_use.items())[ENVIRONMENT:]
    ]


LAWS = (long_config, many_fields, foreign_environment, many_environment_names)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_package_obeys(law: Law) -> None:
    violations = law(source())
    assert not violations, report(violations)


SLICES = "class A:\n" + "    x: int\n" * 40 + "class B:\n" + "    x: int\n" * 27
SEVEN = "import os\n" + "".join(f"os.getenv('AERIE_{i}')\n" for i in range(7))


@pytest.mark.parametrize(
    ("law", "path", "text", "place"),
    [
        (long_config, "config/a.py", "x = 1\n" * 548, "config/a.py:548"),
        (many_fields, "config/a.py", SLICES, "config/a.py:69"),
        (foreign_environment, "cli/a.py", "os.environ['HOME']", "cli/a.py:1"),
        (foreign_environment, "cli/a.py", "os.environ.get('DEBUG', '')", "cli/a.py:1"),
        (foreign_environment, "cli/a.py", "'DEBUG' in os.environ", "cli/a.py:1"),
        (foreign_environment, "cli/a.py", "NAME = 'DEBUG'\ngetenv(NAME)", "cli/a.py:2"),
        (foreign_environment, "cli/a.py", "def f(name):\n    os.getenv(name)", "cli/a.py:2"),
        (many_environment_names, "cli/a.py", SEVEN, "cli/a.py:8"),
    ],
)
def test_law_bites(law: Law, path: str, text: str, place: str) -> None:
    violations = law([Module(f"src/aerie/{path}", text)])
    assert [found for found in violations if found.startswith(f"src/aerie/{place}:")]


def test_own_names_are_legal() -> None:
    text = "TRACE = 'AERIE_TRACE'\nos.environ.get(TRACE)\nos.environ['AERIE_TRACE']"
    module = Module("src/aerie/parity/trace.py", text)
    assert [violation for law in LAWS for violation in law([module])] == []
