"""Law: no swallowed errors, hidden state or unfinished marks; a sentence on top of every file."""

import ast
import re
from collections.abc import Iterable

import pytest

from tests.laws.tree import Law, Module, cpp, dotted, everything, prose, report, source

BROAD = ("Exception", "BaseException")
MUTABLE_CALLS = (
    "list",
    "dict",
    "set",
    "defaultdict",
    "deque",
    "Counter",
    "OrderedDict",
    "bytearray",
)

# Written so that the pattern does not match its own text.
UNFINISHED = re.compile(r"\b(?:TO(?:DO)|FIX(?:ME)|X{3})\b")


def bare_excepts(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(node.lineno)}: bare except; name what is expected"
        for module in modules
        for node in module.of(ast.ExceptHandler)
        if node.type is None
    ]


def swallowed_errors(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(line)}: every exception is caught and dropped"
        for module in modules
        for line in (
            *(node.lineno for node in module.of(ast.ExceptHandler) if is_swallowing(node)),
            *(node.lineno for node in module.of(ast.Call) if is_broad_suppress(node)),
        )
    ]


def is_swallowing(handler: ast.ExceptHandler) -> bool:
    return names_broad(handler.type) and all(
        isinstance(statement, ast.Pass | ast.Continue | ast.Expr)
        and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call))
        for statement in handler.body
    )


def is_broad_suppress(call: ast.Call) -> bool:
    is_suppress = dotted(call.func) in ("suppress", "contextlib.suppress")
    return is_suppress and any(names_broad(argument) for argument in call.args)


def names_broad(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Tuple):
        return any(names_broad(element) for element in node.elts)
    return node is not None and ast.unparse(node) in BROAD


def mutable_defaults(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(default.lineno)}: {function.name} shares one mutable default between calls"
        for module in modules
        for function in module.functions
        for default in (*function.args.defaults, *function.args.kw_defaults)
        if default is not None and is_mutable(default)
    ]


def is_mutable(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in MUTABLE_CALLS
    displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    return isinstance(node, displays)


def global_state(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(node.lineno)}: global {', '.join(node.names)}; pass it as an argument"
        for module in modules
        for node in module.of(ast.Global)
    ]


def untitled_modules(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(1)}: line 1 must be a docstring whose first line is one sentence"
        for module in modules
        if not has_title(module)
    ]


def has_title(module: Module) -> bool:
    docstring = ast.get_docstring(module.tree, clean=False)
    if docstring is None or module.tree.body[0].lineno != 1:
        return False
    title = docstring.splitlines()[0]
    return title.endswith((".", "?", "!"))


def unfinished(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(number)}: {found.group()}; finish it, or open an issue"
        for module in modules
        for number, line in enumerate(module.lines, 1)
        if (found := UNFINISHED.search(line))
    ]


EVERYWHERE = (bare_excepts, swallowed_errors, mutable_defaults, untitled_modules)


@pytest.mark.parametrize("law", EVERYWHERE, ids=lambda law: law.__name__)
def test_all_python_obeys(law: Law) -> None:
    violations = law(everything())
    assert not violations, report(violations)


def test_package_has_no_global_state() -> None:
    violations = global_state(source())
    assert not violations, report(violations)


def test_nothing_is_marked_unfinished() -> None:
    violations = unfinished(everything() + cpp() + prose())
    assert not violations, report(violations)


@pytest.mark.parametrize(
    ("law", "text", "line"),
    [
        (bare_excepts, "try:\n    f()\nexcept:\n    raise", 3),
        (swallowed_errors, "try:\n    f()\nexcept Exception:\n    pass", 3),
        (swallowed_errors, "try:\n    f()\nexcept (OSError, BaseException):\n    ...", 3),
        (swallowed_errors, "for x in y:\n    try: f()\n    except Exception: continue", 3),
        (swallowed_errors, "with contextlib.suppress(Exception):\n    f()", 1),
        (mutable_defaults, "def f(x, y=[]): 0", 1),
        (mutable_defaults, "def f(*, y=dict()): 0", 1),
        (mutable_defaults, "async def f(y={1}): 0", 1),
        (global_state, "def f():\n    global x\n    x = 1", 2),
        (untitled_modules, "import os", 1),
        (untitled_modules, "# comment\n'''Late docstring.'''", 1),
        (untitled_modules, '"""No full stop"""', 1),
        (untitled_modules, "", 1),
        (unfinished, "x = 1\n# TO" + "DO: later", 2),
        (unfinished, "# FIX" + "ME", 1),
    ],
)
def test_law_bites(law: Law, text: str, line: int) -> None:
    violations = law([Module("src/aerie/engine/a.py", text)])
    assert [found for found in violations if found.startswith(f"src/aerie/engine/a.py:{line}:")]


def test_ordinary_code_is_legal() -> None:
    text = (
        '"""One sentence.\n\nThen more."""\n'
        "try:\n    f()\nexcept OSError:\n    pass\nexcept Exception as e:\n    log(e)\n"
        "def f(x=(), y=None): 0\n"
    )
    laws = (*EVERYWHERE, global_state, unfinished)
    assert [found for law in laws for found in law([Module("src/aerie/engine/a.py", text)])] == []
