"""A round runs from the queue's bytes alone, and a queue is patched nowhere else than it says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="no Amaranth (pip install 'aerie[fpga]')")

from aerie.errors import UsageError
from aerie.fpga.command_queue import (
    COMMAND,
    COMMIT,
    LADDER,
    MASK,
    ROUND,
    START,
    micro_batches,
    queue_of,
)
from aerie.fpga.queue_study import envelope_of, run_round
from tests.unit.fpga.pysim import run_card
from tests.unit.fpga.rounds import Recipe, make_round


def test_few_passes_hold_every_batch() -> None:
    for n in range(1, 300):
        passes = micro_batches(n)
        assert sum(used for _, used in passes) == n
        assert len(passes) == -(-n // max(LADDER))
        assert all(used <= size < 2 * used for size, used in passes)


def test_a_round_changes_the_patched_words_and_no_other() -> None:
    round_ = make_round(Recipe(), 0)
    queue = queue_of(envelope_of(round_, 4, 40))
    one, two = (
        np.frombuffer(queue.patched(B=b, R=r), COMMAND) for b, r in ((1, 9), (4, 36))
    )  # fmt: skip
    changed = {int(place) for place in np.flatnonzero(one != two)}
    assert changed == {place for places in queue.patches.values() for place in places}
    assert (one["op"] == START).sum() == len(ROUND)
    spans = sorted((span.address, span.n_bytes) for span in queue.spans.values())
    for (start, n_bytes), (after, _) in pairwise(spans):
        assert start + n_bytes <= after, "two arrays overlap"
    with pytest.raises(UsageError, match="envelope of 4"):
        queue.patched(B=5, R=9)


def test_masks_and_verdict_of_a_round_run_from_the_queue() -> None:
    round_ = make_round(Recipe(batch=2, stops=1), 3)
    queue = queue_of(envelope_of(round_, 4, 40), (MASK, COMMIT))
    run = [
        lambda memory, values, step=step: run_card(step.engine(), memory, values)
        for step in queue.steps
    ]
    assert run_round(round_, queue, run) == []
    first = queue.patches["B"][0]
    broken = queue.commands.copy()
    broken["value"][first + 3] -= 1  # the length of a row of slots, for K4
    spoiled = replace(queue, commands=broken)
    assert any(name.startswith("mask.") for name in run_round(round_, spoiled, run))
