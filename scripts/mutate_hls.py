"""Flips one operator or constant at a time in the HLS headers: does parity notice?

    python -m scripts.mutate_hls                      # all families, report on the screen
    python -m scripts.mutate_hls --out reports/hls_mutants.md

Each mutant is compiled and given every parity case of the families that include its header:
outputs, arrays written in place, status words, the value an error blames, and the codes of bounds.
One that passes them all is compiled again under the sanitizers, and the test benches run the same
cases. What passes that, too, survives and is listed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import BackendUnavailableError
from aerie.kernels import catalogue, load
from aerie.kernels.cases import all_cases
from aerie.kernels.cases.case import Case
from aerie.kernels.hls.bind import CSimulation, adopt
from aerie.kernels.hls.build import FLAGS, FOLDER, SANITIZED, Sources, build
from aerie.kernels.hls.signature import has_check, hls_card
from aerie.kernels.implementation import Implementation
from aerie.kernels.registry import Kernel, Kernels
from aerie.parity.dump_cases import dump_cases
from aerie.parity.run import Outcome, call_case, judge_case
from tests.parity.hls_bounds import wrong_code

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
# Neither of these is what a kernel computes: the trip count, types, comments and labels.
SKIPPED = re.compile(r"^\s*(?:#|//|for \(|static_cast<void>|constexpr|template|struct|inline)|:$")
# `a < b ? a : b` takes the smaller one whether or not equality counts: no change at all.
CHOICE = re.compile(r"([\w.\[\]]+) [<>] ([\w.\[\]]+) \? (?:\1 : \2|\2 : \1)\b")
PER_FAMILY = 30
SECONDS = 120  # for all cases of one family; a loop that never ends is noticed, too
ENOUGH = 0.95

# Survivors that compute the same, with the reason; (header, line, change).
_UNBLAMED = "the value to blame is read only where there is a status"
EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("numeric", "if (i >= n) {", ">= -> > at 14"): (
        "one score more is ranked: 0, behind every path score, so it lands behind the last entry"
    ),
    ("growth", "std::int64_t repeated = 0;", "0 -> 1 at 28"): "read only where a repeat was found",
    ("ragged", "return 0;", "0 -> 1 at 15"): "the columns of a refused request are not used",
    ("layout", "Refusal refusal = {0, 0};", "0 -> 1 at 30"): _UNBLAMED,
    ("memory", "Refusal refusal = {0, 0};", "0 -> 1 at 30"): _UNBLAMED,
    ("verdict", "has_seed != 0 ? seed[b] : 0,", "0 -> 1 at 59"): (
        "without a seed a request is greedy or refused: no noise is drawn"
    ),
    (
        "commit",
        "const std::int64_t limit = clamped(length_limit[b], -1, 1LL << 40);",
        "1 -> 2 at 65",
    ): "any limit below the sequence leaves no room, however far below",
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


def chosen(family: str, n: int) -> list[Mutant]:
    """The same sample on every run."""
    found = list(mutants_of(family))
    return random.Random(family).sample(found, min(n, len(found)))


@dataclass(frozen=True)
class Expected:
    """A case and what the reference makes of it."""

    case: Case
    mode: str
    outcome: Outcome


def expectations() -> dict[str, list[Expected]]:
    """Every case under both treatments of data errors, by family."""
    made: dict[str, list[Expected]] = {family: [] for family in HEADERS}
    for mode in ("raise", "status"):
        reference = load("reference", data_errors=mode)
        for case in all_cases():
            entry = Expected(case, mode, call_case(reference, case))
            made[catalogue()[case.kernel].family].append(entry)
    return made


def kernels_of(family: str, library: Path, mode: str) -> Kernels:
    """The kernels of a compiled family."""
    kernels: dict[str, Kernel] = {}
    for card in (hls_card(card) for card in catalogue().values() if card.family == family):
        simulated = CSimulation(card, lambda _: library)
        check = simulated.check if has_check(card) else None
        entry = Implementation(simulated.run, check)
        kernels[card.name] = Kernel(card, entry, lambda a, w: adopt(a, "cpu", w), mode == "raise")
    return Kernels("hls", "cpu", mode, kernels)


def first_failure(family: str, library: Path, expected: list[Expected]) -> str | None:
    """The first case that notices, or None."""
    kernels = {mode: kernels_of(family, library, mode) for mode in ("raise", "status")}
    for name in kernels["raise"]:
        if wrong_code(hls_card(catalogue()[name]), library):
            return f"{name} / its own bounds"
    for entry in expected:
        case, loaded = entry.case, kernels[entry.mode]
        if not judge_case(loaded, case, entry.outcome, catalogue()[case.kernel]).ok:
            return f"{case.kernel} / {case.name}"
        error = entry.outcome.error
        if error is not None:
            actual = call_case(loaded, case).error
            if getattr(actual, "value", None) != getattr(error, "value", None):
                return f"{case.kernel} / {case.name} (blamed value)"
    return None


def _child(family: str, library: Path, expected: list[Expected], queue: object) -> None:
    queue.put(first_failure(family, library, expected))  # type: ignore[attr-defined]


def notice(family: str, library: Path, expected: list[Expected]) -> str | None:
    """What notices a mutant, in a process of its own: it may crash, or never come back."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_child, args=(family, library, expected, queue))
    child.start()
    child.join(SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
        return "no end"
    return f"signal {-child.exitcode}" if child.exitcode else queue.get()


def mutated(mutant: Mutant, folder: Path) -> Path:
    """A copy of the sources with one line changed."""
    target = folder / "sources"
    shutil.rmtree(target, ignore_errors=True)
    for name in ("include", "bridge", "tb"):
        shutil.copytree(FOLDER / name, target / name)
    path = target / "include" / f"{mutant.header}.hpp"
    lines = path.read_text("utf-8").splitlines()
    lines[mutant.number - 1] = mutant.after
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


def bench_notice(family: str, sources: Path, dumps: Path) -> str | None:
    """Whether a bench under the sanitizers notices."""
    kernels = [card.name for card in catalogue().values() if card.family == family]
    for kernel in kernels:
        program = sources / kernel
        command = ["g++", "-std=c++17", "-O1", "-ffp-contract=off", *SANITIZED, "-w"]
        command += [f"-I{sources / 'include'}", str(sources / "bridge" / f"{family}.cpp")]
        subprocess.run([*command, str(sources / "tb" / f"{kernel}.cpp"), "-o", program], check=True)
        files = sorted(map(str, dumps.glob(f"{kernel}-*.safetensors")))
        try:
            run = subprocess.run(
                [program, *files], capture_output=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"bench {kernel}: no end"
        if run.returncode:
            said = "sanitizer" if b"Sanitizer" in run.stderr or b"runtime" in run.stderr else "dump"
            return f"bench {kernel}: {said}"
    return None


def judge(
    mutant: Mutant, expected: dict[str, list[Expected]], folder: Path, dumps: Path
) -> str | None:
    """What notices the mutant; None if nothing does. Raises if it does not compile."""
    sources = mutated(mutant, folder)
    lenient = tuple(flag for flag in FLAGS if flag != "-Werror")
    for family in mutant.families:
        library = build(Sources(family, sources, (*lenient, "-w")), folder / "cache")
        found = notice(family, library, expected[family])
        library.unlink()
        if found:
            return found
    for family in mutant.families[:1]:
        found = bench_notice(family, sources, dumps)
        if found:
            return found
    return None


def run(per_family: int) -> tuple[dict[Mutant, str | None], float]:
    """Every chosen mutant and what noticed it."""
    begun = time.monotonic()
    results: dict[Mutant, str | None] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = expectations()
        origin = dict.fromkeys(("commit", "model", "seed", "created"), "mutants")
        origin |= {"backend": "reference", "device": "cpu"}
        dump_cases(load("reference", data_errors="status"), all_cases(), folder / "dumps", origin)
        for family in HEADERS:
            for mutant in chosen(family, per_family):
                try:
                    results[mutant] = judge(mutant, expected, folder, folder / "dumps")
                except BackendUnavailableError:
                    print(f"{family:8} does not compile  {mutant.name}", flush=True)
                    continue
                said = results[mutant] or "SURVIVES"
                print(f"{family:8} {said:60} {mutant.name}", flush=True)
    return results, time.monotonic() - begun


def render(results: dict[Mutant, str | None], seconds: float) -> str:
    """The report."""
    from aerie.bench.provenance import provenance  # late: it loads torch

    killed = [mutant for mutant, found in results.items() if found]
    survived = [mutant for mutant, found in results.items() if not found]
    share = len(killed) / len(results)
    origin = provenance("cpu")
    lines = [
        "# Mutants of the HLS headers",
        "",
        "One operator or constant changed at a time by `scripts/mutate_hls.py`. Each mutant faces",
        "the parity cases of its family, then the same cases in benches under the sanitizers.",
        "",
        f"{len(killed)} of {len(results)} noticed ({share:.1%}); goal {ENOUGH:.0%}."
        f" {seconds:.0f} s on {origin['device']}, commit {origin['commit']}.",
        "",
        "| family | mutants | noticed |",
        "|---|---|---|",
    ]
    for family in HEADERS:
        own = [mutant for mutant in results if mutant.family == family]
        noticed = sum(bool(results[mutant]) for mutant in own)
        lines.append(f"| {family} | {len(own)} | {noticed} |")
    kinds = Counter(_kind(found) for found in results.values() if found)
    lines += [
        "",
        "Noticed by: " + ", ".join(f"{name} {n}" for name, n in kinds.most_common()) + ".",
    ]
    lines += ["", "## Survivors", ""]
    for mutant in survived:
        reason = EQUIVALENT.get(mutant.key, "**not explained**")
        lines.append(f"- {mutant.name}: {reason}")
    lines += ["", "## All", "", "| mutant | noticed by |", "|---|---|"]
    for mutant, found in results.items():
        name = mutant.name.replace("|", "\\|")
        lines.append(f"| {name} | {found or 'nothing'} |")
    return "\n".join(lines) + "\n"


def _kind(found: str) -> str:
    if found.startswith("bench"):
        return found.rpartition(": ")[2] + " in a bench"
    return found if " / " not in found else "a parity case"


def main() -> None:
    """Run, report, and fail below the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--per-family", type=int, default=PER_FAMILY)
    options = parser.parse_args()
    results, seconds = run(options.per_family)
    text = render(results, seconds)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    killed = sum(bool(found) for found in results.values())
    print(f"{killed} of {len(results)} noticed, {seconds:.0f} s")
    sys.exit(killed < ENOUGH * len(results))


if __name__ == "__main__":
    main()
