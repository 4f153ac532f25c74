"""A process that compiles kernels into Triton's cache: tasks are lines of JSON, each is answered.

It has no GPU to itself: the device to compile for is said by every task.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from typing import Any

import triton
from triton.backends.compiler import GPUTarget


class Absent:
    """Stands for the driver of a device that another process uses, or that is not here."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return self.target

    def get_current_device(self) -> int:
        """Triton keeps what it compiled by this number."""
        return int(self.target.arch)

    def get_current_stream(self, device: int) -> int:
        """Nothing runs on it."""
        return 0


def compile_one(task: dict[str, Any]) -> None:
    """Compile a kernel for the arguments that were said."""
    triton.runtime.driver.set_active(Absent(GPUTarget(**task["target"])))
    place: Any = importlib.import_module(task["module"])
    for part in task["name"].split("."):
        place = getattr(place, part)
    kernel = place.preload(task["data"])
    from triton.backends.nvidia import driver

    # Versions that build a launcher of C for every kind of call: that takes long, too.
    if hasattr(driver, "make_launcher"):
        driver.CudaLauncher(kernel.src, kernel.metadata)


def main() -> None:
    """Answer every line of the input until it ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may be printed between them
    for line in sys.stdin:
        try:
            compile_one(json.loads(line))
            answer = "ok"
        except Exception:  # the launch meets it again and raises it there
            traceback.print_exc()
            answer = "failed"
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
