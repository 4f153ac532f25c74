"""The decoder against transformers on tiny random checkpoints: logits and residual stream."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aerie.attention import pytorch, reference
from aerie.attention.contract import Reach
from aerie.attention.rows import Rows
from aerie.models.decoder import Decoder
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.attention.trees import (
    causal_batch,
    join_rows,
    packed_slots,
    random_parents,
    root_path,
    scattered_slots,
    tree_batch,
)
from tests.unit.models import tiny

TOLERANCE = 1e-4
N_SLOTS = 1400


@dataclass
class Pair:
    """A checkpoint opened by both sides; the oracle's answers are kept."""

    directory: Path
    ours: Decoder
    oracle: Any
    answers: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def expected(self, tokens: Tensor) -> Tensor:
        """transformers' logits of every position, the sequence alone: [tokens, vocab]."""
        key = tuple(tokens.tolist())
        if key not in self.answers:
            with torch.no_grad():
                self.answers[key] = self.oracle(tokens[None]).logits[0]
        return self.answers[key]


@pytest.fixture(scope="module", params=sorted(tiny.RECIPES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Pair]:
    directory = tiny.build(request.param, tmp_path_factory.mktemp("tiny"))
    ours = load_decoder(directory, pytorch.prepare, LoadOptions())
    yield Pair(directory, ours, tiny.open_oracle(directory))


def text(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, tiny.VOCAB, (length,), generator=generator)


def run(decoder: Decoder, rows: Rows, pool: Any) -> Tensor:
    return decoder.forward(rows, pool, torch.arange(rows.n_rows)).logits


def assert_same(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape
    assert got.dtype == torch.float32
    worst = (got - want).abs().max().item() if got.numel() else 0.0
    assert worst <= TOLERANCE, f"logits differ by {worst:.2e}"


def test_prefill_and_every_boundary(pair: Pair) -> None:
    tokens = text(300, seed=1)
    n_layers = pair.ours.geometry.n_layers
    boundaries = tuple(range(n_layers, -1, -1))
    last: list[Tensor] = []
    hook = pair.oracle.model.layers[-1].register_forward_hook(
        lambda module, args, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        want = pair.oracle(tokens[None], output_hidden_states=True)
    hook.remove()
    rows = causal_batch([tokens], packed_slots([300]))
    pool = pair.ours.allocate_pool(301)
    got = pair.ours.forward(rows, pool, torch.arange(300), boundaries)
    assert_same(got.logits, want.logits[0])
    states = [*want.hidden_states[:n_layers], last[0]]
    assert got.taps.shape == (300, n_layers + 1, pair.ours.geometry.hidden_size)
    for place, boundary in enumerate(boundaries):
        assert_same(got.taps[:, place], states[boundary].reshape(300, -1))


def test_tables_the_oracle_would_save_are_left_out(pair: Pair, tmp_path: Path) -> None:
    directory = shutil.copytree(pair.directory, tmp_path / "saved")
    tensors = load_file(directory / "model.safetensors")
    saved = pair.oracle.model.rotary_emb.inv_freq
    for layer_idx, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
        name = f"model.layers.{layer_idx}.self_attn.rotary_emb.inv_freq"
        tensors[name] = saved.to(dtype, copy=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    ours = load_decoder(directory, pytorch.prepare, LoadOptions())
    assert torch.equal(ours.rotary.frequencies, pair.ours.rotary.frequencies)


def test_decode_step_by_step(pair: Pair) -> None:
    tokens = text(60, seed=2)
    slots = scattered_slots([60], N_SLOTS, 3)[0]
    pool = pair.ours.allocate_pool(N_SLOTS)
    got = [run(pair.ours, causal_batch([tokens[:20]], [slots[:20]]), pool)]
    for i in range(20, 60):
        rows = causal_batch([tokens[i : i + 1]], [slots[: i + 1]])
        got.append(run(pair.ours, rows, pool))
    assert_same(torch.cat(got), pair.expected(tokens))


BATCHES = {1: [300], 3: [1, 129, 300], 8: [1, 2, 23, 24, 25, 64, 211, 300]}
SLOTS: dict[str, Callable[[list[int]], list[Tensor]]] = {
    "packed": packed_slots,
    "scattered": lambda lengths: scattered_slots(lengths, N_SLOTS, 5),
}


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("batch", BATCHES)
def test_ragged_batch_equals_each_request_alone(pair: Pair, batch: int, slots: str) -> None:
    lengths = BATCHES[batch]
    texts = [text(n, seed=10 + n) for n in lengths]
    rows = causal_batch(texts, SLOTS[slots](lengths))
    got = run(pair.ours, rows, pair.ours.allocate_pool(N_SLOTS))
    for part, tokens in zip(got.split(lengths), texts, strict=True):
        assert_same(part, pair.expected(tokens))


def test_ragged_decode_of_eight(pair: Pair) -> None:
    lengths = BATCHES[8]
    texts = [text(n + 3, seed=30 + n) for n in lengths]
    slots = packed_slots([n + 3 for n in lengths])
    pool = pair.ours.allocate_pool(N_SLOTS)
    first = [own[:n] for own, n in zip(slots, lengths, strict=True)]
    run(pair.ours, causal_batch([t[:-3] for t in texts], first), pool)
    for step in range(3):
        last = [t[n + step : n + step + 1] for t, n in zip(texts, lengths, strict=True)]
        seen = [own[: n + step + 1] for own, n in zip(slots, lengths, strict=True)]
        got = run(pair.ours, causal_batch(last, seen), pool)
        want = [pair.expected(t)[n + step] for t, n in zip(texts, lengths, strict=True)]
        assert_same(got, torch.stack(want))


def test_chunked_prefill_beside_another_request(pair: Pair) -> None:
    tokens, other = text(150, seed=40), text(30, seed=41)
    slots, other_slots = scattered_slots([150, 30], N_SLOTS, 42)
    pool = pair.ours.allocate_pool(N_SLOTS)
    got, other_got = [], []
    borders = [0, 7, 8, 71, 72, 135, 150]
    for i, (start, end) in enumerate(pairwise(borders)):
        chunk = causal_batch([tokens[start:end]], [slots[:end]])
        beside = causal_batch([other[5 * i : 5 * i + 5]], [other_slots[: 5 * i + 5]])
        logits = run(pair.ours, join_rows([chunk, beside]), pool)
        got.append(logits[: end - start])
        other_got.append(logits[end - start :])
    assert_same(torch.cat(got), pair.expected(tokens))
    assert_same(torch.cat(other_got), pair.expected(other))


def test_tree_rows_equal_their_root_paths(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(50)
    prefixes = [text(37, seed=51), text(1, seed=52)]
    parents = [random_parents(33, generator), random_parents(9, generator)]
    trees = [text(33, seed=53), text(9, seed=54)]
    slots = scattered_slots([37 + 33, 1 + 9], N_SLOTS, 55)
    pool = pair.ours.allocate_pool(N_SLOTS)
    run(pair.ours, causal_batch(prefixes, [slots[0][:37], slots[1][:1]]), pool)
    got = run(pair.ours, tree_batch(trees, parents, slots), pool)
    for b, part in enumerate(got.split([33, 9])):
        for leaf in set(range(len(parents[b]))) - set(parents[b]):
            path = root_path(parents[b], leaf)
            alone = pair.expected(torch.cat([prefixes[b], trees[b][path]]))
            assert_same(part[path], alone[len(prefixes[b]) :])


def test_committed_path_continues_like_plain_decoding(pair: Pair) -> None:
    prefix, tree = text(40, seed=60), text(12, seed=61)
    parents = [-1, 0, 0, 1, 1, 2, 3, 3, 4, 6, 6, 7]
    path = [0, 1, 3, 7, 11]
    slots = scattered_slots([40 + 12], N_SLOTS, 62)[0]
    pool = pair.ours.allocate_pool(N_SLOTS)
    run(pair.ours, causal_batch([prefix], [slots[:40]]), pool)
    run(pair.ours, tree_batch([tree], [parents], [slots]), pool)
    pool.move(slots[40:][path].long(), slots[40 : 40 + len(path)].long())
    after = text(3, seed=63)
    got = run(pair.ours, causal_batch([after], [slots[: 40 + len(path) + 3]]), pool)
    assert_same(got, pair.expected(torch.cat([prefix, tree[path], after]))[-3:])


def test_attention_reference_gives_the_same_model(pair: Pair) -> None:
    tokens = text(30, seed=70)
    exact = load_decoder(pair.directory, reference.prepare, LoadOptions())
    rows = causal_batch([tokens], packed_slots([30]))
    assert_same(run(exact, rows, exact.allocate_pool(31)), pair.expected(tokens))


def test_fused_projections_give_the_same_model(pair: Pair) -> None:
    tokens = text(30, seed=71)
    fused = load_decoder(pair.directory, pytorch.prepare, LoadOptions(is_fused=True))
    rows = causal_batch([tokens], packed_slots([30]))
    assert_same(run(fused, rows, fused.allocate_pool(31)), pair.expected(tokens))


def test_same_rows_give_the_same_bits(pair: Pair) -> None:
    rows = causal_batch([text(50, seed=80), text(3, seed=81)], packed_slots([50, 3]))
    first = run(pair.ours, rows, pair.ours.allocate_pool(60))
    assert torch.equal(first, run(pair.ours, rows, pair.ours.allocate_pool(60)))


def test_nothing_asked_nothing_returned(pair: Pair) -> None:
    rows = causal_batch([text(5, seed=90)], packed_slots([5]))
    none = torch.zeros(0, dtype=torch.int64)
    got = pair.ours.forward(rows, pair.ours.allocate_pool(8), none)
    assert got.logits.shape == (0, tiny.VOCAB)
    assert got.taps.shape == (5, 0, pair.ours.geometry.hidden_size)
    empty = pair.ours.forward(causal_batch([], []), pair.ours.allocate_pool(2), none, (0,))
    assert empty.taps.shape == (0, 1, pair.ours.geometry.hidden_size)


def _attention(decoder: Decoder, **changes: Any) -> Decoder:
    layers = [replace(la, attention=replace(la.attention, **changes)) for la in decoder.layers]
    return replace(decoder, layers=tuple(layers))


def _rule(decoder: Decoder, change: Callable[[Any], Any]) -> Decoder:
    layers = [
        replace(la, attention=replace(la.attention, rule=change(la.attention.rule)))
        for la in decoder.layers
    ]
    return replace(decoder, layers=tuple(layers))


def _wider(rule: Any) -> Any:
    window = rule.reach.window
    return rule if window is None else replace(rule, reach=Reach(window + 1))


SABOTAGE: dict[str, Callable[[Decoder], Decoder]] = {
    "rope_frequency": lambda d: replace(
        d, rotary=replace(d.rotary, frequencies=d.rotary.frequencies * 1.0001)
    ),
    "rope_attention_factor": lambda d: replace(d, rotary=replace(d.rotary, attention_factor=1.0)),
    "query_norm": lambda d: _attention(d, query_norm=None),
    "key_norm": lambda d: _attention(d, key_norm=None),
    "sinks": lambda d: _rule(d, lambda rule: replace(rule, sink_logits=None)),
    "window_by_one": lambda d: _rule(d, _wider),
    "epsilon": lambda d: replace(d, final_norm=replace(d.final_norm, eps=1e-5)),
}
# Which features each architecture has: leaving one out must show, the others must not.
TOUCHES = {
    "rope_attention_factor": ("gpt_oss",),
    "query_norm": ("qwen3",),
    "key_norm": ("qwen3",),
    "sinks": ("gpt_oss",),
    "window_by_one": ("gpt_oss", "qwen2_window"),
}


@pytest.mark.parametrize("feature", SABOTAGE)
def test_a_wrong_feature_would_be_noticed(pair: Pair, feature: str) -> None:
    tokens = text(300, seed=1)
    broken = SABOTAGE[feature](pair.ours)
    got = run(broken, causal_batch([tokens], packed_slots([300])), broken.allocate_pool(301))
    worst = (got - pair.expected(tokens)).abs().max().item()
    matters = pair.directory.name.startswith(TOUCHES.get(feature, ("",)))
    assert (worst > 10 * TOLERANCE) == matters
