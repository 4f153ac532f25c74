"""The draft head against the straight-line oracle: every stage, every dialect, every batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from aerie.attention import pytorch, reference
from aerie.attention.contract import Reach
from aerie.attention.rows import Bounds, Rows, tree_rows
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.norm import RMSNorm
from tests.oracles import eagle3_straight_line as oracle
from tests.unit.attention.trees import (
    causal_batch,
    pack_ancestors,
    packed_slots,
    random_parents,
    root_path,
    scattered_slots,
)
from tests.unit.models import pairs

TOLERANCE = 1e-4
N_SLOTS = 400


@dataclass
class Setup:
    """One head on one target, and the oracle's weights for it."""

    directory: Path
    target: Decoder
    head: Eagle3Head
    case: pairs.Case
    weights: pairs.Tensors

    def features(self, tokens: Tensor) -> Tensor:
        """The target's captured states of a text: [tokens, captures, hidden]."""
        n = tokens.shape[0]
        pool = self.target.allocate_pool(n + 1)
        rows = causal_batch([tokens], packed_slots([n]))
        return self.target.forward(rows, pool, torch.zeros(0).long(), self.head.taps).taps

    def expected(self, tokens: Tensor, drafted: Tensor) -> list[dict[str, Tensor]]:
        """Oracle stages of the pairs of a text, then of drafted tokens."""
        taps = self.features(tokens)[:-1]
        if not self.head.summary.convention.uses_captures:
            final: RMSNorm = self.target.final_norm
            taps = final(taps)
        return oracle.draft(list(taps.unbind(1)), tokens[1:], drafted, self.weights, self.case.plan)


@pytest.fixture(scope="module")
def target_directory(tmp_path_factory: Any) -> Path:
    return pairs.write_target(tmp_path_factory.mktemp("pair") / "target")


@pytest.fixture(scope="module")
def target(target_directory: Path) -> Decoder:
    return load_decoder(target_directory, pytorch.prepare, LoadOptions())


def set_up(name: str, target: Decoder, target_directory: Path, tmp: Path) -> Setup:
    case = pairs.CASES[name]
    directory = pairs.write_head(tmp / name, case)
    head = load_head(directory, target, pytorch.prepare, HeadOptions())
    weights = pairs.oracle_weights(case, load_file(target_directory / "model.safetensors"))
    return Setup(directory, target, head, case, weights)


