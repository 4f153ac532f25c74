"""Mutated kernel calls on every backend against the reference; `hls` under the sanitizers, too.

    python -m scripts.fuzz_kernels --backend numpy,pytorch,hls --calls 100000
    python -m scripts.fuzz_kernels --backend triton --calls 2000     # in Triton's interpreter
    python -m scripts.fuzz_kernels --sanitize --calls 100000 \
        --out reports/raw/hls_sanitized_fuzz.log

Valid cases are changed in values, dtypes, byte order, strides, aliasing, shapes, writability,
kinds, scalars and names (tests/parity/mutations.py); without --sanitize in tensors of every sort,
too. A backend passes if it returns what the reference returns, or refuses by the same named error
and has written nothing. The same seed makes the same calls on every machine.

Under the sanitizers the kernels are compiled with SANITIZED of hls/build.py and run in a child of
this process; its first report ends it. A control, an array that is one row too short, must.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from aerie.bench.provenance import provenance
from aerie.kernels import catalogue, load
from aerie.kernels.hls.bind import CSimulation
from aerie.kernels.hls.build import FLAGS, FOLDER, SANITIZED, Sources, build, compiler_version
from aerie.kernels.hls.signature import FAMILIES, hls_card
from aerie.kernels.hls.table import PORTED
from scripts import ROOT
from scripts.mutate_hls import kernels_of
from tests.parity.fuzz import Loaded, Tally, run_calls
from tests.parity.mutations import ARRAY_MUTATIONS, MOST_ENTRIES, Call, Mutate, mutated_call

MODES = ("raise", "status")
# The interpreter takes a millisecond for each operation of a program.
MOST_INTERPRETED = 150
SHOWN = 40  # differences


def main() -> int:
    """Run the calls, report, and fail if any backend differs or a sanitizer reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="numpy,pytorch,hls", help="names with commas")
    parser.add_argument("--calls", type=int, default=20_000, help="of all kernels, per backend")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, help="file of the log")
    parser.add_argument("--sanitize", action="store_true", help="hls alone, in a watched child")
    parser.add_argument("--control", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--libraries", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.libraries:
        return watched(options)
    lines = heading(options)
    begun = time.monotonic()
    is_ok = run_watched(options, lines) if options.sanitize else run_here(options, lines)
    lines += [f"{time.monotonic() - begun:.0f} s", "ok" if is_ok else "FAILED"]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if is_ok else 1


def heading(options: argparse.Namespace) -> list[str]:
    """Where, when and of what."""
    digest = hashlib.sha256()
    folder = ROOT / "src/aerie/kernels"
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".hpp", ".cpp")):
        digest.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
    backend = "hls, sanitized" if options.sanitize else options.backend
    made = [
        f"mutated kernel calls, {datetime.now(UTC):%Y-%m-%d}",
        f"commit {provenance('cpu')['commit']}",
        f"kernels sha256 {digest.hexdigest()}",
        f"backends {backend}; calls {options.calls} each, seed {options.seed}",
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}",
    ]
    if options.sanitize:
        made += [f"compiler {compiler_version()}", f"flags {' '.join(SANITIZED)}"]
    return made


