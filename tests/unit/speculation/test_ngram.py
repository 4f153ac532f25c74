"""Copied paths at long context: both places a text may be copied from, and what they are worth."""

from __future__ import annotations

import pytest
import torch

from aerie.assemble.core import build_kernels
from aerie.speculation.ngram import FIRST_CONFIDENCE, LOOKUPS, CopiedPaths, n_copied
from aerie.speculation.store import NodeStore

DEPTH, N_TEXT = 4, 9000
SUFFIX, FAR, NEAR = [7, 8, 9, 5, 6], [11, 12, 13, 14], [21, 22, 23, 24]


def written() -> torch.Tensor:
    """The whole suffix early in a long prompt, its last two tokens again near the end."""
    text = torch.arange(1000, 1000 + N_TEXT, dtype=torch.int32)
    begin = [*SUFFIX, *FAR]
    near = [*SUFFIX[-2:], *NEAR]
    text[100 : 100 + len(begin)] = torch.tensor(begin)
    text[8000 : 8000 + len(near)] = torch.tensor(near)
    text[-len(SUFFIX) :] = torch.tensor(SUFFIX)
    return text[None]


def path_from(store: NodeStore, child: int) -> list[int]:
    """Tokens of a chain of nodes, each the next one's parent."""
    arrays = {name: array[0].tolist() for name, array in store.arrays.items()}
    tokens = [arrays["cumu_tokens"][child]]
    while child + 1 < len(arrays["prev_indexs"]) and arrays["prev_indexs"][child + 1] == child:
        child += 1
        tokens.append(arrays["cumu_tokens"][child])
    return tokens


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_the_longest_match_of_the_prompt_and_the_newest_place(backend: str) -> None:
    kernels = build_kernels(backend, "cpu")
    text = written()
    copied = CopiedPaths.over(text, 1, longest=8, depth=DEPTH)
    store = NodeStore.empty(1, 1 + n_copied(DEPTH), 16, "cpu")
    n_nodes = copied.merge(kernels, store, 1, torch.tensor([0]), torch.tensor([text.shape[1] - 1]))
    assert n_nodes == 1 + len(LOOKUPS) * DEPTH
    assert copied.match[:, 0].tolist() == [len(SUFFIX), 2]
    assert [path_from(store, first) for first in (1, 1 + DEPTH)] == [FAR, NEAR]
    scores = store.arrays["cumu_scores"][0, 1:]
    worth = [FIRST_CONFIDENCE**n for n in range(1, DEPTH + 1)]
    assert scores.tolist() == pytest.approx(worth * 2)


def test_each_lookup_learns_what_its_own_paths_are_worth() -> None:
    kernels = build_kernels("numpy", "cpu")
    text = written()
    copied = CopiedPaths.over(text, 1, longest=8, depth=DEPTH)
    store = NodeStore.empty(1, 1 + n_copied(DEPTH), 16, "cpu")
    for _ in range(40):
        copied.merge(kernels, store, 1, torch.tensor([0]), torch.tensor([text.shape[1] - 1]))
        copied.learn(torch.tensor([[*FAR, 99]]), torch.tensor([DEPTH + 1]))
    worth = copied.seen[..., 0] / copied.seen[..., 1]
    assert worth[0, len(SUFFIX)] > 0.9 and worth[1, 2] < 0.2
    assert worth[0, 1] == pytest.approx(FIRST_CONFIDENCE)  # never met
