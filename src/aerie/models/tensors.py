"""Tensor specifications: what a checkpoint must hold, and the comparison with what it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aerie.errors import TensorMismatchError
from aerie.models.fields import shortened
from aerie.models.foreign import DTYPES, explain_tensor
from aerie.models.weights import Entry

FLOATS = ("F32", "BF16", "F16")
BYTES = ("U8",)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor a model needs; an optional one may be absent but not different."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = FLOATS
    is_optional: bool = False
    other_shape: tuple[int, ...] | None = None  # another that stands for the same


@dataclass(frozen=True)
class Offence:
    """One tensor that is not as it must be."""

    kind: str  # "missing", "unknown", "wrong shape", "wrong dtype", "not finite", ...
    name: str
    detail: str = ""
    hint: str = ""  # what such a tensor tells of the whole checkpoint; said once

    def __str__(self) -> str:
        return f"{self.name} {self.detail}".rstrip()


def compare(specs: Iterable[TensorSpec], stored: Mapping[str, Entry]) -> list[Offence]:
    """Every tensor that is missing, unknown, mis-shaped or of a wrong dtype; reads no data."""
    expected = {spec.name: spec for spec in specs}
    found = [
        Offence("unknown", name, hint=explain_tensor(name))
        for name in stored
        if name not in expected
    ]
    for spec in expected.values():
        entry = stored.get(spec.name)
        if entry is None:
            if not spec.is_optional:
                found.append(Offence("missing", spec.name, f"{list(spec.shape)}"))
            continue
        if entry.shape not in (spec.shape, spec.other_shape):
            detail = f"{list(entry.shape)}, must be {list(spec.shape)}"
            found.append(Offence("wrong shape", spec.name, detail))
        if entry.dtype not in spec.dtypes:
            detail = f"{entry.dtype}, must be {' or '.join(spec.dtypes)}"
            found.append(Offence("wrong dtype", spec.name, detail, DTYPES.get(entry.dtype, "")))
    return found


def refuse(offences: Sequence[Offence], source: str) -> None:
    """Raise one error that lists all offences by kind; return if there are none."""
    if not offences:
        return
    lines = [f"{source} does not hold the tensors its config.json describes:"]
    for kind in sorted({offence.kind for offence in offences}):
        found = {str(offence) for offence in offences if offence.kind == kind}
        lines.append(f"{kind} ({len(found)}):")
        lines += [f"  {entry}" for entry in shortened(found)]
    usual = "Check that config.json and the weights come from the same model, complete."
    lines += sorted({offence.hint for offence in offences} - {""}) or [usual]
    raise TensorMismatchError("\n".join(lines))
