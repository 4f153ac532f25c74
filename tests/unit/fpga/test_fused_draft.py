"""A fused draft gives the tree and the cache of the kernels one by one, and of an oracle's head."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aerie.fpga.counted import OWN, ByteCounter
from aerie.fpga.draft_round import (
    Drafted,
    DraftRound,
    FusedChoice,
    draft_fused,
    draft_unfused,
    load_attention,
)
from aerie.fpga.draft_weights import DraftWeights, Sketch, made_up_weights, sketch_head
from aerie.fpga.quantise import Quantised, pack, quantise, tiled, unpack
from aerie.fpga.tree_round import Serving
from aerie.kernels.hls.meters import CountedKernel, counted_kernel
from aerie.perf.ledger import ledger
from aerie.perf.point import Sizes

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ (apt-get install g++)")

TINY = Sizes("tiny", 128, 4, 2, 64, 256, 300, 300)


def make_draft(batch: int, seed: int, weights: DraftWeights, top_k: int = 4) -> DraftRound:
    rng = np.random.default_rng(seed)
    shape = weights.shape
    seq_len = rng.integers(6, 30, batch)
    new = rng.integers(1, 5, batch)
    indptr = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    longest = 60
    table = (1 + rng.permutation(batch * longest)).reshape(batch, longest).astype(np.int32)
    positions = np.concatenate(
        [np.arange(n - k, n) for n, k in zip(seq_len, new, strict=True)]
    ).astype(np.int64)
    n_slots = batch * longest + 1
    serving = Serving(
        root_tokens=rng.integers(0, shape.vocab, batch),
        seq_len=seq_len,
        length_limit=seq_len + 9,
        stop_tokens=np.full((batch, 1), -1, np.int64),
        req_to_token=table,
        req_pool_indices=np.arange(batch),
    )
    cache = rng.standard_normal((2, n_slots, shape.kv_width)).astype(np.float16)
    return DraftRound(
        features=rng.standard_normal((int(new.sum()), shape.features)).astype(np.float16),
        new_tokens=rng.integers(0, shape.vocab, int(new.sum())),
        new_positions=positions,
        row_indptr=indptr,
        serving=serving,
        keys=cache[0],
        values=cache[1],
        top_k=top_k,
        verify_num=14,
        widths=(1, 3, top_k),
    )


def sharpened(weights: DraftWeights) -> DraftWeights:
    """Made-up heads are flat; larger rows make probabilities that differ."""
    whole = (weights.head.whole.astype(np.float32) * 6).astype(np.float16)
    return replace(weights, head=replace(weights.head, whole=whole))


@pytest.fixture(scope="module")
def weights() -> DraftWeights:
    return sharpened(made_up_weights(TINY, rank=64, n_positions=64))


def assert_same(found: Drafted, wanted: Drafted) -> None:
    for name in ("qo_indptr", "draft_tokens", "positions", "ancestor_bits"):
        np.testing.assert_array_equal(found.grown.layout[name], wanted.grown.layout[name], name)
    for name in ("kv_indptr", "kv_indices", "mask_indptr", "packed_mask"):
        np.testing.assert_array_equal(found.grown.mask[name], wanted.grown.mask[name], name)
    # The streamed softmax rescales its sum as it goes: a few ulps of the gains.
    np.testing.assert_allclose(found.grown.gains, wanted.grown.gains, rtol=1e-6)
    np.testing.assert_array_equal(found.keys.view(np.uint16), wanted.keys.view(np.uint16))
    np.testing.assert_array_equal(found.values.view(np.uint16), wanted.values.view(np.uint16))


@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("is_resident", [False, True])
def test_same_as_kernel_by_kernel(
    weights: DraftWeights, batch: int, window: int, is_resident: bool
) -> None:
    own = replace(weights, shape=replace(weights.shape, window=window))
    counter = ByteCounter()
    load_attention(own, counter.call)
    for seed in range(3):
        one = make_draft(batch, seed, own)
        wanted = draft_unfused(one, own, counter.call)
        choice = FusedChoice(is_resident=is_resident)
        assert_same(draft_fused(one, own, choice, counter.call), wanted)


CHOICES = (
    FusedChoice(),
    FusedChoice(is_resident=False, is_fc_q4=True),
    FusedChoice(head="q4"),
    FusedChoice(head="sketch", n_candidates=16, is_fc_q4=True),
)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.head)
def test_ledger_equals_the_counters(weights: DraftWeights, choice: FusedChoice) -> None:
    checked = []

    def call(name: str, **inputs: Any) -> Mapping[str, Any]:
        given = {key: value for key, value in inputs.items() if value is not None}
        top = CountedKernel(OWN[name]) if name in OWN else counted_kernel(name)
        counted = top(**given)
        assert ledger(top.card, given, counted.results) == counted.ports, name
        checked.append(name)
        return counted.results

    own = replace(weights, shape=replace(weights.shape, window=9))
    load_attention(own, call)
    for batch in (1, 3):
        one = make_draft(batch, 5, own)
        draft_fused(one, own, choice, call)
    draft_unfused(one, own, call)
    assert len(set(checked)) == 18


def test_a_draft_ends_where_nothing_is_gained(weights: DraftWeights) -> None:
    """The region itself decides how many slots to feed: none, if the floor is above every gain."""
    one = make_draft(2, 3, weights)
    counter = ByteCounter()
    load_attention(weights, counter.call)
    gains = draft_fused(one, weights, FusedChoice(), counter.call).grown.gains
    # Steps of the first level: feed exactly two slots of it, then stop.
    steps = np.diff(gains[0])
    floors = np.array([(steps[1] + steps[2]) / 2, np.inf, np.inf], np.float32)
    shorter = draft_fused(one, weights, FusedChoice(), counter.call, floors).grown
    assert shorter.layout["used_widths"].tolist() == [1, 2, 0]
    assert not shorter.gains[2].any()


def test_the_sketch_proposes_what_the_whole_head_would() -> None:
    """With every token a candidate, two stages are the whole head."""
    weights = sharpened(made_up_weights(TINY, rank=64, n_positions=64))
    outer = weights.head.sketch.outer
    cut = replace(outer, nibbles=outer.nibbles[:200], scales=outer.scales[:200])
    sketch = replace(weights.head.sketch, outer=cut)
    few = replace(
        weights,
        shape=replace(weights.shape, vocab=200),
        head=replace(weights.head, whole=weights.head.whole[:200], sketch=sketch),
    )
    counter = ByteCounter()
    load_attention(few, counter.call)
    one = make_draft(2, 4, few)
    whole = draft_fused(one, few, FusedChoice(), counter.call)
    again = draft_fused(one, few, FusedChoice(head="sketch", n_candidates=200), counter.call)
    assert again.grown.layout["rescored"].tolist() == [200, 200, 200]
    assert_same(again, whole)


def untiled(weight: Quantised) -> Quantised:
    """Back to one row an output."""
    n_tiles, n_out, half = weight.nibbles.shape
    nibbles = weight.nibbles.swapaxes(0, 1).reshape(n_out, n_tiles * half)
    return Quantised(
        np.ascontiguousarray(nibbles),
        np.ascontiguousarray(weight.scales.swapaxes(0, 1)),
        weight.group,
    )


def test_four_bits_round_trip() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(-8, 8, (6, 256)).astype(np.int8)
    np.testing.assert_array_equal(unpack(pack(numbers)), numbers)
    weight = quantise(rng.standard_normal((6, 256)).astype(np.float32), 128)
    back = untiled(tiled(weight))
    np.testing.assert_array_equal(back.nibbles, weight.nibbles)
    np.testing.assert_array_equal(back.scales, weight.scales)
    assert weight.n_bytes == 6 * 256 // 2 + 6 * 2 * 2


def test_a_sketch_follows_the_states_it_is_shaped_for() -> None:
    rng = np.random.default_rng(1)
    head = rng.standard_normal((400, 64)).astype(np.float32)
    mix = rng.standard_normal((64, 64)) * np.geomspace(1, 0.01, 64)
    states = (rng.standard_normal((500, 64)) @ mix.T).astype(np.float32)
    wanted = states @ head.T
    shaped = sketch_head(head, states.T @ states / 500, 32)
    blind = sketch_head(head, np.eye(64), 32)

    def error(sketch: Sketch) -> float:
        made = states @ sketch.inner.values().T @ sketch.outer.values().T
        return float(np.square(made - wanted).mean())

    assert error(shaped) < 0.5 * error(blind)
