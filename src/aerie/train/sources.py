"""Finds Python sources on this machine: the standard library and permissively licensed packages."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A licence is accepted if every part of it is one of these. Texts are matched as they are written
# in package metadata: SPDX expressions, classifiers, or the first line of a licence.
PERMISSIVE = re.compile(
    r"\b(0BSD|BSD|MIT|Apache|ISC|PSF|Python Software Foundation|HPND|CMU|Zlib|Unlicense|CC0"
    r"|CNRI|BSL-1|Boost|Public Domain|matplotlib)",
    re.IGNORECASE,
)
RESTRICTED = re.compile(
    r"\b(A?L?GPL|GNU|MPL|Mozilla|Proprietary|NVIDIA|EULA|CC-BY|Creative Commons|Commercial"
    r"|EPL|CDDL|SSPL)",
    re.IGNORECASE,
)

STANDARD_LIBRARY = "python"
OWN_NAME = "aerie"

# Folders that hold data, generated code or copies rather than sources.
SKIPPED_PARTS = {
    "__pycache__",
    "testdata",
    "test_data",
    "site-packages",
    "dist-packages",
    "_generated",
    "node_modules",
    "idle_test",
}
SKIPPED_ENDS = ("_pb2.py", "_pb2_grpc.py", ".min.py", "_generated.py", "_gen.py")
STANDARD_LIBRARY_SKIPPED = {"test", "tests", "lib2to3", "turtledemo", "ensurepip"}

SMALLEST, LARGEST = 200, 300_000  # bytes of a file worth learning from


@dataclass(frozen=True)
class Package:
    """A package whose licence allows learning from it, and shipping excerpts of it."""

    name: str
    version: str
    licence: str


@dataclass(frozen=True)
class SourceFile:
    """One file; `path` is relative to its installation root, so it means the same everywhere."""

    package: int  # index into `Found.packages`
    path: str
    location: Path


@dataclass(frozen=True)
class Found:
    """What was found, and what was left out because of its licence."""

    packages: tuple[Package, ...]
    refused: tuple[Package, ...]
    files: tuple[SourceFile, ...]


def find_sources() -> Found:
    """All usable Python files, sorted by package and path: the same machine gives the same list."""
    packages: list[Package] = []
    refused: list[Package] = []
    files: list[SourceFile] = []
    stdlib = Path(sysconfig.get_path("stdlib"))
    own = Package(STANDARD_LIBRARY, platform.python_version(), "PSF-2.0")
    packages.append(own)
    files += [SourceFile(0, path, stdlib / path) for path in _standard_library(stdlib)]
    for distribution in _distributions():
        found = Package(
            distribution.metadata["Name"], distribution.version, _read_licence(distribution)
        )
        if not is_permissive(found.licence):
            refused.append(found)
            continue
        packages.append(found)
        files += [
            SourceFile(len(packages) - 1, path, Path(str(distribution.locate_file(path))))
            for path in sorted(str(entry) for entry in distribution.files or ())
            if is_source(path)
        ]
    return Found(tuple(packages), tuple(refused), tuple(files))


def is_source(path: str) -> bool:
    """Whether the name is that of a hand-written Python file inside the installation."""
    parts = Path(path).parts
    if not path.endswith(".py") or path.endswith(SKIPPED_ENDS) or ".." in parts:
        return False
    return not SKIPPED_PARTS.intersection(parts)


def _read_licence(distribution: importlib.metadata.Distribution) -> str:
    """The licence as the metadata states it: expression, else classifiers, else a first line."""
    metadata = distribution.metadata
    expression = metadata.get_all("License-Expression")
    if expression:
        return str(expression[0])
    classifiers = [
        str(entry).rpartition("::")[2].strip()
        for entry in metadata.get_all("Classifier") or ()
        if str(entry).startswith("License ::")
    ]
    if classifiers:
        return " AND ".join(sorted(classifiers))
    lines = "\n".join(metadata.get_all("License") or ()).strip().splitlines()
    return lines[0][:80] if lines else "unknown"


def is_permissive(licence: str) -> bool:
    """Whether the licence is permissive in all its parts; an unknown one is not."""
    return bool(PERMISSIVE.search(licence)) and not RESTRICTED.search(licence)


def _distributions() -> list[importlib.metadata.Distribution]:
    """Installed packages by name, each once, this project left out."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name and name != OWN_NAME:
            found.setdefault(name, distribution)
    return [found[name] for name in sorted(found)]


def _standard_library(root: Path) -> Iterator[str]:
    paths = (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    for path in sorted(paths):
        if is_source(path) and not STANDARD_LIBRARY_SKIPPED.intersection(Path(path).parts):
            yield path
