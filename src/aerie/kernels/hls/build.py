"""Compiles the kernels of a family to a shared library, once per content."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aerie.errors import BackendUnavailableError

FOLDER = Path(__file__).parent
COMPILER = "g++"
# No contraction: a fused multiply-add rounds once where the reference rounds twice.
FLAGS = (
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-unused-label",
    "-shared",
    "-fPIC",
)
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
CACHE_VARIABLE = "AERIE_CACHE"
DEFAULT_CACHE = "~/.cache/aerie"


@dataclass(frozen=True)
class Sources:
    """What a family is compiled from, and how."""

    family: str
    folder: Path = FOLDER
    flags: tuple[str, ...] = FLAGS

    @property
    def bridge(self) -> Path:
        """The file with the C functions of the family."""
        return self.folder / "bridge" / f"{self.family}.cpp"

    def digest(self) -> str:
        """Changes whenever the library could: sources, flags, compiler."""
        made = hashlib.sha256(f"{compiler_version()}\0{' '.join(self.flags)}".encode())
        for path in (self.bridge, *sorted((self.folder / "include").glob("*.hpp"))):
            made.update(f"\0{path.name}\0".encode() + path.read_bytes())
        return made.hexdigest()[:20]


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where libraries are kept: AERIE_CACHE, or the user's cache."""
    return Path(environment.get(CACHE_VARIABLE) or DEFAULT_CACHE).expanduser() / "hls"


@cache
def compiler_version() -> str:
    """First line of the compiler's version; raises BackendUnavailableError without a compiler."""
    if shutil.which(COMPILER) is None:
        raise BackendUnavailableError(
            f"backend hls compiles C++ on first use and needs {COMPILER}:"
            f" apt-get install {COMPILER} (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"
        )
    said = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    return said.stdout.splitlines()[0]


@cache
def cached_library(family: str) -> Path:
    """The library of a family, compiled if this content never was."""
    return build(Sources(family), cache_folder(os.environ))


def is_built(sources: Sources, cache: Path) -> bool:
    """Whether the cache holds the library of this content."""
    return _place(sources, cache).is_file()


def _place(sources: Sources, cache: Path) -> Path:
    return cache / f"{sources.family}-{sources.digest()}.so"


def build(sources: Sources, cache: Path) -> Path:
    """Compile unless the cache holds the result; processes that want the same one take turns."""
    library = _place(sources, cache)
    if library.is_file():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{library.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            _compile(sources, library)
    return library


def _compile(sources: Sources, library: Path) -> None:
    # A half-written library must never have the final name.
    unfinished = library.with_suffix(".part")
    command = [COMPILER, *sources.flags, f"-I{sources.folder / 'include'}", str(sources.bridge)]
    run = subprocess.run(
        [*command, "-o", str(unfinished)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise BackendUnavailableError(
            f"backend hls: {COMPILER} refused {sources.bridge.name}:\n{run.stderr.strip()[:4000]}"
        )
    os.replace(unfinished, library)
