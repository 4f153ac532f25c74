"""Remarks are computed: shares of vendored text, loops, ratios to the short figure."""

from __future__ import annotations

import numpy as np

from aerie.train.acceptance import DRAFTS, Walked
from aerie.train.corpus import Corpus, Document, Stream
from aerie.train.evaluate import PromptResult
from aerie.train.heldout import Prompt
from aerie.train.remarks import (
    corpus_remarks,
    evaluation_remarks,
    quotes_vendored,
    ratios_to_short,
    vendored_folder,
)


def stream(paths: tuple[str, ...], length: int) -> Stream:
    documents = tuple(Document(0, path, "") for path in paths)
    starts = np.arange(len(paths)) * length
    return Stream(np.zeros(len(paths) * length, np.uint16), starts, documents)


def corpus(*paths: str) -> Corpus:
    return Corpus(stream(paths, 10), stream((), 0), "", (), (), {})


def result(bucket: int, accepted: int, share: float) -> PromptResult:
    walks = {draft.name: Walked(10, accepted) for draft in DRAFTS}
    return PromptResult(f"{bucket}-000", bucket, bucket, share, walks)


def test_vendored_folders_are_named_by_their_path() -> None:
    assert vendored_folder("pip/_vendor/chardet/a.py") == "pip/_vendor/chardet"
    assert vendored_folder("pip/chardet/a.py") == ""
    assert vendored_folder("pip/_vendor") == ""  # a file of that name


def test_copies_under_other_licences_are_told_with_their_share() -> None:
    (remark,) = corpus_remarks(corpus("a.py", "pip/_vendor/chardet/a.py", "b.py", "c.py"))
    assert "`pip/_vendor/chardet` (LGPL-2.1, 25.000%)" in remark
    assert "certifi" not in remark
    assert corpus_remarks(corpus("a.py", "pip/_vendor/rich/a.py")) == []


def test_prompts_that_quote_a_vendored_copy_are_known() -> None:
    sources = (("pip", "pip/main.py"), ("pip", "pip/_vendor/rich/a.py"))
    assert quotes_vendored(Prompt("", 512, "", 1, sources))
    assert not quotes_vendored(Prompt("", 512, "", 1, sources[:1]))


def test_ratios_leave_loops_out() -> None:
    rows = [result(512, 30, 0.1), result(512, 70, 0.9), result(32_768, 20, 0.1)]
    assert ratios_to_short(rows)["chain5_32k"] == {"ratio": 0.75, "low": 0.75, "high": 0.75}
    assert ratios_to_short(rows[2:]) == {}


def test_loops_are_counted_and_acceptance_with_them_is_told() -> None:
    rows = [result(512, 30, 0.1), result(512, 50, 0.9)]
    loops, numbers = evaluation_remarks(rows, {"texts_written_in": "bfloat16"})
    assert loops.startswith("1 of 2 greedy continuations loop")
    assert loops.endswith("acceptance at 3 / 5 / 7 levels is 5.00 / 5.00 / 5.00 at 512.")
    assert "bfloat16" in numbers
    assert evaluation_remarks([], {}) == []
