"""Marks: where the model wrote them, whatever the stop strings held back or cut."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from aerie.text.marks import Marks
from aerie.text.output import TextOutput
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from scripts.interop.scripted import MANNERS, write_target

TEXT = (
    "<|channel|>analysis<|message|>Zürich 🏔 a<|end|><|start|>assistant|><<|message|>b <| c<|call|>"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("harmony")
    write_target(folder, MANNERS["harmony"])
    return load_tokenizer(folder)


def marked(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], n_group: int
) -> Iterator[str]:
    """As the engine decodes a text, so many tokens at a time."""
    output, marks = TextOutput(tokenizer, stops), Marks(tokenizer, MANNERS["harmony"].special)
    for start in range(0, len(ids), n_group):
        group = ids[start : start + n_group]
        delta = output.push(group)
        if delta.stop is not None:
            yield marks.push(delta.text, group[: delta.n_tokens])
            return
        last = output.finish().text if start + n_group >= len(ids) else ""
        yield marks.push(delta.text + last, group)


@pytest.mark.parametrize("n_group", [1, 2, 3, 7, 1000])
def test_marks_come_back_where_they_were(tokenizer: Tokenizer, n_group: int) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert "<|" not in tokenizer.decode(ids[:5])
    assert "".join(marked(tokenizer, ids, (), n_group)) == TEXT
    # Held back before a mark, never matched; no stop string is found in a mark.
    for stops in (("never", "ant|><b!", "assistant|>x"), ("hannel", "<|m")):
        assert "".join(marked(tokenizer, ids, stops, n_group)) == TEXT
    cut = "".join(marked(tokenizer, ids, ("aassistant|",), n_group))  # across two marks
    assert cut == TEXT[: TEXT.index("a<|end|>")]


def test_a_text_without_special_marks_is_as_it_was(tokenizer: Tokenizer) -> None:
    marks = Marks(tokenizer, ("<tool_call>", "no such token"))
    assert marks.push("<tool_call> a", (1, 2, 3)) == "<tool_call> a"
