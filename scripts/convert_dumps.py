"""Rewrites dumps of an earlier card version whose successors only added optional inputs.

    PYTHONPATH=src python scripts/convert_dumps.py [folder, default tests/data/dumps]

Such a call is a call of the present version that passes none of the new inputs: its arrays stay
byte for byte, the version and the list of absent inputs change, and the provenance says so. Dumps
of versions that differ in more must be captured again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from aerie.errors import DumpError
from aerie.kernels import catalogue
from aerie.parity.dump import find_dumps, from_bytes
from aerie.parity.dump_file import Container, decode, encode

# Kernel and the version after which only optional inputs came: 2 brought the floor of stop tokens.
CONVERTIBLE_SINCE = {"sample_target_tokens": 1}


def converted(container: Container, where: str) -> Container:
    """The same call under the present version of its card."""
    metadata = dict(container.metadata)
    card, was = catalogue()[metadata["kernel"]], int(metadata["card_version"])
    since = CONVERTIBLE_SINCE.get(card.name, card.version)
    if not since <= was <= card.version:
        raise DumpError(f"{where}: version {was} of {card.name} must be captured again")
    given = {name.partition(".")[2] for name in container.arrays if not name.startswith("out.")}
    absent = [port.name for port in card.inputs if port.name not in given]
    provenance = {**json.loads(metadata["provenance"]), "converted_from_card_version": was}
    metadata["card_version"] = str(card.version)
    metadata["absent"] = json.dumps(absent)
    metadata["provenance"] = json.dumps(provenance, sort_keys=True)
    return replace(container, metadata=metadata)


def main() -> None:
    """Convert what needs it; every written file has been read back first."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/data/dumps")
    for path in find_dumps(folder):
        container = decode(path.read_bytes(), path.name)
        card = catalogue()[container.metadata["kernel"]]
        if container.metadata["card_version"] != str(card.version):
            data = encode(converted(container, path.name))
            from_bytes(data, path.name)
            path.write_bytes(data)
            print(f"{path}: now version {card.version}")


if __name__ == "__main__":
    main()
