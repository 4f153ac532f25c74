"""Grammars: what they allow, what is wrong with them, limits; matchers and walks."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aerie.errors import UsageError
from aerie.models.hub import find_pair
from aerie.text import grammar as grammar_module
from aerie.text import matcher as matcher_module
from aerie.text.grammar import (
    MOST_CHARACTERS,
    MOST_DEPTH,
    MOST_KEPT,
    Constraint,
    Grammar,
    Grammars,
    JsonSchema,
    Regex,
)
from aerie.text.matcher import STOPPED, Compiled, Matcher
from aerie.text.tokenizer import Tokenizer, load_tokenizer
from aerie.text.walker import Walker

pytest.importorskip("llguidance", reason="grammars need llguidance: pip install 'aerie[grammar]'")

PADDED = 4096 + 32
ONES = {
    "schema": JsonSchema(
        {
            "type": "object",
            "properties": {
                "kind": {"enum": ["a", "蓝"]},
                "flags": {"type": "array", "maxItems": 2},
            },
            "required": ["kind"],
            "additionalProperties": False,
        }
    ),
    "object": JsonSchema({"type": "object"}),
    "regex": Regex("[ab]{1,3}é?"),
    "open end": Regex("a+"),
    "lark": Grammar('start: "yes" | "no" | /[0-9]+/'),
    "gbnf": Grammar('root ::= "yes" | "no" | [0-9]+'),
    "choices": Grammar.of_choices(["red", 'gr"ün', "two\nlines"]),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(find_pair(None, None)[0])


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, PADDED)


def allowed(matcher: Matcher) -> set[int]:
    bits = np.zeros((1, PADDED // 32), dtype=np.int32)
    matcher.fill(bits, 0)
    return allowed_by(bits[0])


def allowed_by(row: NDArray[np.int32]) -> set[int]:
    return set(np.nonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0].tolist())


def spelt(tokenizer: Tokenizer, letters: str) -> list[int]:
    """A token for each letter."""
    return [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in letters]


@pytest.mark.parametrize("name", ONES)
def test_walks_lead_where_a_new_matcher_stands(
    grammars: Grammars, tokenizer: Tokenizer, name: str
) -> None:
    """Over random trees below random texts; the end, what follows it, what is refused included."""
    compiled = grammars.compiled(ONES[name])
    (end,) = tokenizer.eos_ids
    for seed in range(12):
        rng, text = random.Random(seed), list[int]()
        walker, rows = Walker(compiled, text, 0, ()), np.zeros((9, PADDED // 32), dtype=np.int32)
        for _ in range(12):
            paths: list[tuple[int, ...]] = [()]
            masks = dict[tuple[int, ...], set[int]]()
            for _ in range(8):
                above = rng.choice(paths)
                found = masks.setdefault(above, allowed(compiled.matcher([*text, *above])))
                assert max(found) < tokenizer.vocab_size, "padding is never allowed"
                paths.append((*above, rng.choice([*sorted(found)[:200], end, 5, 93])))
            walker.fill(paths, rows)
            taken = list[tuple[int, ...]]()
            for path, row in zip(paths, rows, strict=True):
                fresh = compiled.matcher([*text, *path])
                assert (row == -1).all() if fresh.error else allowed_by(row) == allowed(fresh)
                taken += [] if fresh.error else [path]
            news = rng.choice(taken)
            walker.advance(news)
            text += news
            assert walker.error is None


def test_a_mask_forgets_what_was_looked_at_before(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """With steps back, llguidance had the mask after `[[3` be that after `[[]`."""
    inner = {"type": "array", "items": {"enum": ["null", 3]}, "maxItems": 1}
    outer = {"type": "array", "items": inner, "minItems": 1, "maxItems": 1}
    schema = {"type": "object", "properties": {"größe": outer}, "additionalProperties": False}
    compiled = grammars.compiled(JsonSchema(schema))
    ids = {tokenizer.token_bytes(i): i for i in range(256)}
    text = [ids[bytes([byte])] for byte in '{"größe" : ['.encode()]
    paths = [tuple(ids[bytes([byte])] for byte in ahead.encode()) for ahead in ("[3", "[]")]
    walked, fresh = (np.zeros((2, PADDED // 32), dtype=np.int32) for _ in range(2))
    Walker(compiled, text, 0, ()).fill(paths, walked)
    for row, path in enumerate(paths):
        Walker(compiled, text, 0, ()).fill([path], fresh[row : row + 1])
    assert np.array_equal(walked, fresh)


@pytest.mark.parametrize(
    ("constraint", "whole", "open_"),
    [
        (ONES["regex"], "ab", "aé"),
        (ONES["schema"], '{"kind": "蓝"}', '{"kind"'),
        (ONES["gbnf"], "12", "ye"),
        (ONES["choices"], 'gr"ün', "two\n"),
    ],
)
def test_the_end_is_allowed_where_the_text_is_complete(
    grammars: Grammars, tokenizer: Tokenizer, constraint: Constraint, whole: str, open_: str
) -> None:
    (end,) = tokenizer.eos_ids
    for text, is_complete in ((whole, True), (open_[:-1], False)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        matcher = grammars.compiled(constraint).matcher(ids)
        assert matcher.error is None
        if text not in ("a", "ab"):  # which are complete themselves
            assert (end in allowed(matcher)) == is_complete, text


WRONG: tuple[tuple[Any, str], ...] = (
    (JsonSchema({"type": "objekt"}), "Invalid type: objekt"),
    (JsonSchema({"$ref": "#/nowhere"}), "nowhere"),
    (JsonSchema({"type": "string", "pattern": "("}), "unclosed group"),
    (JsonSchema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (JsonSchema({"x-guidance": {"blanks": 1}}), "blanks"),
    (Regex("(?=a)b"), "look-around"),
    (Grammar("start: nothing"), "nothing"),
    (Grammar('root ::= "a'), "cannot be used"),
)


@pytest.mark.parametrize(("constraint", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_said_and_said_again(
    grammars: Grammars, constraint: Constraint, words: str
) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match=words) as refused:
            grammars.compiled(constraint)
        assert str(refused.value).startswith(constraint.kind)


def test_values_are_checked_when_they_are_made() -> None:
    deep: Any = {}
    for _ in range(MOST_DEPTH + 1):
        deep = {"items": deep}
    for make, words in (
        (lambda: JsonSchema(deep), f"deeper than {MOST_DEPTH}"),
        (lambda: JsonSchema("{"), "is not JSON"),
        (lambda: JsonSchema("[1]"), "must be an object"),
        (lambda: JsonSchema({"const": float("nan")}), "is not JSON"),
        (lambda: JsonSchema({"const": {1}}), "is not JSON"),  # type: ignore[dict-item]
        (lambda: Regex("a" * (MOST_CHARACTERS + 1)), f"the limit is {MOST_CHARACTERS}"),
        (lambda: Regex(""), "must be a text"),
        (lambda: Grammar(7), "must be a text"),  # type: ignore[arg-type]
        (lambda: Grammar.of_choices([]), "must be texts"),
    ):
        with pytest.raises(UsageError, match=words):
            make()
    assert JsonSchema({"type": "object"}) == JsonSchema('{ "type":"object" }')


def test_blanks_end_and_a_schema_may_ask_for_its_own(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    def follows(schema: dict[str, Any], text: str) -> bool:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return grammars.compiled(JsonSchema(schema)).matcher(ids).error is None

    pretty = {"x-guidance": {"whitespace_pattern": "[ \\n]{0,8}"}}
    assert follows({"type": "object"}, '{"a": 1, "b": [2, 3]}')
    assert not follows({"type": "object"}, '{\n  "a": 1}')
    assert follows({"type": "object", **pretty}, '{\n  "a": 1\n}')


def test_the_last_ones_are_kept(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer, PADDED)
    first = grammars.compiled(Regex("a0"))
    assert grammars.compiled(Regex("a0")) is first
    for index in range(1, MOST_KEPT + 1):
        grammars.compiled(Regex(f"a{index}"))
    last = grammars.compiled(Regex(f"a{MOST_KEPT}"))
    assert grammars.compiled(Regex("a0")) is not first
    assert grammars.compiled(Regex(f"a{MOST_KEPT}")) is last


def test_nobody_waits_longer_than_the_limit(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a slow one keep `start` from answering at once."""
    monkeypatch.setattr(grammar_module, "COMPILE_SECONDS", 0.05)
    may_go_on = threading.Event()
    grammars = Grammars(tokenizer, PADDED)
    plainly = grammars._compile

    def slow(constraint: Constraint) -> Compiled:
        may_go_on.wait()
        return plainly(constraint)

    monkeypatch.setattr(grammars, "_compile", slow)
    future = grammars.start(Regex("a"))
    assert isinstance(future, Future) and not future.done()
    with pytest.raises(UsageError, match="was not compiled within"):
        grammars.compiled(Regex("a"))
    assert grammars.is_late(future)
    may_go_on.set()
    assert future.result(30)


