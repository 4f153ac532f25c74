"""Shared windows: the rolling hash against every window compared as it is."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.train.overlap import WINDOW, concatenate, shared_windows, window_hashes


@pytest.mark.parametrize("width", [1, 2, 3, 7, 50])
def test_equal_windows_have_equal_hashes_and_others_do_not(width: int) -> None:
    random = np.random.default_rng(width)
    tokens = random.integers(0, 3, size=400).astype(np.uint16)  # few ids: many equal windows
    hashes = window_hashes(tokens, width)
    windows = [tuple(tokens[i : i + width]) for i in range(tokens.shape[0] - width + 1)]
    assert hashes.shape[0] == len(windows)
    assert len(set(hashes.tolist())) == len(set(windows))
    first = {window: hashes[i] for i, window in reversed(list(enumerate(windows)))}
    assert all(first[window] == hashes[i] for i, window in enumerate(windows))


def test_short_text_has_no_window() -> None:
    assert window_hashes(np.zeros(49, dtype=np.uint16)).shape == (0,)
    assert window_hashes(np.zeros(50, dtype=np.uint16)).shape == (1,)


def documents(seed: int, lengths: list[int]) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(1, 4096, size=n).astype(np.uint16) for n in lengths]


def test_finds_exactly_the_planted_window() -> None:
    train, held = documents(1, [300, 40, 500, 50]), documents(2, [200, 30, 120])
    train[2][100 : 100 + WINDOW] = held[2][7 : 7 + WINDOW]
    train[0][10 : 10 + WINDOW - 1] = held[0][20 : 20 + WINDOW - 1]  # one token short
    found = shared_windows(*concatenate(train, 0), *concatenate(held, 0))
    assert found.train_documents.tolist() == [2]
    assert found.heldout_documents.tolist() == [2]


def test_one_window_in_many_documents() -> None:
    train, held = documents(3, [100, 100, 100]), documents(4, [100, 100])
    common = documents(5, [WINDOW])[0]
    for text in (train[0], train[2], held[0], held[1]):
        text[20 : 20 + WINDOW] = common
    found = shared_windows(*concatenate(train, 0), *concatenate(held, 0))
    pairs = set(zip(found.train_documents.tolist(), found.heldout_documents.tolist(), strict=True))
    assert pairs == {(0, 0), (0, 1), (2, 0), (2, 1)}


def test_windows_across_documents_do_not_count() -> None:
    pieces = documents(6, [30, 30])
    found = shared_windows(*concatenate(pieces, 0), *concatenate(pieces, 0))
    assert found.train_documents.size == 0
