"""The held-out documents: code and prose of several lengths that no training has seen."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from aerie.errors import UsageError

ARCHIVE, STEADY = "documents.jsonl.xz", "steady.json"
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


@dataclass(frozen=True)
class Piece:
    """A run of a document's tokens, named by the document and the place where it begins."""

    name: str
    tokens: tuple[int, ...]


def read_pieces(
    encode: Callable[[str], Sequence[int]], length: int, kind: str = CODE
) -> Iterator[Piece]:
    """Documents cut into pieces of `length` tokens, none overlapping.

    The first piece of each comes first, then the second: neighbours are of different texts.
    """
    documents = (document for document in _records() if document.kind == kind)
    whole = {document.name: tuple(encode(document.text)) for document in documents}
    for begin in range(0, max(map(len, whole.values())), length):
        for name, text in whole.items():
            if begin + length <= len(text):
                yield Piece(f"{name}@{begin}", text[begin : begin + length])


def steady_first(encode: Callable[[str], Sequence[int]], length: int) -> Iterator[Piece]:
    """Pieces of code, first those after which the built-in pair is known not to loop.

    Which these are was found by plain decoding (`scripts/steady_texts.py`); whoever measures asks
    its own texts again, for near ties can part them.
    """
    listed = json.loads((resources.files("aerie.assets") / "heldout" / STEADY).read_text("utf-8"))
    known = set(listed.get(str(length), {"steady": ()})["steady"])
    pieces = list(read_pieces(encode, length))
    yield from (piece for piece in pieces if piece.name in known)
    yield from (piece for piece in pieces if piece.name not in known)


def _records() -> Iterator[Document]:
    """All documents, the shortest first; nothing is unpacked that is not asked for."""
    path = resources.files("aerie.assets") / "heldout" / ARCHIVE
    with path.open("rb") as stream, lzma.open(stream, "rt", encoding="utf-8") as lines:
        for line in lines:
            values = json.loads(line)
            yield Document(**{**values, "files": tuple(values["files"])})
