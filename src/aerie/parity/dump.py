"""Dumps: one call of one kernel in a file, readable from Python and C++ (docs/dump_format.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.errors import DumpError, KernelError, UnknownNameError
from aerie.kernels.arrays import as_numpy
from aerie.kernels.binding import bind
from aerie.kernels.card import Card, Port
from aerie.kernels.catalogue import catalogue
from aerie.kernels.status import Status
from aerie.parity.dump_file import Array, Container, Stored, decode, encode, stored

FORMAT, VERSION, SUFFIX = "aerie-dump", "1", ".safetensors"
OK = "ok"
# Refused by name, dtype or bound before anything ran: such a dump has no outputs.
UNRUN = ("KernelBoundsError", "KernelDtypeError")
METADATA = (
    "format",
    "version",
    "kernel",
    "number",
    "card_version",
    "scalars",
    "absent",
    "outcome",
    "provenance",
)
PROVENANCE = ("commit", "device", "backend", "model", "seed", "created")


@dataclass(frozen=True, eq=False)
class Dump:
    """One call: what went in, what came out, and where it comes from.

    `inputs` holds the arrays as they were before the call, those written in place included;
    `outputs` the results and the written arrays after it. Arrays are NumPy; bfloat16 is uint16.
    """

    card: Card
    inputs: Mapping[str, Array]
    scalars: Mapping[str, Any]
    outputs: Mapping[str, Array]
    outcome: str
    provenance: Mapping[str, Any]

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in (*self.inputs.values(), *self.outputs.values()))

    def arguments(self) -> dict[str, Any]:
        """Keywords of the call, in fresh arrays: a replay may write into them."""
        arrays = {name: array.copy() for name, array in self.inputs.items()}
        return {**arrays, **self.scalars}


def outcome_of(results: Mapping[str, Any]) -> str:
    """`ok`, or the name of the first status word that is not."""
    status = results.get("status")
    words = [] if status is None else [int(word) for word in as_numpy(status)]
    return next((Status(word).name for word in words if word), OK)


def resolved_scalars(card: Card, call: Mapping[str, Any]) -> dict[str, Any]:
    """Every scalar of the card, defaults filled in."""
    return {scalar.name: call.get(scalar.name, scalar.default) for scalar in card.scalars}


def write_dump(path: Path, dump: Dump) -> int:
    """Write one file; returns its size. A dump the reader would refuse is not written."""
    data = to_bytes(dump)
    from_bytes(data, path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)


def read_dump(path: Path) -> Dump:
    """Read and check one file."""
    if not path.is_file():
        raise DumpError(f"{path} is not a file; `aerie parity capture` writes dumps")
    return from_bytes(path.read_bytes(), path.name)


def find_dumps(directory: Path) -> list[Path]:
    """The dump files of a folder and those below it, in order; none at all is an error."""
    found = sorted(directory.rglob(f"*{SUFFIX}"))
    if not found:
        raise DumpError(f"{directory} holds no dumps; `aerie parity capture` writes some")
    return found


def to_bytes(dump: Dump) -> bytes:
    """The file of a dump."""
    card = dump.card
    arrays: dict[str, Stored] = {}
    for port in card.ports:
        prefix = "before." if port.kind == "inout" else "in."
        is_bfloat16 = "bfloat16" in port.dtypes
        if port.name in dump.inputs:
            arrays[prefix + port.name] = stored(dump.inputs[port.name], is_bfloat16)
        if port.name in dump.outputs:
            arrays["out." + port.name] = stored(dump.outputs[port.name], is_bfloat16)
    absent = [port.name for port in card.inputs if port.name not in dump.inputs]
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "kernel": card.name,
        "number": card.number,
        "card_version": str(card.version),
        "scalars": json.dumps(dict(dump.scalars), sort_keys=True),
        "absent": json.dumps(absent),
        "outcome": dump.outcome,
        "provenance": json.dumps(dict(dump.provenance), sort_keys=True),
    }
    return encode(Container(metadata, arrays))


def from_bytes(data: bytes, where: str) -> Dump:
    """Parse and check a file; a DumpError names the file and what is wrong with it."""
    container = decode(data, where)
    metadata = container.metadata
    card = _card(metadata, where)
    scalars = _json(metadata["scalars"], dict, f"{where}: scalars")
    wrong = set(scalars) ^ {scalar.name for scalar in card.scalars}
    if wrong:
        raise DumpError(f"{where}: scalars {sorted(wrong)} do not fit the card of {card.name}")
    # JSON has no tuples; bucket lists are tuples to the cards.
    scalars = {n: tuple(v) if isinstance(v, list) else v for n, v in scalars.items()}
    inputs, outputs = _sorted_arrays(card, container, where)
    absent = _json(metadata["absent"], list, f"{where}: absent")
    if absent != [port.name for port in card.inputs if port.name not in inputs]:
        raise DumpError(f"{where}: absent says {absent}, the file says otherwise")
    provenance = _json(metadata["provenance"], dict, f"{where}: provenance")
    lacking = [key for key in PROVENANCE if key not in provenance]
    if lacking:
        raise DumpError(f"{where}: provenance lacks {', '.join(lacking)}")
    dump = Dump(card, inputs, scalars, outputs, metadata["outcome"], provenance)
    _check_outcome(dump, where)
    return dump


def _card(metadata: Mapping[str, str], where: str) -> Card:
    """The card of the dump; another format, version or kernel is refused by name."""
    if metadata.get("format") != FORMAT:
        raise DumpError(f"{where}: format {metadata.get('format')!r}, expected {FORMAT!r}")
    if metadata.get("version") != VERSION:
        raise DumpError(f"{where}: version {metadata.get('version')!r}, expected {VERSION!r}")
    wrong = set(metadata) ^ set(METADATA)
    if wrong:
        raise DumpError(f"{where}: metadata {sorted(wrong)} missing or unknown")
    name = metadata["kernel"]
    try:
        card = catalogue()[name]
    except UnknownNameError as error:
        raise DumpError(f"{where}: no kernel of this version: {error}") from None
    if metadata["card_version"] != str(card.version):
        raise DumpError(
            f"{where}: a dump of {name} version {metadata['card_version']},"
            f" its card is at version {card.version}: capture it again"
        )
    if metadata["number"] != card.number:
        raise DumpError(f"{where}: {name} is {card.number}, the dump says {metadata['number']!r}")
    return card


def _json(text: str, kind: type[Any], what: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise DumpError(f"{what} is not a JSON {'object' if kind is dict else 'list'}")
    return value


def _sorted_arrays(
    card: Card, container: Container, where: str
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and outputs in ABI order; every array of the file must have its port."""
    inputs: dict[str, Array] = {}
    outputs: dict[str, Array] = {}
    rest = dict(container.arrays)
    for port in card.ports:
        prefix = "before." if port.kind == "inout" else "in."
        given = rest.pop(prefix + port.name, None) if port.kind != "out" else None
        after = rest.pop("out." + port.name, None) if port.kind != "in" else None
        if given is not None:
            inputs[port.name] = given.values
        elif port.kind != "out" and not port.optional:
            raise DumpError(f"{where}: {prefix}{port.name} is missing")
        if after is not None:
            outputs[port.name] = after.values
    if rest:
        raise DumpError(f"{where}: arrays without a port of {card.name}: {sorted(rest)}")
    return inputs, outputs


