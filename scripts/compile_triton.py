"""Compiles every Triton kernel as an engine launches it, for GPUs that need not be there.

    PYTHONPATH=src python -m scripts.compile_triton [kernel ...] [--arch 80,90] [--write FILE]

Triton's interpreter forgives what its compiler does not: types that change in a branch, an array
that is not there, a tile that no chip has room for. Launches go to Triton's compiler instead of a
device, with tiles that follow from the record of a chip (`aerie.chips`): all that an engine would
launch, or every parity case of the kernels named. A kernel that does not compile, or needs more
shared memory than its chip has, ends the run with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from aerie import chips
from aerie.bench.provenance import provenance
from aerie.chips import CHIPS, DeviceRecord
from aerie.errors import KernelError
from aerie.kernels.cases import cases_for
from aerie.kernels.triton_gpu import KERNELS
from aerie.kernels.triton_gpu.ahead_worker import Absent
from scripts.triton_launches import Launch, calling, of_engine, sample

MOST_TENSOR_MEMORY = 512  # columns, where matrix units have a memory of their own


@dataclass
class Compiled:
    """What came of one kernel on one chip."""

    variants: set[str] = field(default_factory=set)
    shared_bytes: int = 0  # of the variant that needs most
    why_not: str = ""

    @property
    def cell(self) -> list[Any]:
        """Its place in the table."""
        return [len(self.variants), self.shared_bytes, *([self.why_not] if self.why_not else [])]


NONE = Compiled(why_not="never launched")


@dataclass
class Compiler:
    """Stands for launches on a chip that is not here."""

    chip: DeviceRecord
    kernels: dict[str, Compiled] = field(default_factory=dict)

    def run_all(self, launches: Iterable[Launch]) -> None:
        """Compile what these launch, with tiles for the chip."""
        compile_only = JITFunction.run

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
            self.note(kernel, lambda: compile_only(kernel, *args, grid=grid, warmup=True, **named))

        driver.set_active(Absent(GPUTarget("cuda", self.chip.capability, 32)))
        # What is not on a GPU has the host's record: let that be the chip's.
        with (
            mock.patch.object(chips, "HOST", self.chip),
            mock.patch.object(JITFunction, "run", run),
        ):
            chips.record_of.cache_clear()
            for launch in launches:
                launch()
        chips.record_of.cache_clear()

    def note(self, kernel: Any, build: Launch) -> None:
        """Take in one variant, or why there is none."""
        name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"
        found = self.kernels.setdefault(name, Compiled())
        try:
            built: Any = build()
        except Exception as error:  # the compiler has many; each is a line of the table
            found.why_not = f"{type(error).__name__}: {error}"[:200]
            return
        needed, tensor_memory = built.metadata.shared, getattr(built.metadata, "tmem_size", 0)
        found.variants.add(built.hash)
        found.shared_bytes = max(found.shared_bytes, needed)
        if needed > self.chip.shared_bytes:
            found.why_not = f"{needed} bytes of shared memory, limit {self.chip.shared_bytes}"
        if tensor_memory > MOST_TENSOR_MEMORY:
            found.why_not = f"{tensor_memory} of tensor memory, limit {MOST_TENSOR_MEMORY}"


def cases_of(names: Iterable[str]) -> Iterator[Launch]:
    """Every parity case of these kernels; a refusal on the host launches nothing."""
    for name in names:
        covers = KERNELS[name].covers
        for case in cases_for(name):
            inputs = case.build()
            if covers is None or covers(inputs):
                yield partial(_unless_refused, calling(name, inputs))


def _unless_refused(call: Launch) -> None:
    with suppress(KernelError):
        call()


def table(compilers: Mapping[str, Compiler]) -> dict[str, Any]:
    """By kernel, a list of `columns` for each of `chips`, in their order."""
    names = sorted({name for compiler in compilers.values() for name in compiler.kernels})
    chips_of = {c.chip.architecture: [name, c.chip.shared_bytes] for name, c in compilers.items()}
    return {
        "provenance": {**provenance("cpu"), "triton": triton.__version__},
        "chips": chips_of,
        "columns": ["variants", "shared bytes of the largest", "why not"],
        "kernels": {n: [c.kernels.get(n, NONE).cell for c in compilers.values()] for n in names},
    }


def text_of(document: Mapping[str, Any]) -> str:
    """JSON with a line for each part, and for each kernel."""
    parts = [f"{json.dumps(name)}: {json.dumps(part)}" for name, part in document.items()]
    rows = (
        f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}"
        for name, row in document["kernels"].items()
    )
    parts[-1] = '"kernels": {\n' + ",\n".join(rows) + "\n}"
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    """Compile for every architecture asked for; 1 where some kernel does not fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", help="parity cases of these, instead of an engine's")
    every = ",".join(str(chip.capability) for chip in CHIPS.values())
    parser.add_argument("--arch", default=every, help="compute capabilities times ten")
    parser.add_argument("--sample", action="store_true", help="one launch of each kind")
    parser.add_argument("--write", type=Path, help="where the table goes")
    options = parser.parse_args()
    asked = {int(number) for number in options.arch.split(",")}
    compilers = {n: Compiler(chip) for n, chip in CHIPS.items() if chip.capability in asked}
    for name, compiler in compilers.items():
        start = time.perf_counter()
        own = sample(compiler.chip) if options.sample else of_engine(compiler.chip)
        compiler.run_all(cases_of(options.kernels) if options.kernels else own)
        n_variants = sum(len(found.variants) for found in compiler.kernels.values())
        took = f"{time.perf_counter() - start:.0f} s"
        print(f"{compiler.chip.architecture} ({name}): {n_variants} variants, {took}", flush=True)
    document = table(compilers)
    if options.write:
        options.write.write_text(text_of(document), encoding="utf-8")
    wrong = [
        f"{name} on {architecture}: {why[0]}"
        for name, row in document["kernels"].items()
        for architecture, (_, _, *why) in zip(document["chips"], row, strict=True)
        if why
    ]
    print("\n".join(wrong) or f"all compile, within the shared memory of {', '.join(compilers)}")
    return bool(wrong) or not document["kernels"]


if __name__ == "__main__":
    sys.exit(main())
