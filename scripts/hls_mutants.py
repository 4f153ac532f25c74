"""Mutants of the HLS headers: every change of one operator or constant, and which are none."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from aerie.kernels.hls.build import FOLDER

# Headers of each family; a shared one is mutated for the family that leans on it most.
HEADERS = {
    "growth": ("growth", "numeric"),
    "layout": ("layout", "ragged"),
    "verdict": ("verdict", "walk", "sampling", "noise"),
    "commit": ("commit",),
    "memory": ("memory",),
    "replay": ("replay", "dma", "buckets"),
}
# What else includes a shared header, so that its mutants face those cases too.
ALSO = {"numeric": tuple(HEADERS), "ragged": ("layout", "verdict", "commit", "memory")}

CHANGES = (
    (re.compile(r"(?<=\s)<(?=\s)"), "<="),
    (re.compile(r"(?<=\s)<=(?=\s)"), "<"),
    (re.compile(r"(?<=\s)>(?=\s)"), ">="),
    (re.compile(r"(?<=\s)>=(?=\s)"), ">"),
    (re.compile(r"(?<=\s)==(?=\s)"), "!="),
    (re.compile(r"(?<=\s)!=(?=\s)"), "=="),
    (re.compile(r"(?<=\s)&&(?=\s)"), "||"),
    (re.compile(r"(?<=\s)\|\|(?=\s)"), "&&"),
    (re.compile(r"(?<=\s)\+(?=\s)"), "-"),
    (re.compile(r"(?<=\s)-(?=\s)"), "+"),
    (re.compile(r"(?<=\s)\*(?=\s)"), "+"),
    (re.compile(r"(?<=\s)/(?=\s)"), "*"),
    (re.compile(r"(?<=\s)%(?=\s)"), "/"),
    (re.compile(r"(?<=\s)\+=(?=\s)"), "-="),
    (re.compile(r"(?<=[\s(,{-])0(?=[\s),;}])"), "1"),
    (re.compile(r"(?<=[\s(,{-])1(?=[\s),;}])"), "2"),
    (re.compile(r"(?<=[\s(,{])0\.0F?(?=[\s),;}])"), "1.0F"),
    (re.compile(r"(?<=[\s(,{])1\.0F(?=[\s),;}])"), "0.0F"),
    (re.compile(r"(?<=[\s(,{])(?:4|8|32)(?=[\s),;}])"), "7"),
    (re.compile(r"(?<=\s)>>(?=\s)"), "<<"),
    (re.compile(r"(?<=\s)\^(?=\s)"), "&"),
    (re.compile(r"(?<=\s)\|(?=\s)"), "&"),
)
# None of these is what a kernel computes: trip counts, types, heads of functions, labels.
SKIPPED = re.compile(r"^\s*(?:#|//|for \(|static_cast<void>|constexpr|template|struct|inline)|:$")
# `a < b ? a : b` takes the smaller one whether or not equality counts: no change at all.
CHOICE = re.compile(r"([\w.\[\]]+) [<>] ([\w.\[\]]+) \? (?:\1 : \2|\2 : \1)\b")

# Survivors and why; (header, line, change). All but one compute the same as the original.
EXPLAINED: dict[tuple[str, str, str], str] = {
    ("numeric", "if (i >= n) {", ">= -> > at 14"): (
        "one score more is ranked: 0, behind every path score, so it lands behind the last entry"
    ),
    (
        "growth",
        "const std::int32_t repeat = has_hot_token_id != 0 ? find_repeat(hot_token_id, VD) : -1;",
        "1 -> 2 at 89",
    ): "read only where there is a map",
    ("ragged", "std::int32_t first = 0;", "0 -> 1 at 25"): "a refused request has no rows",
    ("sampling", "if (i >= V) {", ">= -> > at 14"): (
        "not the same: one stale entry of on-chip scratch is read, which no sanitizer sees; it"
        " changes a result only where it names a kept token"
    ),
    ("sampling", "std::int32_t best = 0;", "0 -> 1 at 24"): "some token is always better than none",
    (
        "dma",
        "moves.list[moves.count] = Descriptor{buffer, 0, 0, n * width, 0, width};",
        "0 -> 1 at 66",
    ): "a copy has no pattern",
}


@dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    family: str
    header: str
    number: int
    before: str
    after: str
    change: str

    @property
    def name(self) -> str:
        """Where and what."""
        return f"{self.header}.hpp:{self.number} {self.change}: `{self.before.strip()}`"

    @property
    def key(self) -> tuple[str, str, str]:
        """Itself, whatever its line number."""
        return self.header, self.before.strip(), self.change

    @property
    def families(self) -> tuple[str, ...]:
        """Families whose cases it must pass, its own first."""
        return tuple(dict.fromkeys((self.family, *ALSO.get(self.header, ()))))


def mutants_of(family: str) -> Iterator[Mutant]:
    """Every change of every line of a family's headers."""
    for header in HEADERS[family]:
        lines = (FOLDER / "include" / f"{header}.hpp").read_text("utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            code = line.partition("//")[0]
            if SKIPPED.search(code):
                continue
            for pattern, text in CHANGES:
                for found in pattern.finditer(code):
                    if text in ("<=", ">=") and CHOICE.search(code):
                        continue
                    after = line[: found.start()] + text + line[found.end() :]
                    place = f"{found.group()} -> {text} at {found.start()}"
                    yield Mutant(family, header, number, line, after, place)


def chosen(family: str, n: int, sample: int) -> list[Mutant]:
    """The same mutants on every run; another sample has others."""
    found = list(mutants_of(family))
    return random.Random(f"{family}{sample or ''}").sample(found, min(n, len(found)))
