"""Law: HLS headers hold what hardware can: fixed loops, no heap, no exceptions, no recursion."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

import pytest

from tests.laws.tree import Law, Module, cpp, reachable, report

HEADERS = "src/aerie/kernels/hls/include/"

COMMENT = re.compile(r"//[^\n]*")
FORBIDDEN = re.compile(
    r"\b(?:new|delete|malloc|calloc|realloc|throw|try|catch|while|do|goto|virtual|dynamic_cast|"
    r"typeid|alloca|setjmp|longjmp)\b|\bfree\s*\("
)
STANDARD = re.compile(r"\bstd::(\w+)")
PLAIN_TYPES = re.compile(r"u?int(?:8|16|32|64)_t")
# Files that know a vendor's library: what they include, and what they take of the standard's.
SHIMS = {
    "numeric.hpp": (("<cmath>", "<hls_math.h>"), ("exp", "log", "log1p", "sqrt")),
    "channel.hpp": (("<hls_stream.h>",), ()),
}

# float64 is what a card asks of the target's own sampling; nothing else may need it.
DOUBLE = re.compile(r"\bdouble\b")
WIDE_HEADERS = ("numeric.hpp", "noise.hpp", "sampling.hpp")

INCLUDE = re.compile(r"#include\s+(\S+)")
OWN_INCLUDE = re.compile(r'"\w+\.hpp"')

LOOP = re.compile(r"\bfor\s*\(")
# From 0, by 1, below a constant: the number of steps is known when the circuit is made.
BOUND = r"(?:Config::[A-Z0-9_]+|[A-Z][A-Z0-9_]+|\d+)"
FIXED_LOOP = re.compile(
    rf"for \(std::int(?:32|64)_t (\w+) = 0; \1 < {BOUND}(?: [+/] \d+)?; \+\+\1\) {{"
)
LABEL = re.compile(r"\s*[a-z_][a-z0-9_]*:")
FUNCTION = re.compile(r"^inline [\w:<>*& ]*?\b(\w+)\(", re.MULTILINE)

DATAFLOW = "#pragma HLS DATAFLOW"
# A channel or an array that a region declares, and a call of one of its processes.
SHARED = re.compile(
    r"^\s+(?:static )?(?:Channel<[^;()]*>|[\w:]+) (\w+)(?:\[[^;]*\])?(?: = {})?;", re.MULTILINE
)
CALL = re.compile(r"^\s*\w+\(", re.MULTILINE)


def headers(modules: Iterable[Module]) -> list[Module]:
    """Headers without their comments, line by line as they were."""
    return [
        Module(module.path, COMMENT.sub("", module.text))
        for module in modules
        if module.path.startswith(HEADERS)
    ]


def forbidden_words(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(number)}: {found.group()} has no place in hardware"
        for module in headers(modules)
        for number, line in enumerate(module.lines, 1)
        for found in FORBIDDEN.finditer(line)
    ]


def standard_library(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(number)}: std::{found.group(1)}; only integer types are taken from the library"
        for module in headers(modules)
        for number, line in enumerate(module.lines, 1)
        for found in STANDARD.finditer(line)
        if not PLAIN_TYPES.fullmatch(found.group(1)) and found.group(1) not in shim(module)[1]
    ]


def foreign_includes(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(number)}: includes {found.group(1)}"
        for module in headers(modules)
        for number, line in enumerate(module.lines, 1)
        if (found := INCLUDE.search(line))
        and not OWN_INCLUDE.fullmatch(found.group(1))
        and found.group(1) != "<cstdint>"
        and found.group(1) not in shim(module)[0]
    ]


def shim(module: Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return SHIMS.get(PurePosixPath(module.path).name, ((), ()))


def loose_loops(modules: Iterable[Module]) -> list[str]:
    out = []
    for module in headers(modules):
        for number, line in enumerate(module.lines, 1):
            if not LOOP.search(line):
                continue
            if not FIXED_LOOP.search(line):
                out.append(f"{module.at(number)}: a loop runs from 0 by 1 below a constant")
            if number < 2 or not LABEL.fullmatch(module.lines[number - 2]):
                out.append(f"{module.at(number)}: a loop has a label on the line before it")
    return out


def recursion(modules: Iterable[Module]) -> list[str]:
    """Functions by name, over all headers: none may lead back to itself."""
    bodies: dict[str, tuple[str, str]] = {}
    for module in headers(modules):
        for found in FUNCTION.finditer(module.text):
            line = module.text.count("\n", 0, found.start()) + 1
            bodies[found.group(1)] = (module.at(line), body_after(module.text, found.end()))
    calls = {
        name: {other for other in bodies if re.search(rf"\b{other}(?:<\w+(?:::\w+)*>)?\(", body)}
        for name, (_, body) in bodies.items()
    }
    return [
        f"{place}: {name} leads back to itself"
        for name, (place, _) in bodies.items()
        if any(name in reachable(called, calls) for called in calls[name])
    ]


def wide_floats(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.at(number)}: float64; use exact sums or the tables of powers"
        for module in headers(modules)
        if PurePosixPath(module.path).name not in WIDE_HEADERS
        for number, line in enumerate(module.lines, 1)
        if DOUBLE.search(line)
    ]


def shared_channels(modules: Iterable[Module]) -> list[str]:
    """What the processes of a dataflow region share has one writer and one reader."""
    out = []
    for module in headers(modules):
        for found in FUNCTION.finditer(module.text):
            body = body_after(module.text, found.end())
            if DATAFLOW not in body:
                continue
            line = module.text.count("\n", 0, found.start()) + 1
            calls = [part for part in body.split(";") if CALL.search(part)]
            for name in SHARED.findall(body):
                n_users = sum(bool(re.search(rf"\b{name}\b", call)) for call in calls)
                if n_users != 2:
                    out.append(
                        f"{module.at(line)}: {name} is used by {n_users} processes, not by 2"
                    )
    return out


def body_after(text: str, start: int) -> str:
    """The braces that follow a function's parameters, with what is in them."""
    first = text.index("{", start)
    depth = 0
    for index in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[first : index + 1]
    return text[first:]


