"""Random runs of a target in two processes: the tokens of the whole one, and of plain decoding.

Also runs by itself and keeps its log:
python -m tests.unit.parallel.split_runs reports/raw/tensor_parallel.log
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from aerie.assemble.core import load_draft, load_target
from aerie.config import ModelConfig
from aerie.models.hub import find_pair
from aerie.requests.request import Scored
from tests.unit.engine.cores import LIMITS, Pair, load_pair, write_pair
from tests.unit.engine.random_runs import PARTIALS, TURNS, Tally, draw, expect, keep_log, play

RANKS = 2
# Every proposer, launcher and backend once with each pair.
# Every turn twice, once with each pair; a split target refuses previews by name.
SEEDS = tuple(n for n in range(2 * len(TURNS)) if TURNS[n % len(TURNS)][0] not in PARTIALS)
# Sums of two ranks round otherwise than those of one.
CLOSE = 1e-4


@dataclass(frozen=True)
class Both:
    """A pair whose target is whole, and the same split."""

    name: str
    whole: Pair
    split: Pair


def load_both(directory: Path) -> Both:
    """Of the tiny pair: two KV heads, one for each rank, and a vocabulary of 61."""
    return Both("tiny", load_pair(directory, "exact"), load_pair(directory, "exact", RANKS))


def load_built_in() -> Both:
    """Of the built-in pair, whose one KV head both ranks hold."""
    target_dir, draft_dir = find_pair(None, None)
    assert draft_dir is not None
    found = []
    for ranks in (1, RANKS):
        config = ModelConfig(device="cpu", numerics="exact", tensor_parallel=ranks)
        target = load_target(target_dir, config)
        limits = replace(LIMITS, vocabulary=target.geometry.vocab_size)
        found.append(Pair(target, load_draft(draft_dir, target, config), limits))
    return Both("built-in", *found)


def play_both(both: Both, seed: int, tally: Tally) -> None:
    """A run of the split target, bit for bit its own plain decoding, whose tokens are the whole's.

    Log-probabilities are close to the whole's, and not equal: sums are taken in another order.
    """
    run = draw(seed, both.split.limits.vocabulary)
    ours = play(both.split, run, tally)
    tally.counts[f"runs of the {both.name} pair"] += 1
    for own, wanted in zip(ours, expect(both.whole, run.jobs), strict=True):
        assert own.output == wanted.output, "the tokens differ from the whole target's"
        tally.counts["tokens compared with the whole target's"] += len(own.output)
        _compare(own.scored, wanted.scored)
        _compare(own.prompt_scored, wanted.prompt_scored)


def _compare(own: Sequence[Scored], wanted: Sequence[Scored]) -> None:
    far = [
        (a.logprob, b.logprob)
        for a, b in zip(own, wanted, strict=True)
        if abs(a.logprob - b.logprob) > CLOSE
    ]
    assert not far, f"log-probabilities differ by more than {CLOSE}: {far[:3]}"


def main() -> None:
    """Run so many seeds (64 unless told), the tiny pair's first, and keep the log."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pairs = load_both(write_pair(Path(folder))), load_built_in()

        def play_one(number: int, tally: Tally) -> None:
            play_both(pairs[SEEDS[number] // len(TURNS)], SEEDS[number], tally)

        keep_log(len(SEEDS), play_one)


if __name__ == "__main__":
    main()
