"""Law: each heavy or dangerous library has one door, and the command line opens without torch."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from tests.laws.tree import (
    Import,
    Law,
    Module,
    dotted,
    edges,
    matches,
    reachable,
    report,
    source,
)


@dataclass(frozen=True)
class Door:
    """`names` are imports, or calls written with dots; only files that match `paths` use them."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    reason: str


DOORS = (
    Door(
        ("triton",),
        ("src/aerie/kernels/triton_gpu/**", "src/aerie/attention/triton**"),
        "a machine without a GPU has no triton",
    ),
    Door(
        ("fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client"),
        ("src/aerie/server/**",),
        "GPU machines have no web framework",
    ),
    Door(
        ("torch.distributed",),
        ("src/aerie/parallel/group.py",),
        "ranks meet in one place, where every error gets its name",
    ),
    Door(("ray",), ("src/aerie/server/replicas.py",), "one server needs no cluster"),
    Door(
        ("safetensors",),
        ("src/aerie/models/weights*.py", "src/aerie/parity/dump*.py"),
        "weights are loaded strictly in one place; dumps use the same container",
    ),
    Door(
        ("llguidance",),
        ("src/aerie/text/grammar.py",),
        "grammars are an extra, and one file knows whose",
    ),
    Door(
        ("matplotlib",),
        ("src/aerie/perf/*plot*.py", "src/aerie/bench/*plot*.py"),
        "plots are optional",
    ),
    Door(
        ("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "torch.load"),
        ("src/aerie/models/convert_pickle.py", "src/aerie/server/line.py"),
        "loading a pickle runs whatever it contains; a line's other end is this program itself",
    ),
    Door(
        ("transformers",),
        ("src/aerie/bench/transformers_*.py",),
        "it is the tests' oracle and a rival to measure, never a part of the engine",
    ),
    Door(
        (
            "subprocess",
            "os.system",
            "os.popen",
            "asyncio.create_subprocess_exec",
            "asyncio.create_subprocess_shell",
        ),
        (
            "src/aerie/server/renderer.py",
            "src/aerie/server/host.py",
            "src/aerie/parallel/processes.py",
            "src/aerie/models/convert_pickle*.py",
            "src/aerie/fpga/build*.py",
            "src/aerie/kernels/hls/build*.py",
            "src/aerie/kernels/triton_gpu/ahead.py",
            "src/aerie/bench/provenance*.py",
            "src/aerie/cli/doctor*.py",
        ),
        "only named files start processes",
    ),
)

REFERENCE = ("src/aerie/kernels/reference/**",)
COMMANDS = ("src/aerie/cli/**",)
# What opens without torch: every command, and the process that speaks HTTP beside the engine's.
LIGHT = ("aerie.cli.main", "aerie.server.run")


def wrong_doors(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(line)}: {name} belongs to {door.paths or 'no file'}: {door.reason}"
        for module in modules
        for name, line in uses(module)
        for door in DOORS
        if any(is_part(name, forbidden) for forbidden in door.names)
        and not matches(module.path, door.paths)
    ]


def is_part(name: str, of: str) -> bool:
    return name == of or name.startswith(of + ".")


def uses(module: Module) -> Iterable[tuple[str, int]]:
    """Every import, and every dotted name that is called or passed on (`torch.load`)."""
    yield from ((item.target, item.line) for item in module.imports)
    yield from ((dotted(node), node.lineno) for node in module.of(ast.Attribute))


def pickled_arrays(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(node.value.lineno)}: allow_pickle is {ast.unparse(node.value)}, must be False"
        for module in modules
        for node in module.of(ast.keyword)
        if node.arg == "allow_pickle"
        if not (isinstance(node.value, ast.Constant) and node.value.value is False)
    ]


def torch_in_reference(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(item.line)}: the reference is NumPy, it never imports {item.target}"
        for module in modules
        if matches(module.path, REFERENCE)
        for item in module.imports
        if item.top == "torch"
    ]


def eager_torch_in_commands(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(item.line)}: imports {item.target} at the top; torch costs about 2 s, "
        "import it inside the command"
        for module in modules
        if matches(module.path, COMMANDS)
        for item in eager_torch(module)
    ]