def _check_outcome(dump: Dump, where: str) -> None:
    """A call that ran has every output, in the dtype and shape its card states."""
    if dump.outcome in UNRUN:
        if dump.outputs:
            raise DumpError(f"{where}: outcome {dump.outcome}, yet there are outputs")
        return
    try:
        sizes = bind(dump.card, {**dump.inputs, **dump.scalars})
    except KernelError as error:
        raise DumpError(f"{where}: outcome {dump.outcome}, but the card refuses: {error}") from None
    for port in dump.card.ports:
        is_given = port.kind == "out" or port.name in dump.inputs
        if port.kind == "in" or not is_given:
            continue
        if port.name not in dump.outputs:
            raise DumpError(f"{where}: out.{port.name} is missing")
        _check_output(port, dump.outputs[port.name], sizes, where)
    if dump.outcome != outcome_of(dump.outputs):
        raise DumpError(
            f"{where}: outcome {dump.outcome!r}, the status says {outcome_of(dump.outputs)!r}"
        )


def _check_output(port: Port, array: Array, sizes: Mapping[str, int], where: str) -> None:
    wanted = tuple(formula(sizes) for formula in port.sizes)
    if array.shape != wanted:
        raise DumpError(f"{where}: out.{port.name} has shape {array.shape}, its card says {wanted}")
    name = "bfloat16" if array.dtype == "uint16" else str(array.dtype)
    name = "host_int" if port.dtypes == ("host_int",) and name == "int64" else name
    if name not in port.dtypes:
        raise DumpError(f"{where}: out.{port.name} is {name}, its card says {port.dtypes}")
