"""The parity matrix: kernel x backend x group of cases, tied to the sources it was made from."""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerie.errors import KernelBoundsError, KernelDataError, KernelDtypeError
from aerie.kernels.cases.case import Case
from aerie.kernels.catalogue import catalogue
from aerie.kernels.registry import Kernels, backend_info, load
from aerie.parity.compare import allowed_ulps
from aerie.parity.dump import read_dump
from aerie.parity.replay import granted_ulps, replay_dumps
from aerie.parity.run import CaseResult, run_parity
from aerie.sources import hash_code, hash_folder, join_hashes

FORMAT, VERSION = "aerie-parity-matrix", 1
CAPTURED = "captured"

_REFUSALS = {
    KernelDtypeError: "refused: dtype",
    KernelBoundsError: "refused: bounds",
    KernelDataError: "refused: data",
}
# The first pattern that one of a case's features matches names its group.
_FEATURES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("empty", re.compile(r"empty_batch|no_rows|all_empty|empty|no_table|none|hidden_0|no_old")),
    (
        "edges",
        re.compile(
            r".*_limit|capacity_exact|bucket_exact|rows_128|depth_127|smallest|full(_table)?"
            r"|int32_edge|seq_[01]|long_(context|spans)|edge|tokens_edge|root_only|vocab_1"
            r"|not_(a_power_of_two|multiple_of_8)|slot_0|fill_(0|limit)|hidden_8192"
        ),
    ),
    (
        "numbers",
        re.compile(
            r"nan|inf|p_.*|ties|all_equal|masked|huge|far_apart|subnormal|residual_0|twins"
            r"|bf16|fp16|hidden_inf|wide_range|one_choice|strict"
        ),
    ),
)
ORDINARY = "ordinary"
# Modules of `aerie.kernels` that say what a kernel is; the others say how one is reached.
_DEFINING = ("binding", "card", "catalogue", "formula", "noise", "report", "status")
GROUPS = (ORDINARY, *(name for name, _ in _FEATURES), *_REFUSALS.values(), CAPTURED)


def group_of(case: Case) -> str:
    """The group of a case: how it is refused, else what is unusual about it."""
    if case.expects is not None:
        return _REFUSALS[case.expects]
    for name, pattern in _FEATURES:
        if any(pattern.fullmatch(feature) for feature in case.features):
            return name
    return ORDINARY


@dataclass(frozen=True)
class Cell:
    """One kernel on one backend in one group of cases."""

    kernel: str
    backend: str
    device: str
    group: str
    cases: int
    passed: int
    tolerance_ulps: int
    worst_ulps: int


@dataclass(frozen=True)
class Column:
    """One backend on one device, and the hash of the sources that ran."""

    backend: str
    device: str
    sources_sha256: str
    cells: tuple[Cell, ...]
    failed: tuple[CaseResult, ...]

    @property
    def key(self) -> tuple[str, str]:
        """What a matrix holds once."""
        return self.backend, self.device


@dataclass(frozen=True)
class Matrix:
    """All columns made from one contract."""

    contract_sha256: str
    columns: tuple[Column, ...]
    remarks: tuple[str, ...] = ()  # what was not run, and why

    @property
    def ok(self) -> bool:
        """Whether every case of every column passed."""
        return bool(self.columns) and not any(column.failed for column in self.columns)

    def payload(self) -> dict[str, Any]:
        """As JSON values; no date, no machine: the same sources give the same bytes."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "ok": self.ok,
            "contract_sha256": self.contract_sha256,
            "remarks": list(self.remarks),
            "columns": [asdict(column) for column in self.columns],
        }


def measure_column(
    backend: str, device: str, cases: Sequence[Case], dumps: Sequence[Path]
) -> Column:
    """Run every case and replay every dump on one backend."""
    kernels = load(backend, device=device)
    reference = load("reference", data_errors=kernels.data_errors)
    groups = {(case.kernel, case.name): group_of(case) for case in cases}
    found: defaultdict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for result in run_parity(kernels, reference, cases).results:
        found[result.kernel, groups[result.kernel, result.case]].append(result)
    replaying = load(backend, device=device, data_errors="status")
    for result in replay_dumps(replaying, dumps).results:
        found[result.kernel, CAPTURED].append(result)
    granted = {name: _granted(kernels, name) for name in catalogue()}
    captured = dict.fromkeys(granted, 0)
    for dump in map(read_dump, dumps):
        name = dump.card.name
        captured[name] = max(captured[name], granted_ulps(replaying, dump))
    cells = tuple(
        _cell(kernels, (name, group), found[name, group], limits[name])
        for name in catalogue()
        for group in GROUPS
        for limits in ((captured if group == CAPTURED else granted),)
        if found[name, group]
    )
    failed = tuple(r for results in found.values() for r in results if not r.ok)
    return Column(backend, device, sources_hash(backend), cells, failed)


def _granted(kernels: Kernels, kernel: str) -> int:
    """The ulps a card grants any output; the reference is what it is measured by."""
    if kernels.backend == "reference":
        return 0
    card, is_gpu = catalogue()[kernel], not kernels.device.startswith("cpu")
    return max((allowed_ulps(card, port.name, is_gpu) for port in card.outputs), default=0)


def _cell(
    kernels: Kernels, place: tuple[str, str], results: list[CaseResult], tolerance: int
) -> Cell:
    kernel, group = place
    return Cell(
        kernel=kernel,
        backend=kernels.backend,
        device=kernels.device,
        group=group,
        cases=len(results),
        passed=sum(result.ok for result in results),
        tolerance_ulps=tolerance,
        worst_ulps=max(result.ulps for result in results),
    )


def sources_hash(backend: str) -> str:
    """SHA-256 over the code of a backend and of those it overlays; comments do not count."""
    found: dict[str, str] = {}
    name: str | None = backend
    while name is not None:
        info = backend_info(name)
        found[info.name] = hash_folder(_folder(info.module))
        name = info.base
    return join_hashes(found)


def contract_hash() -> str:
    """SHA-256 over what every backend is judged by: cards, cases, the reference, the comparison."""
    kernels, judges = _folder("aerie.kernels"), _folder("aerie.parity")
    found = {part: hash_folder(kernels / part) for part in ("cards", "cases", "reference")}
    files = [kernels / f"{name}.py" for name in _DEFINING]
    files += [judges / f"{name}.py" for name in ("compare", "replay", "run")]
    found["shared"] = hash_code((path.name, path.read_bytes()) for path in files)
    return join_hashes(found)


def _folder(module: str) -> Path:
    """Where a package lies; it is not imported, for its library may not be there."""
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None, f"{module} is a package of files"
    return Path(found.origin).parent
