"""Reads the source as syntax trees, so that a law can judge a module without importing it."""

import ast
import gc
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar, cast

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "aerie"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Import:
    """One imported name: `target` is absolute, down to the name itself (`numpy.linalg.norm`)."""

    target: str
    line: int
    is_lazy: bool  # inside a function, so not paid for when the module is imported
    is_for_types: bool  # under `if TYPE_CHECKING`, so never executed

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Module:
    """One Python file: `path` is relative to the repository root, with forward slashes."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @cached_property
    def name(self) -> str:
        """Dotted name: `src/aerie/kernels/card.py` is `aerie.kernels.card`."""
        dotted = self.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        return dotted.removesuffix(".__init__")

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_find_imports(self))

    @cached_property
    def by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        """Every node of the tree, walked once for all laws."""
        found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        pending: list[ast.AST] = [self.tree]
        for node in pending:  # grows meanwhile
            found[type(node)].append(node)
            pending.extend(_parts(node))
        return found

    def of(self, kind: type[Node]) -> list[Node]:
        """All nodes of one kind, outer ones first."""
        return cast(list[Node], self.by_kind.get(kind, []))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        return (*self.of(ast.FunctionDef), *self.of(ast.AsyncFunctionDef))

    @cached_property
    def classes(self) -> tuple[ast.ClassDef, ...]:
        return tuple(self.of(ast.ClassDef))

    def at(self, line: int) -> str:
        return f"{self.path}:{line}"


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is made of. Whether a name is read or written is no node to any law."""
    for name in node._fields:
        part = getattr(node, name, None)
        if isinstance(part, list):
            yield from (one for one in part if isinstance(one, ast.AST))
        elif isinstance(part, ast.AST) and not isinstance(part, ast.expr_context):
            yield part


Placed = ast.stmt | ast.expr
Place = tuple[int, int]  # line and column


def _find_imports(module: Module) -> Iterator[Import]:
    functions: tuple[Placed, ...] = (*module.functions, *module.of(ast.Lambda))
    lazy = [_span(node) for node in functions]
    for_types = [
        _span(statement)
        for node in module.of(ast.If)
        if "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
    ]
    statements: tuple[Placed, ...] = (*module.of(ast.Import), *module.of(ast.ImportFrom))
    for node in (*statements, *module.of(ast.Call)):
        for target in _targets(module, node):
            place = (node.lineno, node.col_offset)
            yield Import(target, node.lineno, _is_within(place, lazy), _is_within(place, for_types))


def _span(node: Placed) -> tuple[Place, Place]:
    end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
    return (node.lineno, node.col_offset), end


def _is_within(place: Place, spans: Iterable[tuple[Place, Place]]) -> bool:
    return any(start <= place < end for start, end in spans)


def _targets(module: Module, node: Placed) -> list[str]:
    """The absolute names that this one node imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = _base_of(module, node)
        return [f"{base}.{alias.name}" for alias in node.names]
    # importlib.import_module("x") and __import__("x") import as surely as the statement does.
    match node:
        case ast.Call(func=callee, args=[ast.Constant(value=str() as name), *_]):
            if dotted(callee) in ("__import__", "import_module", "importlib.import_module"):
                return [name]
    return []


def dotted(node: ast.AST) -> str:
    """A name as it is written, `a.b.c`; empty for what is no name. Unparsing takes far longer."""
    if isinstance(node, ast.Name):
        return node.id
    outer = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{outer}.{node.attr}" if outer and isinstance(node, ast.Attribute) else ""


def _base_of(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    # One dot means the package itself, which for `__init__` is the module's own name.
    keep = len(parts) - node.level + (1 if module.is_package else 0)
    return ".".join(parts[:keep] + ([node.module] if node.module else []))


def read(paths: Iterable[Path]) -> tuple[Module, ...]:
    return tuple(
        Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(paths)
    )


def parsed(paths: Iterable[Path]) -> tuple[Module, ...]:
    """Python files with their trees, which the collector is not shown.

    It would look at all nodes again and again: four times as long as parsing takes.
    """
    modules = read(paths)
    gc.disable()
    try:
        for module in modules:
            assert module.by_kind
    finally:
        gc.freeze()
        gc.enable()
    return modules


@cache
def source() -> tuple[Module, ...]:
    """Every module of the package."""
    return parsed((ROOT / "src" / PACKAGE).rglob("*.py"))


@cache
def suite() -> tuple[Module, ...]:
    """Every module of the tests, these laws included."""
    return parsed((ROOT / "tests").rglob("*.py"))


@cache
def everything() -> tuple[Module, ...]:
    """All Python of the repository: package, tests, examples and scripts."""
    loose = [path for folder in ("examples", "scripts") for path in (ROOT / folder).rglob("*.py")]
    return source() + suite() + parsed(loose)


@cache
def cpp() -> tuple[Module, ...]:
    """C++ sources. They have no Python syntax tree: only a law that reads lines may judge them."""
    return read(path for end in ("hpp", "cpp", "h") for path in (ROOT / "src").rglob(f"*.{end}"))


@cache
def prose() -> tuple[Module, ...]:
    """Markdown pages, for laws that read lines."""
    return read([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@cache
def repository_files() -> tuple[str, ...] | None:
    """Tracked files, and new ones that would be tracked: a fault is cheapest before its commit.

    None: this is no git checkout.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if run.returncode:
        return None
    return tuple(sorted({name for name in run.stdout.decode().split("\0") if name}))


def resolve(target: str, known: dict[str, Module]) -> Module | None:
    """The module that holds `target`: `aerie.errors.AerieError` is found in `aerie.errors`."""
    while target:
        if target in known:
            return known[target]
        target = target.rpartition(".")[0]
    return None


def edges(modules: Iterable[Module], *, at_import_only: bool) -> dict[str, set[str]]:
    """Which module imports which, by name, among `modules`.

    With `at_import_only` the graph is what the interpreter follows when a module is imported: lazy
    and typing-only imports drop out, and the `__init__` of every enclosing package comes in.
    """
    known = {module.name: module for module in modules}
    graph: dict[str, set[str]] = {name: set() for name in known}
    for module in known.values():
        for item in module.imports:
            if at_import_only and (item.is_lazy or item.is_for_types):
                continue
            found = resolve(item.target, known)
            if found is None:
                continue
            graph[module.name].add(found.name)
            if at_import_only:
                graph[module.name].update(_parents(found.name, known))
        graph[module.name].discard(module.name)
    return graph


def _parents(name: str, known: dict[str, Module]) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        if name in known:
            yield name


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Every module that `start` leads to, itself included."""
    seen, pending = {start}, [start]
    while pending:
        new = graph.get(pending.pop(), set()) - seen
        seen |= new
        pending.extend(new)
    return seen


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether `path` fits one of the globs; `*` stays within one folder, `**` does not."""
    return any(_glob(pattern).fullmatch(path) for pattern in patterns)


@cache
def _glob(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return re.compile(escaped)


# A law returns one line per violation, `file:line: value and limit`; an obeyed law returns none.
Law = Callable[[Iterable[Module]], list[str]]


def report(violations: list[str]) -> str:
    return f"{len(violations)} broken:\n" + "\n".join(violations)
