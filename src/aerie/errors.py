"""The exception tree; every message says what happened and what to do next.

AerieError
├── UsageError               the call itself is wrong (names, combinations, options)
│   └── UnknownNameError     a name that does not exist, with the nearest ones that do
├── RequestFailedError       requests ended with an error; `completions` has every result
├── EngineFailedError        the engine ended for all requests: a device error, memory
├── RankLostError            a process that holds a part of the target is gone
├── KernelError              a tree kernel refused its inputs
│   ├── KernelBoundsError    a shape, scalar or value beyond a declared limit
│   ├── KernelDtypeError     an array of a dtype the card does not list
│   ├── KernelArgumentError  no array, or one that cannot be written (a UsageError, too)
│   └── KernelDataError      values no limit can describe: NaN logits, duplicate siblings, …
├── BackendUnavailableError  a backend that was asked for cannot run here
├── ParityError              two backends disagree where their card says they may not
├── PerfModeError            a run in perf mode would have gone on, but slower or wrongly
├── DumpError                a captured call that cannot be read as what it claims to be
└── CheckpointError          a model directory that cannot be read as it claims to be
    ├── ConfigFieldError, WeightFileError, TensorMismatchError, PickleRefusedError
    ├── UnsupportedArchitectureError, HubError
    └── ProbeError           a draft head that loads, and does not agree with its target
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class AerieError(Exception):
    """Root of everything aerie raises on purpose."""


class UsageError(AerieError):
    """The call itself is wrong; nothing was computed."""


class UnknownNameError(UsageError):
    """A name that does not exist; the message lists the nearest names that do."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")
        self.name = name
        self.near = near


class RequestFailedError(AerieError):
    """Some requests of a call ended with an error; `completions` has every result, good or not."""

    def __init__(self, message: str, completions: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.completions = completions


class EngineFailedError(AerieError):
    """The engine ended: what broke cannot be laid to one request. Load a new one."""


class RankLostError(AerieError):
    """A process that holds a part of a tensor-parallel target is gone, and with it the target."""


class KernelError(AerieError):
    """A tree kernel refused its inputs; nothing was written.

    `value` and `limit` are the offending value and what it should have been. `status` is the
    per-request status vector when the refusal came from data rather than from shapes.
    """

    def __init__(
        self,
        message: str,
        *,
        value: object = None,
        limit: object = None,
        status: object = None,
    ) -> None:
        super().__init__(message)
        self.value = value
        self.limit = limit
        self.status = status


class KernelBoundsError(KernelError):
    """A shape, host scalar or index lies beyond a limit the card declares."""


class KernelDtypeError(KernelError):
    """An array has a dtype the card does not list."""


class KernelArgumentError(KernelError, UsageError):
    """An argument is not what a kernel can take: no array, read-only, overlapping, elsewhere."""


class KernelDataError(KernelError):
    """The values themselves are impossible: NaN logits, duplicate siblings, broken links."""


class BackendUnavailableError(AerieError):
    """A backend was asked for by name and cannot run on this machine."""


class ParityError(AerieError):
    """Two backends disagree where their card says they may not."""


class PerfModeError(AerieError):
    """An invariant of perf mode was broken: the run stops instead of falling back."""


class DumpError(AerieError):
    """A file is no dump of a kernel call, or one of another version of the kernel's card."""


class CheckpointError(AerieError):
    """A model directory cannot be read as what it claims to be."""


class ConfigFieldError(CheckpointError):
    """A field of config.json is missing, of the wrong type, or impossible."""


class WeightFileError(CheckpointError):
    """A weight file is absent, truncated, or its header is not what the format says."""


class TensorMismatchError(CheckpointError):
    """Tensors of a checkpoint are unknown, missing, mis-shaped or not finite; all are listed."""


class PickleRefusedError(CheckpointError):
    """Only pickled weights were found; the message carries the command that converts them."""


class UnsupportedArchitectureError(CheckpointError):
    """The architecture named by config.json is not in the table of architectures."""


class HubError(CheckpointError):
    """A hub id is not in the local cache; the message carries the download command."""


class ProbeError(CheckpointError):
    """A draft head loads but does not agree with its target; the message names a better reading."""
