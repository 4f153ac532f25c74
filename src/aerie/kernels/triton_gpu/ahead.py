"""Kernels compiled side by side: recording finds out which are missing, processes compile them.

Triton compiles a kernel where it is first launched, one after the other, a second or more each.
Here a launch of a kernel that no cache has is left out, and a process of a pool compiles it; what
was recorded without it is recorded again. Processes rather than threads: most of a compilation
holds Python's lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import triton

WORKER = "aerie.kernels.triton_gpu.ahead_worker"
MOST_WORKERS = 16


class Compilers:
    """While it is entered, kernels are compiled by processes and launches of missing ones left out.

    A kernel that a process fails to compile is left to the launch, which raises what is wrong.
    """

    def __init__(self) -> None:
        self.missed: set[str] = set()  # left out since this was last cleared
        self._asked: dict[str, Future[None]] = {}
        self._own = threading.local()  # each thread of the pool has a process
        self._processes: list[subprocess.Popen[str]] = []
        n_workers = max(1, min(MOST_WORKERS, (os.cpu_count() or 1) - 1))
        self._pool = ThreadPoolExecutor(n_workers)

    @property
    def n_asked(self) -> int:
        """Kernels that were missing."""
        return len(self._asked)

    @property
    def n_left(self) -> int:
        """Of those, how many still are."""
        return sum(not future.done() for future in self._asked.values())

    def has(self, names: Collection[str]) -> bool:
        """Whether all these were dealt with."""
        return all(self._asked[name].done() for name in names)

    def __enter__(self) -> Compilers:
        self._before = triton.knobs.runtime.jit_cache_hook
        triton.knobs.runtime.jit_cache_hook = self._is_left_out
        return self

    def __exit__(self, *_: object) -> None:
        triton.knobs.runtime.jit_cache_hook = self._before
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._pool.shutdown()

    def _is_left_out(self, *, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Triton asks this before it compiles."""
        kernel, data = fn.jit_function, str(compile["specialization_data"])
        target = triton.runtime.driver.active.get_current_target()
        name = _name(kernel.cache_key, data, target)
        if name in self._asked:
            is_missing = not self._asked[name].done()
        else:
            is_missing = not _stamp(name).exists()
        if is_missing:
            if name not in self._asked:
                task = {"module": fn.module, "name": fn.name, "data": data, "target": vars(target)}
                self._asked[name] = self._pool.submit(self._compile, name, task)
            self.missed.add(name)
        return is_missing

    def _compile(self, name: str, task: dict[str, Any]) -> None:
        worker = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = subprocess.Popen(
                [sys.executable, "-m", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            self._processes.append(worker)
        assert worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(task) + "\n")
            worker.stdin.flush()
            is_compiled = worker.stdout.readline() == "ok\n"
        except OSError:  # it is gone: the launch compiles
            is_compiled = False
        if is_compiled:
            _stamp(name).touch()


def _name(source: str, data: str, target: object) -> str:
    """Of everything that a compiled kernel depends on."""
    parts = (triton.__version__, source, data, repr(target))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _stamp(name: str) -> Path:
    """A file that says "compiled", beside what was compiled: removing one removes both."""
    folder = Path(triton.knobs.cache.dir) / "aerie-compiled"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name
