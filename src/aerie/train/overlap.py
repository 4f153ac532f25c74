"""Windows of tokens as 64-bit hashes: which training files share one with a held-out file."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 50

_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)  # odd
_FILTER_BITS = 27  # a 128 MB filter answers "no" for nearly all of 10^8 windows in one lookup
_CHUNK = 1 << 21  # tokens per task; its arrays stay near the caches

Tokens = NDArray[np.uint16]
Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]


def window_hashes(tokens: Tokens, width: int = WINDOW) -> Hashes:
    """Polynomial hash mod 2^64 of every window of `width` tokens: [tokens - width + 1].

    Built by doubling, as a binary power: windows of 2n come from two windows of n.
    """
    n = tokens.shape[0] - width + 1
    if n < 1:
        return np.zeros(0, dtype=np.uint64)
    values = _token_values()[tokens]
    result: Hashes = np.zeros(tokens.shape[0] + 1, dtype=np.uint64)
    done = 0  # width that `result` covers
    power, span = values, 1
    remaining = width
    while remaining:
        if remaining & 1:
            # Append a window of `span` behind the one of `done`.
            factor = _power(span)
            count = power.shape[0] - done
            result = result[:count] * factor + power[done : done + count]
            done += span
        remaining >>= 1
        if remaining:
            power = power[:-span] * _power(span) + power[span:]
            span *= 2
    return result[:n]


@dataclass(frozen=True, eq=False)
class SharedWindows:
    """Windows of held-out documents that also stand in training documents.

    One entry per pair of (training document, held-out document), without repeats.
    """

    train_documents: Indices
    heldout_documents: Indices


def shared_windows(
    train: Tokens, train_starts: Indices, heldout: Tokens, heldout_starts: Indices
) -> SharedWindows:
    """Compare every window of the two streams at stride 1.

    Streams hold documents one after another, each beginning at its entry of `starts` with a
    separator that occurs nowhere else, so that windows across documents never match wrongly:
    held-out windows that hold a separator are left out.
    """
    hashes = window_hashes(heldout)
    owners = np.searchsorted(heldout_starts, np.arange(hashes.shape[0]), side="right") - 1
    inside = np.arange(hashes.shape[0]) > heldout_starts[owners]
    ends = np.append(heldout_starts[1:], heldout.shape[0])
    inside &= np.arange(hashes.shape[0]) + WINDOW <= ends[owners]
    hashes, owners = hashes[inside], owners[inside]
    order = np.argsort(hashes, kind="stable")
    hashes, owners = hashes[order], owners[order]
    positions, found = _find(train, hashes)
    documents = np.searchsorted(train_starts, positions, side="right") - 1
    return _pairs(documents, found, hashes, owners)


def _find(train: Tokens, wanted: Hashes) -> tuple[Indices, Hashes]:
    """Positions of training windows whose hash is wanted, and those hashes."""
    table = np.zeros(1 << _FILTER_BITS, dtype=np.bool_)
    mask = np.uint64((1 << _FILTER_BITS) - 1)
    table[(wanted & mask).astype(np.int64)] = True

    def search(start: int) -> tuple[Indices, Hashes]:
        hashes = window_hashes(train[start : start + _CHUNK + WINDOW - 1])
        candidates = np.flatnonzero(table[(hashes & mask).astype(np.int64)])
        picked = hashes[candidates]
        place = np.searchsorted(wanted, picked)
        place[place == wanted.shape[0]] = 0
        is_hit = wanted[place] == picked if wanted.shape[0] else np.zeros(0, dtype=np.bool_)
        return candidates[is_hit].astype(np.int64) + start, picked[is_hit]

    # NumPy releases the interpreter lock inside these loops, so threads share the filter for free.
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(search, range(0, max(train.shape[0], 1), _CHUNK)))
    return np.concatenate([p for p, _ in parts]), np.concatenate([h for _, h in parts])


def _pairs(documents: Indices, found: Hashes, hashes: Hashes, owners: Indices) -> SharedWindows:
    """Every (training, held-out) pair of documents behind the hits."""
    if not documents.size:
        return SharedWindows(documents, documents)
    # A document usually shares a run of windows: look at each (document, hash) once.
    key = np.unique(np.stack([documents.astype(np.uint64), found]), axis=1)
    documents, found = key[0].astype(np.int64), key[1]
    low = np.searchsorted(hashes, found, side="left")
    high = np.searchsorted(hashes, found, side="right")
    repeats = high - low
    first = np.repeat(low - np.concatenate([[0], np.cumsum(repeats)[:-1]]), repeats)
    partner = owners[first + np.arange(int(repeats.sum()))] if repeats.size else owners[:0]
    pairs = np.unique(np.stack([np.repeat(documents, repeats), partner]), axis=1)
    return SharedWindows(pairs[0], pairs[1])


def concatenate(documents: Sequence[Tokens], separator: int) -> tuple[Tokens, Indices]:
    """One stream, each document after a separator, and where each begins (at its separator)."""
    lengths = np.array([document.shape[0] + 1 for document in documents], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    stream = np.full(int(starts[-1]), separator, dtype=np.uint16)
    for start, document in zip(starts, documents, strict=False):
        stream[start + 1 : start + 1 + document.shape[0]] = document
    return stream, starts[:-1]


def _token_values() -> Hashes:
    """A random 64-bit value for each of 65,536 tokens: small ids would make weak hashes."""
    generator = np.random.default_rng(50)
    return generator.integers(0, 1 << 64, size=1 << 16, dtype=np.uint64)


def _power(exponent: int) -> np.uint64:
    return np.uint64(pow(int(_MULTIPLIER), exponent, 1 << 64))
