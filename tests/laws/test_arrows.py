"""Law: imports point down, form no cycle, and no kernel backend knows another."""

from collections.abc import Iterable

import pytest

from tests.laws.tree import PACKAGE, Law, Module, edges, reachable, report, resolve, source

# One row per package or top-level module: what it stands on. An import is legal if following the
# arrows leads there, so `engine` may import `kernels` because it stands on `models`.
ARROWS: dict[str, tuple[str, ...]] = {
    "__main__": ("cli",),
    "cli": ("server", "parity", "bench", "fpga", "train", "aerie"),
    "server": ("api", "aerie"),
    "parity": ("api", "perf", "sources"),
    "bench": ("api", "perf", "sources", "aerie"),
    "fpga": ("bench", "parity", "perf"),  # the contract it races on, the dumps it is compared on
    "aerie": ("public",),  # the public names; only the outermost layer may import them back
    "public": ("api",),  # by name, on first use
    "api": ("assemble", "texts", "completion"),
    "completion": ("requests",),  # a value that the server passes on without an engine
    "texts": ("engine", "text"),  # what open requests have written
    # What auto stands for, where it runs and with which arithmetic, and the parts of an engine.
    "assemble": ("tune", "text", "engine", "parallel", "speculation", "near_ties"),
    "parallel": ("models",),  # the engine does not know in how many processes a target runs
    "tune": ("engine",),
    "engine": ("kv", "speculation", "models"),
    "kv": ("requests", "kernels"),
    # A grammar is a value that a request names.
    "requests": ("config", "text", "near_ties", "by_context"),
    "train": ("models",),
    "speculation": ("costs", "kernels", "attention"),
    "costs": ("config",),
    "models": ("kernels", "attention"),
    "perf": ("kernels",),
    "kernels": ("errors", "config", "chips"),
    "attention": ("errors", "config", "chips"),
    "text": ("errors",),
    "config": ("errors",),
    "errors": (),
    "by_context": (),  # two tallies that a request, an engine and a server keep alike
    "near_ties": ("by_context",),
    "chips": (),  # what a device is to the kernels of both
    "sources": (),  # hashes of what the others say
    "assets": (),
}

BACKENDS = tuple(
    f"{PACKAGE}.kernels.{name}"
    for name in ("reference", "numpy_cpu", "pytorch", "triton_gpu", "hls")
)

# The one module of `kernels` that may import a backend, and only late, when one is asked for.
LOADER = f"{PACKAGE}.kernels.registry"


def below(package: str) -> set[str]:
    graph = {name: set(targets) for name, targets in ARROWS.items()}
    return reachable(package, graph)


def package_of(module_name: str) -> str:
    """`aerie.kernels.card` belongs to `kernels`; the root itself is `aerie`."""
    parts = module_name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def within(module_name: str, package: str) -> bool:
    return module_name == package or module_name.startswith(package + ".")


def wrong_arrows(modules: Iterable[Module]) -> list[str]:
    known = {module.name: module for module in modules}
    out = []
    for module in known.values():
        package = package_of(module.name)
        if package not in ARROWS:
            out.append(f"{module.at(1)}: package {package} has no row in the table of arrows")
            continue
        for item in module.imports:
            if item.top != PACKAGE:
                continue
            found = resolve(item.target, known)
            target = package_of(found.name if found else item.target)
            if target not in below(package):
                out.append(f"{module.at(item.line)}: {package} imports {item.target}, not below it")
    return out


def cycles(modules: Iterable[Module]) -> list[str]:
    """Lazy and typing-only imports count: a cycle that happens to load is still a cycle."""
    known = {module.name: module for module in modules}
    graph = edges(known.values(), at_import_only=False)
    return [
        f"{module.at(item.line)}: {module.name} imports {found.name}, which leads back to it"
        for module in known.values()
        for item in module.imports
        if (found := resolve(item.target, known)) and found is not module
        if module.name in reachable(found.name, graph)
    ]


def backend_of(module_name: str) -> str | None:
    return next((name for name in BACKENDS if within(module_name, name)), None)


def mixed_backends(modules: Iterable[Module]) -> list[str]:
    out = []
    for module in modules:
        own = backend_of(module.name)
        if not within(module.name, f"{PACKAGE}.kernels"):
            continue
        for item in module.imports:
            other = backend_of(item.target)
            if other is None or other == own:
                continue
            if own:
                out.append(f"{module.at(item.line)}: backend {own} imports its sibling {other}")
            elif not (module.name == LOADER and item.is_lazy):
                out.append(f"{module.at(item.line)}: {module.name} imports the backend {other}")
    return out


LAWS = (wrong_arrows, cycles, mixed_backends)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_package_obeys(law: Law) -> None:
    violations = law(source())
    assert not violations, report(violations)


def test_table_is_a_hierarchy() -> None:
    graph = {name: set(targets) for name, targets in ARROWS.items()}
    looped = [name for name in graph for target in graph[name] if name in reachable(target, graph)]
    assert not looped
    assert {target for targets in graph.values() for target in targets} <= set(graph)


UPWARD = {"kernels/card.py": "from aerie.engine import round", "engine/round.py": "run = 1"}
LAZY = {"kernels/card.py": "def f():\n    import aerie.cli.main", "cli/main.py": ""}
UNKNOWN = {"gadgets/thing.py": ""}
CYCLE = {
    "models/a.py": "from aerie.models.b import x",
    "models/b.py": "def f():\n    from . import a",
}
TYPED_CYCLE = {
    "models/a.py": "from aerie.models.b import x",
    "models/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import y",
}
SIBLING = {"kernels/pytorch/trees.py": "from aerie.kernels.reference.trees import grow"}
DYNAMIC = {
    "kernels/hls/bind.py": "import importlib\nimportlib.import_module('aerie.kernels.pytorch')"
}
CARD = {"kernels/card.py": "def f():\n    from aerie.kernels import reference"}
EAGER = {"kernels/registry.py": "import aerie.kernels.pytorch.table"}


@pytest.mark.parametrize(
    ("law", "files", "place"),
    [
        (wrong_arrows, UPWARD, "src/aerie/kernels/card.py:1"),
        (wrong_arrows, LAZY, "src/aerie/kernels/card.py:2"),
        (wrong_arrows, UNKNOWN, "src/aerie/gadgets/thing.py:1"),
        (cycles, CYCLE, "src/aerie/models/b.py:2"),
        (cycles, TYPED_CYCLE, "src/aerie/models/b.py:3"),
        (mixed_backends, SIBLING, "src/aerie/kernels/pytorch/trees.py:1"),
        (mixed_backends, DYNAMIC, "src/aerie/kernels/hls/bind.py:2"),
        (mixed_backends, CARD, "src/aerie/kernels/card.py:2"),
        (mixed_backends, EAGER, "src/aerie/kernels/registry.py:1"),
    ],
)
def test_law_bites(law: Law, files: dict[str, str], place: str) -> None:
    modules = [Module(f"src/aerie/{path}", text) for path, text in files.items()]
    assert any(found.startswith(place + ":") for found in law(modules))


def test_downward_imports_are_legal() -> None:
    files = {
        "engine/round.py": "from aerie.kernels.card import Card\nimport aerie.errors",
        "kernels/card.py": "from aerie.errors import AerieError",
        "kernels/registry.py": "def load():\n    import aerie.kernels.reference",
        "kernels/reference/trees.py": "from aerie.kernels.card import Card\nfrom . import scores",
        "errors.py": "",
    }
    modules = [Module(f"src/aerie/{path}", text) for path, text in files.items()]
    assert [violation for law in LAWS for violation in law(modules)] == []