def eager_torch_behind_what_is_light(modules: Iterable[Module]) -> list[str]:
    """`aerie --help` imports the main module and all it leads to: torch may not be among it."""
    known = {module.name: module for module in modules}
    graph = edges(known.values(), at_import_only=True)
    return [
        f"{known[name].at(item.line)}: {light} leads here at import, and torch loads"
        for light in LIGHT
        for name in sorted(reachable(light, graph) & known.keys())
        for item in eager_torch(known[name])
    ]


def eager_torch(module: Module) -> list[Import]:
    return [
        item
        for item in module.imports
        if item.top == "torch" and not (item.is_lazy or item.is_for_types)
    ]


LAWS = (
    wrong_doors,
    pickled_arrays,
    torch_in_reference,
    eager_torch_in_commands,
    eager_torch_behind_what_is_light,
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_package_obeys(law: Law) -> None:
    violations = law(source())
    assert not violations, report(violations)


LAZY_TORCH = "def run():\n    import torch"
LEADS_TO_TORCH = {
    "cli/main.py": "from aerie.kernels.card import Card",
    "kernels/__init__.py": "from aerie.kernels import fast",
    "kernels/card.py": "",
    "kernels/fast.py": "import torch",
}


@pytest.mark.parametrize(
    ("law", "files", "place"),
    [
        (wrong_doors, {"engine/round.py": "import triton.language as tl"}, "engine/round.py:1"),
        (wrong_doors, {"cli/serve.py": "def f():\n    import uvicorn"}, "cli/serve.py:2"),
        (wrong_doors, {"server/app.py": "from ray import serve"}, "server/app.py:1"),
        (wrong_doors, {"engine/round.py": "import torch.distributed"}, "engine/round.py:1"),
        (wrong_doors, {"config.py": "from pydantic import BaseModel"}, "config.py:1"),
        (wrong_doors, {"models/decoder.py": "import safetensors.torch"}, "models/decoder.py:1"),
        (wrong_doors, {"engine/masks.py": "import llguidance"}, "engine/masks.py:1"),
        (wrong_doors, {"bench/runner.py": "from matplotlib import pyplot"}, "bench/runner.py:1"),
        (wrong_doors, {"models/weights.py": "import pickle"}, "models/weights.py:1"),
        (
            wrong_doors,
            {"models/weights.py": "import torch\ntorch.load('x')"},
            "models/weights.py:2",
        ),
        (wrong_doors, {"models/weights.py": "from torch import load"}, "models/weights.py:1"),
        (wrong_doors, {"models/config.py": "import transformers"}, "models/config.py:1"),
        (wrong_doors, {"engine/round.py": "import subprocess"}, "engine/round.py:1"),
        (wrong_doors, {"engine/round.py": "import os\nos.system('x')"}, "engine/round.py:2"),
        (pickled_arrays, {"parity/dump.py": "load(p, allow_pickle=True)"}, "parity/dump.py:1"),
        (torch_in_reference, {"kernels/reference/a.py": LAZY_TORCH}, "kernels/reference/a.py:2"),
        (eager_torch_in_commands, {"cli/bench.py": "import torch.cuda"}, "cli/bench.py:1"),
        (eager_torch_behind_what_is_light, LEADS_TO_TORCH, "kernels/fast.py:1"),
    ],
)
def test_law_bites(law: Law, files: dict[str, str], place: str) -> None:
    modules = [Module(f"src/aerie/{path}", text) for path, text in files.items()]
    assert any(found.startswith(f"src/aerie/{place}:") for found in law(modules))


def test_open_doors_stay_open() -> None:
    files = {
        "kernels/triton_gpu/trees.py": "import triton",
        "attention/triton.py": "import triton",
        "server/app.py": "import fastapi",
        "models/weights.py": "import safetensors",
        "cli/bench.py": LAZY_TORCH,
        "cli/main.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "parity/dump.py": "load(path, allow_pickle=False)",
    }
    modules = [Module(f"src/aerie/{path}", text) for path, text in files.items()]
    assert [violation for law in LAWS for violation in law(modules)] == []
