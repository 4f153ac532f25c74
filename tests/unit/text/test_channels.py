"""Harmony's answers, the malformed ones: no crash, no character lost, the same in any pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from pathlib import Path
from random import Random

import pytest

from aerie.text.calls import Argued, Called, Part, Said, Thought
from aerie.text.channels import MARKS, ChannelCalls, Unread
from aerie.text.marks import Marks
from aerie.text.output import TextOutput
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from scripts.interop.scripted import MANNERS, write_target

NAMES = frozenset({"weather"})
THOUGHT = "<|channel|>analysis<|message|>Zürich 🏔, hm.<|end|>"
CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Zürich 🏔"}<|call|>'
)
FINAL = "<|start|>assistant<|channel|>final<|message|>1 <| 2 ☀<|return|>"
WHOLE = THOUGHT + CALL + FINAL
# Written apart from the parser: what may be missing from what is told, and nothing else.
HEAD = (
    r"(?:<\|start\|>assistant)?(?: to=functions\.weather ?)?"
    r"(?:<\|channel\|>(?:analysis|commentary|final)(?: to=functions\.weather ?)?"
    r"(?:(?: ?<\|constrain\|> ?| )[\w.+/-]+)? ?)?<\|message\|>"
)
GAP = rf"(?:{HEAD}|<\|(?:end|call|return)\|>)*?"


def parts_of(pieces: Sequence[str]) -> list[Part]:
    parser = ChannelCalls(NAMES)
    return [part for piece in pieces for part in parser.push(piece)] + parser.finish()


def parse(pieces: Sequence[str]) -> list[Part]:
    """Parts of one kind that follow each other as one."""
    joined: list[Part] = []
    for part in parts_of(pieces):
        last = joined[-1] if joined else None
        if isinstance(part, Said | Thought) and type(last) is type(part):
            joined[-1] = type(part)(last.text + part.text)  # type: ignore[union-attr]
        else:
            joined.append(part)
    return joined


def assert_nothing_is_lost(text: str) -> None:
    """All that is told stands in the text, in order; between it, marks of messages alone.

    Blanks around the arguments of a call are no part of them.
    """
    pattern = GAP
    for part in parts_of([text]):
        if not isinstance(part, Called):
            blank = r"\s*" if isinstance(part, Argued) else ""
            pattern += f"{blank}{re.escape(part.text)}{blank}{GAP}"
    assert re.fullmatch(pattern, text, re.DOTALL), (text, parts_of([text]))


def malformed() -> Iterator[str]:
    yield from (WHOLE[:n_kept] for n_kept in range(len(WHOLE)))
    pieces = [piece for piece in re.split(r"(<\|\w+\|>)", WHOLE) if piece]
    yield from ("".join(pieces[:i] + pieces[i + 1 :]) for i in range(len(pieces)))  # one is gone
    yield from ("".join(pieces[:i] + [pieces[i]] * 2 + pieces[i + 1 :]) for i in range(len(pieces)))
    for i, (one, other) in enumerate(pairwise(pieces)):  # swapped
        yield "".join([*pieces[:i], other, one, *pieces[i + 2 :]])
    yield from ("".join(order) for order in permutations((THOUGHT, CALL, FINAL, "no mark ")))
    for outer in (THOUGHT, CALL, FINAL):  # nested, and a mark within a text
        for inner in (THOUGHT, CALL, FINAL, *MARKS, "<|unknown|>"):
            cut = outer.index("<|message|>") + len("<|message|>") + 3
            yield outer[:cut] + inner + outer[cut:]
    for head in (
        "<|channel|>diary<|message|>",
        "<|start|>user<|message|>",
        "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>",
        " to=functions.unknown<|channel|>commentary<|message|>",
        " to=python<|channel|>analysis code<|message|>",
        " to=a<|channel|>final to=b<|message|>",
        "<|channel|><|message|>",
        "<|channel|>final" + "x" * 300 + "<|message|>",
        "\n",
    ):
        yield from (head + "text ü<|end|>" + FINAL, THOUGHT + head + '{"a": 1}', head)


STREAMS = sorted(set(malformed()))


def test_malformed_streams_lose_nothing_and_are_the_same_in_any_pieces() -> None:
    assert len(STREAMS) >= 200
    random = Random(5)
    for text in STREAMS:
        whole = parse([text])
        assert_nothing_is_lost(text)
        assert parse(list(text)) == whole, text
        for cut in range(1, len(text)):
            assert parse([text[:cut], text[cut:]]) == whole, (text[:cut], text[cut:])
        cuts = sorted(random.sample(range(len(text) + 1), min(len(text), 6)))
        edges = [0, *cuts, len(text)]
        assert parse([text[start:end] for start, end in pairwise(edges)]) == whole, text


def test_noise_of_marks_loses_nothing() -> None:
    random = Random(7)
    words = [*MARKS, "assistant", "analysis", "final", "commentary", " to=functions.weather", "{}"]
    words += [" json", "ü", " ", "text", "<|"]
    for _ in range(3_000):
        text = "".join(random.choices(words, k=random.randint(1, 12)))
        whole = parse([text])
        assert_nothing_is_lost(text)
        assert parse(list(text)) == whole


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (WHOLE, [Thought("Zürich 🏔, hm."), Called("weather"), Argued('{"city": "Zürich 🏔"}')]),
        # From where it is not understood, it is as it was written.
        (THOUGHT + "oops" + FINAL, [Thought("Zürich 🏔, hm."), Said("oops" + FINAL)]),
        ("plain ü<|return|>", [Said("plain ü<|return|>")]),
        ("<|channel|>final<|end|>", [Said("<|channel|>final<|end|>")]),
        # A message for another reader is told whole, and the next one read.
        ("<|channel|>diary<|message|>a<|end|>", [Said("<|channel|>diary<|message|>a<|end|>")]),
        # No end before the next head; marks that begin none are text, as the package has them.
        (THOUGHT[:-7] + FINAL, [Thought("Zürich 🏔, hm.")]),
        ("<|message|>a<|channel|>b<|end|>", [Said("a<|channel|>b")]),
        ("<|channel|>analysis<|message|>a <|start|>user", [Thought("a <|start|>user")]),
    ],
)
def test_what_becomes_of_a_text(text: str, parts: list[Part]) -> None:
    found = parse([text])
    assert found[: len(parts)] == parts
    rest = [Said("1 <| 2 ☀")] if text.endswith(FINAL) and Said("oops" + FINAL) not in parts else []
    assert found[len(parts) :] == rest


def test_what_is_certain_is_told_at_once() -> None:
    parser = ChannelCalls(NAMES)
    assert parser.push("<|channel|>ana") == [] and parser.push("lysis<|message|>") == []
    assert parser.push("a <|") == [Thought("a ")]
    assert parser.push("b") == [Thought("<|b")]
    # Text that cannot be a head does not wait for its end.
    assert ChannelCalls(NAMES).push("Hello") == [Said("Hello")]


def test_raw_is_raw() -> None:
    raw = Unread(NAMES)
    assert raw.push(WHOLE) == [Said(WHOLE)] and raw.push("") == raw.finish() == []


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("harmony")
    write_target(folder, MANNERS["harmony"])
    return load_tokenizer(folder)


@pytest.mark.parametrize("n_group", [1, 3, 1000])
def test_tokens_cut_anywhere_even_within_a_character(tokenizer: Tokenizer, n_group: int) -> None:
    ids = tokenizer.encode(WHOLE, add_special_tokens=False)
    halves = 0
    for n_kept in range(len(ids) + 1):
        kept = ids[:n_kept]
        text = tokenizer.decode(kept, skip_special_tokens=False)
        halves += text.endswith("\ufffd")
        output, marks = TextOutput(tokenizer), Marks(tokenizer, MARKS)
        pieces = []
        for start in range(0, n_kept, n_group):
            group = kept[start : start + n_group]
            last = "" if start + n_group < n_kept else "end"
            told = output.push(group).text + (output.finish().text if last else "")
            pieces.append(marks.push(told, group))
        assert "".join(pieces) == text
        assert parse(pieces) == parse([text])
        assert_nothing_is_lost(text)
    assert halves > 0