LAWS = (
    forbidden_words,
    standard_library,
    foreign_includes,
    loose_loops,
    recursion,
    shared_channels,
    wide_floats,
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_headers_obey(law: Law) -> None:
    violations = law(cpp())
    assert not violations, report(violations)


@pytest.mark.parametrize(
    ("family", "pragmas"),
    [
        ("growth", ("PIPELINE", "ARRAY_PARTITION", "DATAFLOW", "UNROLL")),
        ("layout", ("PIPELINE", "ARRAY_PARTITION")),
        ("verdict", ("PIPELINE", "BIND_STORAGE")),
        ("commit", ("PIPELINE",)),
        ("memory", ("PIPELINE",)),
        ("replay", ("PIPELINE",)),
    ],
)
def test_every_family_says_how_it_is_built(family: str, pragmas: tuple[str, ...]) -> None:
    files = {module.path: module for module in cpp()}
    names = {f"{HEADERS}{family}.hpp", f"{HEADERS}numeric.hpp"}
    text = "".join(files[name].text for name in names)
    assert [name for name in pragmas if f"#pragma HLS {name}" not in text] == []
    bridge = files[f"src/aerie/kernels/hls/bridge/{family}.cpp"].text
    for kind in ("m_axi", "s_axilite"):
        assert f"#pragma HLS INTERFACE {kind} port=" in bridge


OWN = (
    "inline void f(int a) {\nloop:\n    for (std::int32_t i = 0; i < Config::MAX; ++i) {\n    }\n}"
)


REGION = (
    "inline void f(In<int> in, Out<int> out) {{\n#pragma HLS DATAFLOW\n"
    "    Channel<float, 4> middle;\n    give(in, middle);\n    take(middle, out);\n{}}}"
)


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (forbidden_words, "int* p = new int;"),
        (forbidden_words, "while (true) {"),
        (forbidden_words, "free (p);"),
        (forbidden_words, "throw 1;"),
        (standard_library, "std::vector<int> v;"),
        (standard_library, "std::sort(a, b);"),
        (standard_library, "std::exp(x)"),
        (foreign_includes, "#include <vector>"),
        (foreign_includes, "#include <cmath>"),
        (loose_loops, "loop:\nfor (std::int32_t i = 0; i < n; ++i) {"),
        (loose_loops, "loop:\nfor (std::int32_t i = 1; i < Config::MAX; ++i) {"),
        (loose_loops, "for (std::int32_t i = 0; i < Config::MAX; ++i) {"),
        (recursion, "inline int f(int a) { return f(a - 1); }"),
        (wide_floats, "double x = 0.0;"),
        (shared_channels, REGION.format("    drop(middle);\n")),
        (shared_channels, REGION.format("    Channel<float, 4> unread;\n")),
        (recursion, "inline int f(int a) { return g(a); }\ninline int g(int a) { return f(a); }"),
    ],
)
def test_law_bites(law: Law, text: str) -> None:
    assert law([Module(f"{HEADERS}other.hpp", text)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other.hpp", OWN),
        ("other.hpp", "// while new std::vector\nstd::int64_t* free"),
        ("numeric.hpp", "#include <cmath>\ninline double e(double x) { return std::exp(x); }"),
        ("other.hpp", "inline int f(int a) { return g(a); }\ninline int g(int a) { return a; }"),
        ("other.hpp", REGION.format("")),
        ("channel.hpp", "#include <hls_stream.h>"),
    ],
)
def test_ordinary_headers_are_legal(name: str, text: str) -> None:
    module = Module(f"{HEADERS}{name}", text)
    assert [violation for law in LAWS for violation in law([module])] == []
