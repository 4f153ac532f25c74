"""The corpus: sources read in parallel, freed of copies, tokenised, and split by whole files."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aerie.train.cleaning import Cleaned, read_files
from aerie.train.overlap import concatenate, shared_windows
from aerie.train.progress import Progress
from aerie.train.sources import Package, SourceFile, find_sources
from aerie.train.tokenizer import END_ID, encode_texts, train_tokenizer

FILES_PER_TASK = 64
LIKENESS = 0.6  # share of a file's shingles that stand in earlier files, from which it is a copy

Tokens = NDArray[np.uint16]
Item = TypeVar("Item")


@dataclass(frozen=True)
class CorpusSettings:
    """What is collected and how it is split."""

    vocab_size: int = 4096
    sample_bytes: int = 60_000_000  # of text, for learning the merges
    heldout_share: float = 0.03
    # A held-out file that shares windows with more training tokens than this is given up, because
    # those training files would have to go: boilerplate is worth neither.
    most_dropped: float = 0.0005
    n_workers: int = 0  # 0: one per core
    max_files: int = 0  # 0: all; a limit makes the toy run short
    tokenizer_json: str = ""  # empty: learn one


@dataclass(frozen=True)
class Document:
    """A file that stayed in the corpus."""

    package: int
    path: str
    digest: str


@dataclass(frozen=True, eq=False)
class Stream:
    """Documents one after another, each beginning with END_ID."""

    tokens: Tokens
    starts: NDArray[np.int64]
    documents: tuple[Document, ...]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Both halves, with the tokenizer that made them and the record of what was left out."""

    train: Stream
    heldout: Stream
    tokenizer_json: str
    packages: tuple[Package, ...]
    refused: tuple[Package, ...]
    counts: dict[str, int]


@dataclass(frozen=True, eq=False)
class _Kept:
    """Cleaned files in a fixed order."""

    documents: tuple[Document, ...]
    texts: tuple[str, ...]


def build_corpus(settings: CorpusSettings, progress: Progress) -> Corpus:
    """Collect, clean, tokenise and split. The same machine and settings give the same corpus."""
    found = find_sources()
    files = found.files[: settings.max_files or None]
    progress.say(
        f"corpus: {len(files)} files of {len(found.packages)} packages, {len(found.refused)} "
        "packages refused by licence"
    )
    n_workers = settings.n_workers or os.cpu_count() or 1
    # Fresh interpreters: a fork of a process that has started threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_workers, mp_context=context) as pool:
        counts: Counter[str] = Counter({"files found": len(files)})
        kept = _without_copies(files, _read(pool, files), counts)
        n_bytes = sum(map(len, kept.texts))
        progress.say(f"corpus: {len(kept.texts)} files kept, {n_bytes / 1e6:.0f} MB")
        tokenizer_json = settings.tokenizer_json or _learn_tokenizer(kept.texts, settings)
        progress.say("corpus: tokenizer ready")
        encode = partial(encode_texts, tokenizer_json)
        encoded = [array for part in pool.map(encode, _tasks(kept.texts)) for array in part]
    n_tokens = sum(array.shape[0] for array in encoded)
    progress.say(f"corpus: {n_tokens / 1e6:.1f} M tokens, {n_bytes / n_tokens:.2f} bytes a token")
    train, heldout = _split(kept.documents, encoded, settings, counts)
    counts |= {"train tokens": train.tokens.shape[0], "heldout tokens": heldout.tokens.shape[0]}
    counts |= {"train files": len(train.documents), "heldout files": len(heldout.documents)}
    counts |= {"bytes": n_bytes, "tokens": n_tokens}
    progress.say(f"corpus: {dict(counts)}")
    return Corpus(train, heldout, tokenizer_json, found.packages, found.refused, dict(counts))


def manifest(corpus: Corpus) -> dict[str, object]:
    """The record that goes into the model card: packages, licences, counts and hashes."""
    per_package = Counter(document.package for document in corpus.train.documents)
    held = Counter(document.package for document in corpus.heldout.documents)
    return {
        "packages": [
            {
                "name": package.name,
                "version": package.version,
                "licence": package.licence,
                "files": per_package[index],
                "heldout_files": held[index],
            }
            for index, package in enumerate(corpus.packages)
            if per_package[index] or held[index]
        ],
        "refused": [[p.name, p.version, p.licence] for p in corpus.refused],
        "counts": corpus.counts,
        "train_files_sha256": _list_digest(corpus.train.documents),
        "heldout_files_sha256": _list_digest(corpus.heldout.documents),
        "tokenizer_sha256": hashlib.sha256(corpus.tokenizer_json.encode()).hexdigest(),
        "heldout_files": [
            [corpus.packages[document.package].name, document.path, document.digest[:16]]
            for document in corpus.heldout.documents
        ],
    }


