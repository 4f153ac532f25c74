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
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aerie.errors import BackendUnavailableError
from aerie.kernels import catalogue, load
from aerie.kernels.card import Card
from aerie.kernels.cases import cases_for
from aerie.kernels.cases.case import Case
from aerie.kernels.hls.bind import CSimulation
from aerie.kernels.hls.build import FLAGS, FOLDER, SANITIZED, Sources, build
from aerie.kernels.hls.signature import has_check, hls_card
from aerie.kernels.hls.table import PORTED
from aerie.kernels.host import adopt
from aerie.kernels.implementation import Implementation
from aerie.kernels.registry import Kernel, Kernels
from aerie.parity.dump_cases import dump_cases
from aerie.parity.run import Outcome, call_case, judge_case
from scripts.hls_mutants import EXPLAINED, HEADERS, Mutant, chosen
from tests.parity.hls_bounds import wrong_code

PER_FAMILY = 30
SECONDS = 120  # for all cases of one family; a loop that never ends is noticed, too
ENOUGH = 0.95


@dataclass(frozen=True)
class Expected:
    """A case and what the reference makes of it."""

    case: Case
    mode: str
    outcome: Outcome


def ported_cases() -> list[Case]:
    """The cases of every kernel that is written in C++."""
    return [case for name in PORTED for case in cases_for(name)]


def expectations() -> dict[str, list[Expected]]:
    """Every case under both treatments of data errors, by family."""
    made: dict[str, list[Expected]] = {family: [] for family in HEADERS}
    for mode in ("raise", "status"):
        reference = load("reference", data_errors=mode)
        for case in ported_cases():
            entry = Expected(case, mode, call_case(reference, case))
            made[catalogue()[case.kernel].family].append(entry)
    return made


def kernels_of(cards: Iterable[Card], library: Callable[[str], Path], mode: str) -> Kernels:
    """Kernels of the hls backend, by the compiled library of their family."""
    kernels: dict[str, Kernel] = {}
    for card in map(hls_card, cards):
        simulated = CSimulation(card, library)
        check = simulated.check if has_check(card) else None
        entry = Implementation(simulated.run, check)
        kernels[card.name] = Kernel(card, entry, adopt, mode == "raise")
    return Kernels("hls", "cpu", mode, kernels)


def first_failure(family: str, library: Path, expected: list[Expected]) -> str | None:
    """The first case that notices, or None."""
    cards = [card for card in catalogue().values() if card.family == family]
    kernels = {mode: kernels_of(cards, lambda _: library, mode) for mode in ("raise", "status")}
    for card in cards:
        if wrong_code(hls_card(card), library):
            return f"{card.name} / its own bounds"
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


def run(per_family: int, sample: int) -> tuple[dict[Mutant, str | None], float]:
    """Every chosen mutant and what noticed it."""
    begun = time.monotonic()
    results: dict[Mutant, str | None] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = expectations()
        origin = dict.fromkeys(("commit", "model", "seed", "created"), "mutants")
        origin |= {"backend": "reference", "device": "cpu"}
        dump_cases(
            load("reference", data_errors="status"), ported_cases(), folder / "dumps", origin
        )
        for family in HEADERS:
            for mutant in chosen(family, per_family, sample):
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
        reason = EXPLAINED.get(mutant.key, "**not explained**")
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
    parser.add_argument("--sample", type=int, default=0)
    options = parser.parse_args()
    results, seconds = run(options.per_family, options.sample)
    text = render(results, seconds)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    killed = sum(bool(found) for found in results.values())
    print(f"{killed} of {len(results)} noticed, {seconds:.0f} s")
    sys.exit(killed < ENOUGH * len(results))


if __name__ == "__main__":
    main()
