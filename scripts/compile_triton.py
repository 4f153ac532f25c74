"""Compiles what the Triton kernels of the parity cases launch, for a GPU that need not be there.

    PYTHONPATH=src python scripts/compile_triton.py [kernel ...] [--arch 90]

Triton's interpreter forgives what its compiler does not: types that change in a branch, an array
that is not there. Each launch of each case is compiled instead of run, once for every set of
arguments; a line names the kernel, its registers, bytes of spills and shared memory, and seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from aerie.errors import KernelError
from aerie.kernels import catalogue
from aerie.kernels.cases import cases_for
from aerie.kernels.registry import Kernel
from aerie.kernels.tensors import adopt
from aerie.kernels.triton_gpu import KERNELS

_TYPES = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16",
    torch.bfloat16: "*bf16", torch.int64: "*i64", torch.int32: "*i32", torch.uint32: "*u32",
    torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
_DUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Compiler:
    """Stands in for launches: compiles each kernel once for every kind of call."""

    def __init__(self, arch: int) -> None:
        self.target = GPUTarget("cuda", arch, 32)
        self.seen: set[object] = set()

    def run(self, kernel: Any, *args: Any, **named: Any) -> None:
        """What `kernel[grid](...)` calls."""
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
        del given["grid"], given["warmup"]
        types: dict[str, str] = {}
        constants: dict[str, Any] = {}
        aligned: dict[tuple[int], list[list[Any]]] = {}
        for param in kernel.params:
            value = given.pop(param.name)
            if param.is_constexpr or value is None:
                types[param.name], constants[param.name] = "constexpr", value
                continue
            types[param.name] = _TYPES[value.dtype] if hasattr(value, "dtype") else "i32"
            is_free = param.do_not_specialize or not isinstance(value, int) or value % 16
            if hasattr(value, "dtype") or not is_free:
                aligned[(param.num,)] = [["tt.divisibility", 16]]
        key = (kernel.fn.__name__, *types.items(), str(constants), str(given), str(aligned))
        if key in self.seen:
            return
        self.seen.add(key)
        start = time.perf_counter()
        source = ASTSource(kernel, types, constants, aligned)
        built = triton.compile(source, target=self.target, options=given)
        seconds = time.perf_counter() - start
        print(f"{kernel.fn.__name__:34}{_resources(built.asm['cubin']):>42}{seconds:8.1f} s")


def _resources(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [_DUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", said)
    return "" if found is None else "{} registers, {} spilled, {} shared".format(*found.groups())


def main() -> None:
    """Compile the kernels asked for, or all; a kernel that does not compile ends the run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=list(KERNELS))
    parser.add_argument("--arch", type=int, default=90, help="compute capability times ten")
    options = parser.parse_args()
    compiler = Compiler(options.arch)
    JITFunction.run = lambda kernel, *args, **named: compiler.run(kernel, *args, **named)
    for name in options.kernels:
        card, own = catalogue()[name], KERNELS[name]
        kernel = Kernel(card, own, lambda array, written: adopt(array, "cpu", written), False)
        for case in cases_for(name):
            inputs = case.build()
            if own.covers is not None and not own.covers(inputs):
                continue
            try:
                kernel(**inputs)
            except KernelError:
                continue  # refused on the host: nothing is launched
    print(f"{len(compiler.seen)} variants compile for sm_{options.arch}")


if __name__ == "__main__":
    main()
