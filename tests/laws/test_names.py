"""Law: the public names are a written list, packages only export, and file names say something."""

import ast
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

import pytest

from tests.laws.tree import Function, Law, Module, report, source

# What `import aerie` promises. A change here is a change of the public interface.
PUBLIC = [
    "Engine",
    "EngineConfig",
    "Grammar",
    "JsonSchema",
    "Regex",
    "SamplingParams",
    "__version__",
]

# Names that say nothing about what is inside.
EMPTY_NAMES = re.compile(
    r"(utils?|helpers?|common|misc|managers?|v\d+|new_.*|.*_(utils?|helpers?))"
)

# A checkpoint is a row of a table, never a file: the next one must need no new module.
CHECKPOINTS = ("llama", "qwen", "gpt_oss", "gptoss", "mistral", "gemma", "deepseek")

# PEP 562 hooks export a name late, so that `import aerie` need not load torch.
LATE_EXPORTS = ("__getattr__", "__dir__")


def wrong_exports(modules: Iterable[Module]) -> list[str]:
    """Of the root package only: `__all__` is the list above, and every name of it is bound."""
    out = []
    for module in modules:
        if module.path != "src/aerie/__init__.py":
            continue
        exported = declared_all(module)
        if exported is None or sorted(exported) != sorted(PUBLIC):
            out.append(f"{module.at(1)}: __all__ is {exported}, the law's list is {PUBLIC}")
        missing = set(exported or ()) - bound_names(module)
        extra = {name for name in bound_names(module) if not name.startswith("_")} - set(PUBLIC)
        has_late = any(function.name == "__getattr__" for function in module.functions)
        if missing and not has_late:
            out.append(f"{module.at(1)}: exported but not bound: {sorted(missing)}")
        if extra:
            out.append(f"{module.at(1)}: bound but not exported: {sorted(extra)}")
    return out


def declared_all(module: Module) -> list[str] | None:
    for statement in module.tree.body:
        if isinstance(statement, ast.Assign) and is_name(statement.targets[0], "__all__"):
            return [str(name) for name in ast.literal_eval(statement.value)]
    return None


def is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def bound_names(module: Module) -> set[str]:
    """Names that the module's own statements bind, typing-only imports left out."""
    out: set[str] = set()
    for statement in module.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            out |= {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.Assign):
            out |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, Function | ast.ClassDef):
            out.add(statement.name)
    return out


def busy_packages(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(statement.lineno)}: an __init__ only exports; move this to a named module"
        for module in modules
        if module.is_package
        for statement in module.tree.body
        if not only_exports(statement)
    ]


def only_exports(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")]):
            return True
        case ast.If(test=test, body=body, orelse=[]):
            return "TYPE_CHECKING" in ast.unparse(test) and all(map(only_exports, body))
        case ast.FunctionDef(name=name):
            return name in LATE_EXPORTS
    return False


def empty_names(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(1)}: the name {part} says nothing about what is inside"
        for module in modules
        for part in PurePosixPath(module.path).with_suffix("").parts
        if EMPTY_NAMES.fullmatch(part)
    ]


def checkpoint_names(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(1)}: names the checkpoint {name}; make it a row of a table"
        for module in modules
        for name in CHECKPOINTS
        if name in module.path.removeprefix("src/aerie/").lower()
    ]


LAWS = (wrong_exports, busy_packages, empty_names, checkpoint_names)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_package_obeys(law: Law) -> None:
    violations = law(source())
    assert not violations, report(violations)


UNLISTED = '__all__ = ["__version__", "magic"]\n__version__ = "1"\nmagic = 2'
UNBOUND = f"__all__ = {PUBLIC}"
UNEXPORTED = '__all__ = ["__version__"]\n__version__ = "1"\nimport os'
LATE = "def __getattr__(name): return 1"


@pytest.mark.parametrize(
    ("law", "path", "text", "is_broken"),
    [
        (wrong_exports, "__init__.py", UNLISTED, True),
        (wrong_exports, "__init__.py", UNBOUND, True),
        (wrong_exports, "__init__.py", UNEXPORTED, True),
        (wrong_exports, "__init__.py", "", True),
        (wrong_exports, "__init__.py", UNBOUND + "\n" + LATE, False),
        (busy_packages, "kernels/__init__.py", "TABLE = {}", True),
        (busy_packages, "kernels/__init__.py", "def load(): 0", True),
        (busy_packages, "kernels/__init__.py", "for x in y: f(x)", True),
        (busy_packages, "kernels/__init__.py", '"""Doc."""\nfrom .a import b\n' + LATE, False),
        (busy_packages, "kernels/card.py", "TABLE = {}", False),
        (empty_names, "engine/utils.py", "", True),
        (empty_names, "engine/tree_helpers.py", "", True),
        (empty_names, "common/tree.py", "", True),
        (empty_names, "engine/v2/round.py", "", True),
        (empty_names, "engine/new_round.py", "", True),
        (empty_names, "engine/renewal.py", "", False),
        (checkpoint_names, "models/qwen3.py", "", True),
        (checkpoint_names, "models/decoder.py", "", False),
    ],
)
def test_law_bites(law: Law, path: str, text: str, is_broken: bool) -> None:
    assert bool(law([Module(f"src/aerie/{path}", text)])) is is_broken
