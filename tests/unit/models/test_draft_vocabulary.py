"""Draft vocabularies: the right ids, the same drafts among them, and an honest report."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.attention import pytorch
from aerie.attention.rows import Bounds, causal_rows
from aerie.errors import CheckpointError, UsageError
from aerie.models.decoder import Decoder
from aerie.models.draft_vocabulary import (
    TokenCounts,
    choose_ids,
    count_ids,
    head_ids,
    output_weight,
    read_counts,
    save_counts,
    slice_head,
    slice_normal,
)
from aerie.models.draft_vocabulary_report import (
    ReportSettings,
    as_json,
    as_markdown,
    report,
)
from aerie.models.eagle3.blueprint import TargetSizes
from aerie.models.eagle3.convert import read_normal, write_head
from aerie.models.eagle3.export import ExportDetails
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.probe_text import whole_texts
from aerie.models.written_text import Writing, continue_texts
from tests.unit.models import pairs
from tests.unit.models.trained_pair import BOUNDARIES, TrainedPair, train

SIZES = TargetSizes(pairs.LAYERS, pairs.HIDDEN, pairs.VOCAB)
IDS = "eagle_aux_hidden_state_layer_ids"


def counted(values: list[int]) -> TokenCounts:
    return TokenCounts(torch.tensor(values), "test")


def test_counts_and_choice() -> None:
    counts = count_ids([[3, 3, 1], [], [3, 5, 1]], 8, "two texts")
    assert counts.counts.tolist() == [0, 2, 0, 3, 0, 1, 0, 0]
    assert counts.n_tokens == 6
    assert choose_ids(counts, 2).tolist() == [1, 3]
    assert choose_ids(counts, 3, forced=[7]).tolist() == [1, 3, 7]  # the end token comes in
    assert choose_ids(counts, 5).tolist() == [0, 1, 2, 3, 5]  # of equal counts the lower id
    assert choose_ids(counts, 2, allowed=torch.tensor([2, 5, 6])).tolist() == [2, 5]
    assert counts.coverage(torch.tensor([1, 3])) == pytest.approx(5 / 6)
    assert choose_ids(counts, 1, forced=[7], allowed=torch.tensor([5, 7])).tolist() == [7]


@pytest.mark.parametrize(
    ("size", "forced", "allowed", "message"),
    [
        (0, [], None, "cannot come from 4"),
        (5, [], None, "cannot come from 4"),
        (3, [], [0, 1], "cannot come from 2"),
        (1, [2], [0, 1], r"forced ids \[2\] are not"),
        (1, [1, 2], None, "do not fit into 1"),
    ],
)
def test_impossible_choices(
    size: int, forced: list[int], allowed: list[int] | None, message: str
) -> None:
    known = None if allowed is None else torch.tensor(allowed)
    with pytest.raises(UsageError, match=message):
        choose_ids(counted([1, 2, 3, 4]), size, forced, known)


def test_ids_of_another_tokenizer_are_refused() -> None:
    with pytest.raises(UsageError, match="id 9 is outside"):
        count_ids([[1, 9]], 8, "text")


def test_count_file(tmp_path: Path) -> None:
    save_counts(tmp_path / "a" / "counts.json", counted([0, 5, 0, 7]), [2])
    found, forced = read_counts(tmp_path / "a" / "counts.json")
    assert found.counts.tolist() == [0, 5, 0, 7] and found.source == "test" and forced == (2,)
    good = json.loads((tmp_path / "a" / "counts.json").read_text())
    for change, message in (
        ({"counts": {"4": 1}}, "'4' is no id"),
        ({"counts": {"9" * 400: 1}}, "is no id"),
        ({"counts": {"1": -1}}, "numbers from 1, below"),
        ({"counts": {"1": 1 << 63}}, "numbers from 1, below"),
        ({"forced": [4]}, "ids below 4"),
        ({"vocab_size": None}, "vocab_size: missing"),
    ):
        path = tmp_path / "bad.json"
        path.write_text(json.dumps(good | change))
        with pytest.raises(CheckpointError, match=message):
            read_counts(path)


# --- slicing


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> Decoder:
    directory = pairs.write_target(tmp_path_factory.mktemp("target") / "t")
    return load_decoder(directory, pytorch.prepare, LoadOptions())


def drafts(head: Eagle3Head) -> Tensor:
    """Logits of some rows, the same for any head of a case."""
    generator = torch.Generator().manual_seed(0)
    taps = torch.randn(10, len(head.taps), pairs.HIDDEN, generator=generator)
    rows = whole_texts((torch.arange(10),))
    return head.extend(rows, taps, head.allocate_pool(11)).logits


@pytest.mark.parametrize("case", pairs.CASES)
def test_slicing_at_load_and_in_files(tmp_path: Path, target: Decoder, case: str) -> None:
    pairs.write_head(tmp_path / "in", pairs.CASES[case])
    head = load_head(tmp_path / "in", target, pytorch.prepare, HeadOptions())
    known = head_ids(head)
    ids = known[torch.tensor([0, 3, 4, 9, len(known) - 1])]
    sliced = slice_head(head, ids)
    rows = torch.searchsorted(known, ids)
    assert torch.equal(output_weight(sliced), output_weight(head)[rows])
    # Not the last bit: a library may multiply a narrower matrix by another kernel.
    torch.testing.assert_close(drafts(sliced), drafts(head)[:, rows], rtol=0, atol=1e-5)
    assert torch.equal(sliced.to_target(torch.arange(5)), ids)
    assert sliced.summary.geometry.draft_vocab_size == 5
    assert any("sliced from" in entry.reason for entry in sliced.summary.resolved)
    if case == "modelopt_final_state":
        return  # no dialect but its own can say it, and that one has no captures
    normal = slice_normal(read_normal(tmp_path / "in", SIZES), ids, target.head.weight)
    write_head(tmp_path / "out", normal, "speculators", ExportDetails())
    again = load_head(tmp_path / "out", target, pytorch.prepare, HeadOptions())
    assert torch.equal(drafts(again), drafts(sliced))
    assert again.token_map is not None and torch.equal(again.token_map, ids)


def test_whole_vocabulary_is_the_same_head(tmp_path: Path, target: Decoder) -> None:
    directory = pairs.write_head(tmp_path, pairs.CASES["official"])
    head = load_head(directory, target, pytorch.prepare, HeadOptions())
    assert torch.equal(drafts(slice_head(head, head_ids(head))), drafts(head))


@pytest.mark.parametrize(
    ("ids", "message"),
    [([], "not empty"), ([5, 4], "ascending"), ([4, 4], "ascending"), ([0, 60], "cannot draft")],
)
def test_wrong_slices(tmp_path: Path, target: Decoder, ids: list[int], message: str) -> None:
    directory = pairs.write_head(tmp_path, pairs.CASES["official"])
    head = load_head(directory, target, pytorch.prepare, HeadOptions())
    assert not {0, 60} <= set(head_ids(head).tolist())
    with pytest.raises(UsageError, match=message):
        slice_head(head, torch.tensor(ids, dtype=torch.int64))


# --- text and the report


def test_written_text_is_the_greedy_one(target: Decoder) -> None:
    prompts = [torch.tensor([1, 2, 3]), torch.tensor([9]), torch.tensor([4, 4])]
    texts = continue_texts(target, prompts, Writing(6))
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.shape[0] == len(prompt) + 6 and torch.equal(text[: len(prompt)], prompt)
        rows = whole_texts((text,))
        every = torch.arange(rows.n_rows)
        choices = target.forward(rows, target.allocate_pool(40), every).logits.argmax(-1)
        assert torch.equal(text[len(prompt) :], choices[len(prompt) - 1 : -1])
    sampled = [continue_texts(target, prompts, Writing(6, 1.0, seed))[0] for seed in (1, 1, 2)]
    assert torch.equal(sampled[0], sampled[1]) and not torch.equal(sampled[0], sampled[2])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any) -> TrainedPair:
    return train(tmp_path_factory.mktemp("trained"))


def plain_acceptance(
    target: Decoder, head: Eagle3Head, prompt: Tensor, settings: ReportSettings
) -> list[int]:
    """Rounds of drafting and verifying, one after the other, with a fresh pool each time."""
    (text,) = continue_texts(target, [prompt], Writing(settings.n_new))
    rows = whole_texts((text,))
    pool = target.allocate_pool(rows.n_rows + 1)
    taps = target.forward(rows, pool, torch.arange(1), head.taps).taps
    position, rounds = len(prompt) - 1, []
    while position + 2 + settings.n_drafted <= len(text):
        own = head.allocate_pool(200)
        n = position + 1
        out = head.extend(whole_texts((text[1 : n + 1],)), taps[:n], own)
        chain = [int(head.to_target(out.logits[-1].argmax()))]
        while len(chain) < settings.n_drafted:
            n += 1
            row = causal_rows(
                torch.tensor(chain[-1:]),
                torch.tensor([0, 1], dtype=torch.int32),
                torch.tensor([0, n], dtype=torch.int32),
                torch.arange(1, n + 1, dtype=torch.int32),
                Bounds(1, n),
            )
            out = head.step(row, out.hidden[-1:], own)
            chain.append(int(head.to_target(out.logits[-1].argmax())))
        accepted = 0
        while accepted < len(chain) and chain[accepted] == int(text[position + 2 + accepted]):
            accepted += 1
        rounds.append(accepted + 1)
        position += accepted + 1
    return rounds


def test_report(tmp_path: Path, trained: TrainedPair) -> None:
    directory = trained.write_head(tmp_path, **{IDS: list(BOUNDARIES)})
    head = load_head(directory, trained.target, pytorch.prepare, HeadOptions())
    settings = ReportSettings(n_new=30, n_drafted=3, top_k=4)
    prompts = [torch.tensor([3, 7, 19, 30]), torch.tensor([11, 2]), torch.tensor([50])]
    texts = continue_texts(trained.target, prompts, Writing(200))
    counts = count_ids([text.tolist() for text in texts], pairs.VOCAB, "written")
    vocabularies = [choose_ids(counts, size, forced=[60]) for size in (40, 8, 2)]
    rows = report(trained.target, head, vocabularies, prompts, settings)
    assert [row.n_ids for row in rows] == [pairs.VOCAB, 40, 8, 2]
    assert [row.head_bytes for row in rows] == [n * pairs.HIDDEN * 2 for n in (61, 40, 8, 2)]
    assert rows[0].coverage == 1.0
    for larger, smaller in pairwise(rows):
        assert smaller.coverage <= larger.coverage
        assert smaller.top1 <= smaller.coverage + 1e-9
    assert rows[3].acceptance < rows[0].acceptance and rows[3].top1 < rows[0].top1
    heads = [head, *(slice_head(head, ids) for ids in vocabularies)]
    for row, entry in zip(rows, heads, strict=True):
        rounds = [n for p in prompts for n in plain_acceptance(trained.target, entry, p, settings)]
        assert row.n_rounds == len(rounds)
        assert row.acceptance == pytest.approx(sum(rounds) / len(rounds))
    values = as_json(rows, settings)
    assert json.loads(json.dumps(values))["rows"][0]["n_ids"] == pairs.VOCAB
    markdown = as_markdown(rows, settings).splitlines()
    assert len(markdown) == 6 and markdown[2].endswith("| 1.000 |")
    assert "acceptance at 3" in markdown[0] and "top-4" in markdown[0]


def test_report_refuses_what_it_cannot_measure(target: Decoder, tmp_path: Path) -> None:
    directory = pairs.write_head(tmp_path, pairs.CASES["official"])
    head = load_head(directory, target, pytorch.prepare, HeadOptions())
    with pytest.raises(UsageError, match="too few for 5"):
        report(target, head, [], [torch.tensor([1])], ReportSettings(n_new=6))
    with pytest.raises(UsageError, match="at least one prompt"):
        report(target, head, [], [], ReportSettings())