def _read(pool: ProcessPoolExecutor, files: Sequence[SourceFile]) -> list[Cleaned]:
    tasks = _tasks([file.location for file in files])
    return [cleaned for part in pool.map(read_files, tasks) for cleaned in part]


def _without_copies(
    files: Sequence[SourceFile], cleaned: Sequence[Cleaned], counts: Counter[str]
) -> _Kept:
    """Drop what cleaning refused, exact copies, and files most of whose lines came before."""
    counts.update(f"left out: {entry.reason}" for entry in cleaned if entry.reason)
    usable = [i for i, entry in enumerate(cleaned) if not entry.reason]
    seen: set[str] = set()
    unique = []
    for i in usable:
        if cleaned[i].digest not in seen:
            seen.add(cleaned[i].digest)
            unique.append(i)
    counts["left out: exact copy"] = len(usable) - len(unique)
    likeness = _likeness([cleaned[i].shingles for i in unique])
    kept = [i for i, share in zip(unique, likeness, strict=True) if share <= LIKENESS]
    counts["left out: near copy"] = len(unique) - len(kept)
    return _Kept(
        tuple(Document(files[i].package, files[i].path, cleaned[i].digest) for i in kept),
        tuple(cleaned[i].text for i in kept),
    )


def _likeness(shingles: Sequence[NDArray[np.uint64]]) -> NDArray[np.float64]:
    """Per file, the share of its shingles that an earlier file already has."""
    lengths = np.array([len(entry) for entry in shingles], dtype=np.int64)
    if not lengths.sum():
        return np.zeros(len(shingles))
    owners = np.repeat(np.arange(len(shingles)), lengths)
    _, first, inverse = np.unique(np.concatenate(shingles), return_index=True, return_inverse=True)
    is_old = owners[first][inverse] < owners
    n_old = np.bincount(owners, weights=is_old, minlength=len(shingles))
    share: NDArray[np.float64] = n_old / np.maximum(lengths, 1)
    return share


def _learn_tokenizer(texts: Sequence[str], settings: CorpusSettings) -> str:
    """Merges from a spread-out sample: every n-th file, so that all packages take part."""
    total = sum(map(len, texts))
    stride = max(1, -(-total // settings.sample_bytes))
    return train_tokenizer(texts[::stride], settings.vocab_size).to_str()


def _split(
    documents: Sequence[Document],
    encoded: Sequence[Tokens],
    settings: CorpusSettings,
    counts: Counter[str],
) -> tuple[Stream, Stream]:
    """Hold out whole files, then free the training half of every window they share."""
    is_held = np.array([_is_held_out(d, settings.heldout_share) for d in documents], dtype=bool)
    rest, candidates = np.flatnonzero(~is_held), np.flatnonzero(is_held)
    train, train_starts = concatenate([encoded[int(i)] for i in rest], END_ID)
    held, held_starts = concatenate([encoded[int(i)] for i in candidates], END_ID)
    shared = shared_windows(train, train_starts, held, held_starts)
    lengths = np.diff(np.append(train_starts, train.shape[0]))
    cost = np.bincount(
        shared.heldout_documents,
        weights=lengths[shared.train_documents],
        minlength=candidates.shape[0],
    )
    is_cheap = cost <= settings.most_dropped * train.shape[0]
    is_dropped = np.zeros(rest.shape[0], dtype=bool)
    is_dropped[shared.train_documents[is_cheap[shared.heldout_documents]]] = True
    counts["held-out candidates given up"] = int((~is_cheap).sum())
    counts["training files dropped for a shared window"] = int(is_dropped.sum())
    counts["training tokens dropped for a shared window"] = int(lengths[is_dropped].sum())
    return (
        _stream(documents, encoded, rest[~is_dropped]),
        _stream(documents, encoded, candidates[is_cheap]),
    )


def _stream(
    documents: Sequence[Document], encoded: Sequence[Tokens], chosen: NDArray[np.int64]
) -> Stream:
    tokens, starts = concatenate([encoded[i] for i in chosen], END_ID)
    return Stream(tokens, starts, tuple(documents[i] for i in chosen))


def _is_held_out(document: Document, share: float) -> bool:
    """By a hash of path and content, so the choice does not depend on what else is installed."""
    key = f"{document.path}\n{document.digest}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") < share * 2**64


def _list_digest(documents: Sequence[Document]) -> str:
    lines = "".join(f"{document.path} {document.digest}\n" for document in documents)
    return hashlib.sha256(lines.encode()).hexdigest()


def _tasks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[i : i + FILES_PER_TASK] for i in range(0, len(items), FILES_PER_TASK))
