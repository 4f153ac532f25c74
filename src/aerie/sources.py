"""What the sources say to a machine: hashes that comments, docstrings and layout do not touch."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

# A part is a folder of the package whose code or tables a figure may depend on; a file belongs to
# the longest name that leads to it. Cases are inputs: no figure depends on how they are drawn.
PARTS = (
    "attention",
    "engine",
    "kernels",
    "kernels/cases",
    "kernels/hls",
    "kernels/numpy_cpu",
    "kernels/pytorch",
    "kernels/reference",
    "kernels/triton_gpu",
    "models",
    "speculation",
)
TABLES = " tables"  # behind a part's name: its JSON files, such as tuned tiles, apart from its code
CODE = (".py", ".hpp", ".cpp", ".h", ".c")

# Fields of a syntax tree that only some versions of Python fill, or that repeat what others say.
_IGNORED = ("ctx", "kind", "type_comment")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Strings and characters first, so that what looks like a comment inside one is none.
_CPP = re.compile(
    r"(\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')|(//[^\n]*|/\*.*?\*/)|(\w+|\S)", re.DOTALL
)


def part_of(path: str) -> str | None:
    """The part that a file belongs to, by its path inside the package; None: to no part."""
    suffix = Path(path).suffix
    owners = [part for part in PARTS if path.startswith(f"{part}/")]
    if not owners or suffix not in (*CODE, ".json"):
        return None
    return max(owners, key=len) + (TABLES if suffix == ".json" else "")


def hash_parts(files: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """By part, the hash of the files given: paths inside the package, and contents."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for path, data in files:
        part = part_of(path)
        if part is not None:
            folder = part.removesuffix(TABLES)
            found.setdefault(part, []).append((path.removeprefix(f"{folder}/"), data))
    return {part: hash_code(own) for part, own in sorted(found.items())}


def read_package(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of a package's parts, by its path inside it."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if part_of(name) is not None:
            yield name, path.read_bytes()


def hash_folder(folder: Path) -> str:
    """The hash of a folder's code, without its tables; that of the part where it is one."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in CODE)
    return hash_code((path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths)


def hash_code(files: Iterable[tuple[str, bytes]]) -> str:
    """SHA-256 over names and what the files say, in the order of the names."""
    digest = hashlib.sha256()
    for name, data in sorted(files):
        digest.update(f"{name}\n{_code_hash(Path(name).suffix, data)}\n".encode())
    return digest.hexdigest()


def join_hashes(hashes: Mapping[str, str]) -> str:
    """One hash of several, by name."""
    text = "".join(f"{name} {value}\n" for name, value in hashes.items())
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1024)
def _code_hash(suffix: str, data: bytes) -> str:
    return hashlib.sha256(code_of(suffix, data).encode()).hexdigest()


def code_of(suffix: str, data: bytes) -> str:
    """A file's contents in the one form that all its layouts share."""
    text = data.decode("utf-8")
    if suffix == ".py":
        return syntax_of(ast.parse(text))
    if suffix == ".json":
        return json.dumps(json.loads(text), sort_keys=True)
    return "\n".join(string or word for string, _, word in _CPP.findall(text) if string or word)


def syntax_of(node: ast.AST) -> str:
    """A syntax tree as text, without comments, docstrings and places, on any Python alike."""
    pieces: list[str] = []
    _spell(node, pieces)
    return "".join(pieces)


def _spell(value: object, pieces_out: list[str]) -> None:
    if isinstance(value, list):
        pieces_out.append("[")
        for item in value:
            _spell(item, pieces_out)
        pieces_out.append("]")
    elif isinstance(value, ast.AST):
        pieces_out.append(f"({type(value).__name__}")
        for name, inner in ast.iter_fields(value):
            if name == "body" and isinstance(value, _DOCUMENTED):
                inner = _undocumented(inner)
            # An absent field is empty in one version and missing in another.
            if name not in _IGNORED and inner is not None and inner != []:
                pieces_out.append(f" {name}=")
                _spell(inner, pieces_out)
        pieces_out.append(")")
    else:
        pieces_out.append(repr(value))


def _undocumented(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body