def test_a_lexer_that_grows_too_large_is_an_error_of_its_text(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_module, "MOST_STATES", 40)
    matcher = Grammars(tokenizer, PADDED).compiled(Regex("(.*a.*b.*c){40}")).matcher()
    rng = random.Random(0)
    for _ in range(400):
        found = allowed(matcher)
        if matcher.error is not None:
            break
        matcher.advance([rng.choice(sorted(found))])
    assert matcher.error is not None and "stopped" in matcher.error
    assert found == set(range(PADDED)), "its request ends; the others are sampled"


def test_texts_do_not_use_up_the_lexer_of_their_grammar(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matchers share a lexer, whose states add up: from one text on all were refused."""
    monkeypatch.setattr(grammar_module, "MOST_STATES", 400)
    monkeypatch.setattr(matcher_module, "_LEAST_MASKS", 20)
    regex, rng = Regex("[a-d]*[ab][a-d]{14}x"), random.Random(3)
    compiled, letters = Grammars(tokenizer, PADDED).compiled(regex), spelt(tokenizer, "abcd")
    out = np.zeros((1, PADDED // 32), dtype=np.int32)
    for _ in range(20):
        text = rng.choices(letters, k=40)
        # One is preempted half-way, which follows its text anew.
        for begun, rest in ((0, text), (20, text[20:])):
            walker = Walker(compiled, text[:begun], 0, tokenizer.eos_ids)
            for token in rest:
                walker.fill([()], out)
                walker.advance([token])
            assert walker.error is None
        fresh = Grammars(tokenizer, PADDED).compiled(regex).matcher(text)
        walker.fill([()], out)
        assert allowed_by(out[0]) == allowed(fresh)


def test_a_lexer_that_is_spent_at_once_is_not_replaced(tokenizer: Tokenizer) -> None:
    """It would be again, and each time takes seconds: its texts are errors, soon."""
    a, b = spelt(tokenizer, "ab")
    compiled = Grammars(tokenizer, PADDED).compiled(Regex("(a{1000}){1000}|b"))
    lexer, out = compiled._lexer, np.zeros((2, PADDED // 32), dtype=np.int32)
    for _ in range(3):
        walker = Walker(compiled, (), 0, tokenizer.eos_ids)
        walker.fill([(a,), (b,)], out)
        walker.advance([a])
    assert walker.error is not None and walker.error.startswith(STOPPED)
    assert compiled._lexer is lexer


@pytest.mark.parametrize("nothing", [Regex(r"[^\s\S]"), JsonSchema({"$ref": "#"})])
def test_what_no_text_is_like_is_refused(tokenizer: Tokenizer, nothing: Constraint) -> None:
    with pytest.raises(UsageError, match="no text begins so"):
        Grammars(tokenizer, PADDED).compiled(nothing)


def test_a_model_without_an_end_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match="names an end token"):
        Grammars(replace(tokenizer, eos_ids=()), PADDED).compiled(Regex("a"))


def test_several_ends_are_all_allowed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    grammars = Grammars(replace(tokenizer, eos_ids=(0, 7)), PADDED)
    matcher = grammars.compiled(Regex("a")).matcher(tokenizer.encode("a", add_special_tokens=False))
    assert allowed(matcher) == {0, 7}
    assert matcher.step(7) and json.dumps(sorted(allowed(matcher)))