def calls_of(
    options: argparse.Namespace,
    mutations: dict[str, Mutate],
    kernels: Collection[str],
    most: int = MOST_ENTRIES,
) -> Iterator[Call]:
    """The calls of a run, kernel by kernel."""
    per_kernel = -(-options.calls // len(kernels))
    for kernel in kernels:
        for index in range(per_kernel):
            yield mutated_call(kernel, options.seed, index, mutations, most)


def loaded(backend: str) -> Loaded:
    """A backend under both treatments of data errors."""
    return {mode: load(backend, data_errors=mode) for mode in MODES}


def run_here(options: argparse.Namespace, lines_out: list[str]) -> bool:
    """Every backend in this process."""
    names = options.backend.split(",")
    if "triton" in names:
        os.environ["TRITON_INTERPRET"] = "1"
    from tests.parity.tensor_mutations import MUTATIONS  # late: it loads torch

    most = MOST_INTERPRETED if "triton" in names else MOST_ENTRIES
    tally = run_calls(
        calls_of(options, MUTATIONS, catalogue(), most),
        [loaded(name) for name in names],
        loaded("reference"),
    )
    lines_out += table(tally)
    return not tally.failures


def run_watched(options: argparse.Namespace, lines_out: list[str]) -> bool:
    """The compiled kernels in a child under the sanitizers, after a control that must fail."""
    libraries = ROOT / "build" / "hls-fuzz"
    for family in FAMILIES:
        build(Sources(family, FOLDER, (*FLAGS, *SANITIZED)), libraries)
    command = [sys.executable, "-m", "scripts.fuzz_kernels", "--libraries", str(libraries)]
    environment = {**os.environ, **sanitizer_environment()}
    control = run_child([*command, "--control"], environment)
    is_noticed = control.returncode != 0 and "heap-buffer-overflow" in control.stderr
    said = "reported" if is_noticed else f"NOT NOTICED: {control.stderr[-2000:]}"
    lines_out.append(f"control, one row too few: {said}")
    run = run_child(
        [*command, "--calls", str(options.calls), "--seed", str(options.seed)], environment
    )
    lines_out += run.stdout.splitlines()
    reports = [line for line in run.stderr.splitlines() if "ERROR: " in line or "runtime" in line]
    lines_out.append(f"sanitizer reports {len(reports)}")
    if run.returncode:
        lines_out += ["", run.stderr[-6000:]]
    return is_noticed and run.returncode == 0 and not reports


def sanitizer_environment() -> dict[str, str]:
    """What a process that loads sanitized libraries needs from its start."""
    find = ["g++", "-print-file-name=libasan.so"]
    library = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "LD_PRELOAD": library,
        # The interpreter leaks on purpose; arrays come from malloc, which puts guards around them.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


def run_child(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A child process of this script, from the root of the repository."""
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )


def watched(options: argparse.Namespace) -> int:
    """In the child: all calls, or the control."""
    library = partial(library_of, options.libraries)
    cards = [catalogue()[name] for name in PORTED]
    kernels = {mode: kernels_of(cards, library, mode) for mode in MODES}
    if options.control:
        simulated = CSimulation(hls_card(catalogue()["calculate_work_deltas"]), library)
        # Behind the binding's back: the kernel is told of one row more than there is.
        simulated._sizes = lambda inputs: {"B": 2, "C": 4, "node_top_k": 3, "verify_num": 4}
        simulated.run(work_scores=np.zeros((1, 4), np.float32), node_top_k=3, verify_num=4)
        return 0
    tally = run_calls(calls_of(options, ARRAY_MUTATIONS, PORTED), [kernels], loaded("reference"))
    print("\n".join(table(tally)))
    return 1 if tally.failures else 0


def library_of(folder: Path, family: str) -> Path:
    """The sanitized library of a family, built by the parent."""
    return build(Sources(family, FOLDER, (*FLAGS, *SANITIZED)), folder)


def table(tally: Tally) -> list[str]:
    """Counts by kernel and mutation, by outcome, and the differences."""
    mutations = sorted({mutation for _, mutation in tally.calls})
    lines = ["", f"{'mutations of a call':<40}" + "".join(f"{name:>12}" for name in mutations)]
    for kernel in dict.fromkeys(kernel for kernel, _ in tally.calls):
        counts = [tally.calls[kernel, mutation] for mutation in mutations]
        lines.append(f"{kernel:<40}" + "".join(f"{count:>12}" for count in counts))
    outcomes = Counter(tally.outcomes)
    lines += ["", f"calls {outcomes.total()}, of which the reference answers with"]
    lines += [f"  {name:<38}{count:>12}" for name, count in sorted(outcomes.items())]
    lines += ["", f"differences {len(tally.failures)}", *tally.failures[:SHOWN]]
    return lines


if __name__ == "__main__":
    sys.exit(main())