@pytest.fixture(scope="module", params=sorted(pairs.CASES))
def setup(
    request: pytest.FixtureRequest, target: Decoder, target_directory: Path, tmp_path_factory: Any
) -> Iterator[Setup]:
    yield set_up(request.param, target, target_directory, tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def plain(target: Decoder, target_directory: Path, tmp_path_factory: Any) -> Setup:
    return set_up("official", target, target_directory, tmp_path_factory.mktemp("plain"))


def text(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, pairs.VOCAB, (length,), generator=generator)


def assert_same(got: Tensor, want: Tensor, what: str = "") -> None:
    assert got.shape == want.shape, what
    worst = (got.double() - want).abs().max().item() if got.numel() else 0.0
    assert worst <= TOLERANCE, f"{what} differs by {worst:.2e}"


def extend_rows(texts: list[Tensor], slots: list[Tensor]) -> Rows:
    """The pairs of whole texts: the token after each position, at that position."""
    return causal_batch([tokens[1:] for tokens in texts], slots)


def test_every_stage_of_extend_and_of_three_steps(setup: Setup) -> None:
    tokens, drafted = text(24, seed=1), text(3, seed=2)
    want = setup.expected(tokens, drafted)
    slots = scattered_slots([26], N_SLOTS, 3)[0]
    pool = setup.head.allocate_pool(N_SLOTS)
    seen: dict[str, Tensor] = {}
    taps = setup.features(tokens)[:-1]
    rows = extend_rows([tokens], [slots[:23]])
    out = setup.head.extend(rows, taps, pool, observe=seen.__setitem__)
    assert out.logits.dtype == torch.float32
    assert set(seen) == set(want[0]) - {"next_hidden"}
    for name, stage in seen.items():
        assert_same(stage, want[0][name], name)
    assert_same(out.hidden, want[0]["next_hidden"], "next_hidden")
    for k in range(3):
        rows = causal_batch([drafted[k : k + 1]], [slots[: 24 + k]])
        seen.clear()
        out = setup.head.step(rows, out.hidden[-1:], pool, observe=seen.__setitem__)
        for name, stage in seen.items():
            assert_same(stage, want[1 + k][name], f"step {k} {name}")
        assert_same(out.hidden, want[1 + k]["next_hidden"], f"step {k} next_hidden")


def test_what_was_resolved(setup: Setup) -> None:
    assert setup.head.taps == setup.case.boundaries
    resolved = {entry.name: entry for entry in setup.head.summary.resolved}
    for name, origin in setup.case.origins.items():
        assert resolved[name].origin == origin, resolved[name]
    assert all(entry.reason for entry in resolved.values())
    ids = setup.head.to_target(torch.arange(setup.head.summary.geometry.draft_vocab_size))
    assert torch.equal(ids, pairs.draft_ids() if setup.case.has_map else torch.arange(pairs.VOCAB))


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_ragged_batch_equals_each_request_alone(plain: Setup, batch: int) -> None:
    lengths = [2, 17, 40, 3, 5, 64, 9, 33][-batch:]
    texts = [text(n, seed=10 + n) for n in lengths]
    slots = scattered_slots([n - 1 for n in lengths], N_SLOTS, 4)
    taps = torch.cat([plain.features(tokens)[:-1] for tokens in texts])
    asked = torch.tensor([n - 1 for n in lengths]).cumsum(0) - 1
    pool = plain.head.allocate_pool(N_SLOTS)
    out = plain.head.extend(extend_rows(texts, slots), taps, pool, asked)
    for i, tokens in enumerate(texts):
        alone = plain.expected(tokens, tokens[:0])[0]
        assert_same(out.logits[i], alone["logits"][-1])
        assert_same(out.hidden[i], alone["next_hidden"][-1])


def test_chunked_extend_equals_one_extend(plain: Setup) -> None:
    tokens = text(31, seed=20)
    taps, slots = plain.features(tokens)[:-1], packed_slots([30])[0]
    pool = plain.head.allocate_pool(N_SLOTS)
    got = []
    for start, end in ((0, 1), (1, 12), (12, 30)):
        rows = causal_batch([tokens[start + 1 : end + 1]], [slots[:end]])
        got.append(plain.head.extend(rows, taps[start:end], pool).logits)
    assert_same(torch.cat(got), plain.expected(tokens, tokens[:0])[0]["logits"])


def grow(
    setup: Setup, texts: list[Tensor], trees: list[Tensor], parents: list[list[int]]
) -> list[dict[int, Tensor]]:
    """Draft trees level by level; logits of each node, by request and node."""
    n_nodes = [len(tree) for tree in trees]
    lengths = [len(t) - 1 + n for t, n in zip(texts, n_nodes, strict=True)]
    slots = scattered_slots(lengths, N_SLOTS, 5)
    pool = setup.head.allocate_pool(N_SLOTS)
    prefixes = [own[: len(t) - 1] for own, t in zip(slots, texts, strict=True)]
    taps = torch.cat([setup.features(tokens)[:-1] for tokens in texts])
    out = setup.head.extend(extend_rows(texts, prefixes), taps, pool)
    ends = torch.tensor([len(t) - 1 for t in texts]).cumsum(0) - 1
    hidden = [{-1: out.hidden[int(end)]} for end in ends]
    logits: list[dict[int, Tensor]] = [{} for _ in texts]
    depth = max(len(root_path(tree, row)) for tree in parents for row in range(len(tree)))
    for level in range(1, depth + 1):
        picked = [
            [row for row in range(len(tree)) if len(root_path(tree, row)) == level]
            for tree in parents
        ]
        rows = level_rows(texts, trees, parents, slots, picked)
        flat = [(b, row) for b, chosen in enumerate(picked) for row in chosen]
        states = torch.stack([hidden[b][parents[b][row]] for b, row in flat])
        out = setup.head.step(rows, states, pool)
        for i, (b, row) in enumerate(flat):
            hidden[b][row], logits[b][row] = out.hidden[i], out.logits[i]
    return logits


def level_rows(
    texts: list[Tensor],
    trees: list[Tensor],
    parents: list[list[int]],
    slots: list[Tensor],
    picked: list[list[int]],
) -> Rows:
    """Rows of one level of each tree; columns are the prefix and the whole tree."""
    whole = tree_rows(
        torch.cat(trees),
        torch.cat(
            [
                torch.tensor([len(t) - 2 + len(root_path(tree, r)) for r in range(len(tree))])
                for t, tree in zip(texts, parents, strict=True)
            ]
        ),
        torch.cat([pack_ancestors(tree) for tree in parents]),
        torch.tensor([0, *(len(t) for t in trees)]).cumsum(0).int(),
        torch.tensor([0, *(len(s) for s in slots)]).cumsum(0).int(),
        torch.cat(slots),
        Bounds(max(map(len, trees)), max(map(len, slots)), max(map(len, trees))),
    )
    starts = [0, *torch.tensor([len(t) for t in trees]).cumsum(0).tolist()]
    keep = torch.tensor([starts[b] + row for b, rows in enumerate(picked) for row in rows])
    return replace(
        whole,
        tokens=whole.tokens[keep],
        positions=whole.positions[keep],
        kv_slots=whole.kv_slots[keep],
        visible_prefix=whole.visible_prefix[keep],
        ancestor_bits=whole.ancestor_bits[keep],
        qo_indptr=torch.tensor([0, *(len(rows) for rows in picked)]).cumsum(0).int(),
    )


def test_tree_rows_equal_their_separate_paths(plain: Setup) -> None:
    generator = torch.Generator().manual_seed(30)
    texts = [text(14, seed=31), text(2, seed=32), text(9, seed=33)]
    # A forest under the last pair: several first-level nodes share the parent -1.
    parents = [[-1, -1, 0, 0, 1, 2, 4, 4], random_parents(5, generator), [-1]]
    trees = [text(len(tree), seed=34 + i) for i, tree in enumerate(parents)]
    logits = grow(plain, texts, trees, parents)
    for b, tree in enumerate(parents):
        for leaf in set(range(len(tree))) - set(tree):
            path = root_path(tree, leaf)
            want = plain.expected(texts[b], trees[b][path])
            for place, row in enumerate(path):
                assert_same(logits[b][row], want[1 + place]["logits"][0], f"{b} {row}")


@pytest.mark.parametrize("reach", [Reach(4), Reach(4, 2), Reach(1, 3), Reach(50, 4)], ids=str)
@pytest.mark.parametrize("backend", [pytorch.prepare, pytorch.prepare_padded, reference.prepare])
def test_sinks_and_window(plain: Setup, reach: Reach, backend: Any) -> None:
    options = HeadOptions(window=reach.window, sinks=reach.n_sink_tokens)
    head = load_head(plain.directory, plain.target, backend, options)
    plan = replace(plain.case.plan, window=reach.window, n_sinks=reach.n_sink_tokens)
    setup = replace(plain, head=head, case=replace(plain.case, plan=plan))
    texts, parents = [text(12, seed=40), text(3, seed=41)], [[-1, 0, 0, 1], [-1, -1]]
    trees = [text(4, seed=42), text(2, seed=43)]
    logits = grow(setup, texts, trees, parents)
    for b, row in ((0, 3), (0, 2), (1, 1)):
        path = root_path(parents[b], row)
        want = setup.expected(texts[b], trees[b][path])
        assert_same(logits[b][row], want[-1]["logits"][0])


def test_positions_far_beyond_the_configured_maximum(plain: Setup) -> None:
    tokens = text(100, seed=50)  # max_position_embeddings is 16
    rows = extend_rows([tokens], packed_slots([99]))
    pool = plain.head.allocate_pool(N_SLOTS)
    out = plain.head.extend(rows, plain.features(tokens)[:-1], pool)
    assert_same(out.logits, plain.expected(tokens, tokens[:0])[0]["logits"])


@pytest.fixture
def without_onednn() -> Iterator[None]:
    """Some virtual machines announce AMX and trap on it; the plain product needs none of it."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(
    target_directory: Path, plain: Setup, dtype: torch.dtype
) -> None:
    target = load_decoder(target_directory, pytorch.prepare, LoadOptions(dtype=dtype))
    head = load_head(plain.directory, target, pytorch.prepare, HeadOptions())
    half = replace(plain, target=target, head=head)
    tokens = text(20, seed=60)
    rows = extend_rows([tokens], packed_slots([19]))
    out = head.extend(rows, half.features(tokens)[:-1], head.allocate_pool(20))
    assert out.hidden.dtype == dtype
    assert out.logits.dtype == dtype  # a caller that needs more converts them
    want = plain.expected(tokens, tokens[:0])[0]["logits"]
    cosine = torch.nn.functional.cosine_similarity(out.logits.double(), want, dim=-1)
    assert float(cosine.min()) >= 0.98
