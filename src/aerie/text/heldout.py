"""The held-out documents: code and prose of several lengths that no training has seen."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from aerie.errors import UsageError

ARCHIVE = "documents.jsonl.xz"
CODE, PROSE = "code", "prose"
KINDS = (CODE, PROSE)


@dataclass(frozen=True)
class Document:
    """Files of one package, one after another; no two documents share one."""

    name: str
    kind: str
    length: int  # tokens of the built-in pair that its text holds at least
    package: str
    files: tuple[str, ...]  # in the order of the text
    text: str


def read_documents(length: int, number: int, kind: str = CODE, offset: int = 0) -> list[Document]:
    """`number` documents of at least `length` tokens, behind the first `offset` of them.

    Those of the shortest length that holds the asked one come first; where they do not suffice,
    longer ones follow, so no document comes twice.
    """
    if kind not in KINDS:
        raise UsageError(f"no held-out documents are {kind!r}; kinds: {', '.join(KINDS)}")
    found: list[Document] = []
    for document in _records():
        if document.kind == kind and document.length >= length:
            found.append(document)
            if len(found) == offset + number:
                return found[offset:]
    raise UsageError(
        f"{number} held-out documents of {kind} with {length} tokens asked behind the first "
        f"{offset}, but there are {len(found)}"
    )


def read_tokens(
    encode: Callable[[str], Sequence[int]],
    length: int,
    number: int,
    kind: str = CODE,
    offset: int = 0,
) -> list[list[int]]:
    """The first `length` tokens of such documents."""
    return [
        list(encode(document.text)[:length])
        for document in read_documents(length, number, kind, offset)
    ]


def _records() -> Iterator[Document]:
    """All documents, the shortest first; nothing is unpacked that is not asked for."""
    path = resources.files("aerie.assets") / "heldout" / ARCHIVE
    with path.open("rb") as stream, lzma.open(stream, "rt", encoding="utf-8") as lines:
        for line in lines:
            values = json.loads(line)
            yield Document(**{**values, "files": tuple(values["files"])})
