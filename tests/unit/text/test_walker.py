"""Masks of a walker are those of a text followed from its beginning, whatever came before."""

from __future__ import annotations

import random

import numpy as np

from aerie.text.walker import ALL, Walker, climb, tree_paths
from tests.unit.engine.automata import END, Automaton
from tests.unit.engine.cores import LIMITS

WORDS = -(-LIMITS.vocabulary // 32)


def allowed(row: np.ndarray) -> set[int]:  # type: ignore[type-arg]
    return set(np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist())


def test_masks_after_paths_and_after_what_was_decided_since() -> None:
    rng = random.Random(5)
    for seed in range(20):
        grammar, text, floor = Automaton(f"walk{seed}"), list[int](), rng.choice((0, 6))
        walker = Walker(grammar, (), floor, (END,))  # type: ignore[arg-type]
        for _ in range(8):
            paths = [()] + [random_path(rng, grammar, text) for _ in range(5)]
            out = np.zeros((len(paths) + 2, WORDS), dtype=np.int32)
            walker.fill(paths, out)
            for path, row in zip(paths, out, strict=False):
                assert allowed(row) == expected(grammar, text, path, floor)
            assert (out[len(paths) :] == ALL).all(), "rows without a path allow everything"
            news = random_path(rng, grammar, text)[:2]
            if not is_allowed(grammar, text, news):
                continue
            walker.advance(news)
            text += news
        assert walker.error is None


def random_path(rng: random.Random, grammar: Automaton, text: list[int]) -> tuple[int, ...]:
    """Mostly one that the grammar allows."""
    path: tuple[int, ...] = ()
    for _ in range(rng.randrange(5)):
        own = sorted(grammar.after([*text, *path]))
        path = (*path, rng.choice(own) if rng.random() < 0.8 else rng.randrange(LIMITS.vocabulary))
    return path


def is_allowed(grammar: Automaton, text: list[int], path: tuple[int, ...]) -> bool:
    return all(path[i] in grammar.after([*text, *path[:i]]) for i in range(len(path)))


def expected(grammar: Automaton, text: list[int], path: tuple[int, ...], floor: int) -> set[int]:
    if not is_allowed(grammar, text, path):
        return set(range(32 * WORDS))
    found = set(grammar.after([*text, *path]))
    is_early = len(text) + len(path) < floor
    return found - {END} if is_early and found != {END} else found


def test_paths_of_trees() -> None:
    tokens, parents = [9, 1, 2, 1, 3], [-1, 0, 0, 2, 3]
    paths = tree_paths(tokens, parents)
    assert paths == [(), (1,), (2,), (2, 1), (2, 1, 3)]
    arrays = np.array(tokens), np.array(parents)
    assert [climb(node, *arrays) for node in range(5)] == paths
