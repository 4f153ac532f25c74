"""Runs one parity case on a GPU: without synchronising, then captured in a graph and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from aerie.errors import KernelError
from aerie.kernels.arrays import on_device
from aerie.kernels.cases.case import Case
from aerie.kernels.registry import Kernels
from aerie.parity.compare import compare_outputs

DEVICE = "cuda"
WARM_UPS = 2
REPLAYS = 2
# What outputs hold before a replay, so that an output the graph does not write is noticed.
POISON = 77

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of one case; `reason` says what went wrong, `ulps` is the worst distance."""

    case: str
    is_refused_on_host: bool = False
    is_captured: bool = False
    n_replays: int = 0
    ulps: int = 0
    reason: str | None = None


@contextmanager
def refusing_to_synchronise() -> Iterator[None]:
    """Turn every wait of the host for the device into an error."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # torch warns once that the mode is a prototype, after it was set.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def run_case(kernels: Kernels, reference: Kernels, case: Case) -> Outcome:
    """Compare eager, captured and replayed results of a case with the reference.

    Both backends must report data errors as status words. A case that its card refuses on the
    host must raise the same error in both and has nothing to capture.
    """
    built = case.build()
    try:
        expected = {**built, **reference[case.kernel](**built)._asdict()}
    except KernelError as refusal:
        return _refused(kernels, case, refusal)
    try:
        return _captured(kernels, case, expected)
    except (RuntimeError, KernelError) as failure:
        return Outcome(case.name, reason=f"{type(failure).__name__}: {failure}")


def _refused(kernels: Kernels, case: Case, refusal: KernelError) -> Outcome:
    try:
        kernels[case.kernel](**_inputs(case))
    except KernelError as error:
        if type(error) is type(refusal):
            return Outcome(case.name, is_refused_on_host=True)
        return Outcome(case.name, reason=f"raised {error!r}, the reference {refusal!r}")
    return Outcome(case.name, reason=f"raised nothing, the reference {refusal!r}")


def _captured(kernels: Kernels, case: Case, expected: Tensors) -> Outcome:
    kernel = kernels[case.kernel]
    eager = _inputs(case)
    with refusing_to_synchronise():
        result = kernel(**eager)
    found = compare_outputs(kernel.card, expected, {**eager, **result._asdict()}, is_gpu=True)
    if found.reason:
        return Outcome(case.name, ulps=found.ulps, reason=f"eager: {found.reason}")

    pristine, static = _inputs(case), _inputs(case)
    # Captured on zeros: whatever the host might have read from the data would now be wrong.
    _fill(static, 0)
    graph, outputs = _capture(kernel, static)
    worst = found.ulps
    for replay in range(REPLAYS):
        _fill(outputs, POISON)
        _restore(static, pristine)
        graph.replay()
        torch.cuda.synchronize()
        found = compare_outputs(kernel.card, expected, {**static, **outputs}, is_gpu=True)
        worst = max(worst, found.ulps)
        if found.reason:
            reason = f"replay {replay}: {found.reason}"
            return Outcome(case.name, is_captured=True, n_replays=replay, ulps=worst, reason=reason)
    return Outcome(case.name, is_captured=True, n_replays=REPLAYS, ulps=worst)


def _capture(kernel: Any, static: Tensors) -> tuple[torch.cuda.CUDAGraph, Tensors]:
    """Warm up on a side stream, as capture requires, then record one call."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            kernel(**static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        # An empty batch may launch nothing at all, which is as it should be.
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        with torch.cuda.graph(graph):
            result = kernel(**static)
    return graph, result._asdict()


def _inputs(case: Case) -> Tensors:
    return {name: on_device(value, DEVICE) for name, value in case.build().items()}


def _restore(static: Tensors, pristine: Tensors) -> None:
    for name, value in pristine.items():
        if isinstance(value, torch.Tensor):
            static[name].copy_(value)


def _fill(arrays: Tensors, value: int) -> None:
    for array in arrays.values():
        if isinstance(array, torch.Tensor):
            # Few operations know uint32.
            bits = array.view(torch.int32) if array.dtype == torch.uint32 else array
            bits.fill_(value)
