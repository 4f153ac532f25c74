"""Calls of tools in texts: every dialect, wherever the text is cut, whatever is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.errors import UsageError
from aerie.text.calls import Argued, Called, Part, Said, Thought
from aerie.text.dialects import DIALECTS, NAMES, find_dialect

TOOLS = frozenset({"weather", "add", "größe"})
# Nested, unicode, escaped quotes and brackets, and the marks of all dialects within a text.
HARD = (
    '{"city": "Z\\u00fcrich 🏔 \\" } ]", "deep": [[{"a": {"b": [1, -2.5e3, null, true]}}], {}],'
    ' "marks": "</tool_call> <tool_call> <|python_tag|> {"}'
)
CHANNELLED = '{"city": "Zürich 🏔 \\"}", "deep": {"a": [1, {"b": []}]}}'


def one(name: str, arguments: str = HARD, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def told(parts: Iterable[Part]) -> dict[str, Any]:
    """What a client has in the end."""
    message: dict[str, Any] = {"said": "", "thought": "", "calls": []}
    calls: list[list[str]] = []
    for part in parts:
        if isinstance(part, Said):
            message["said"] = f"{message['said']}{part.text}"
        elif isinstance(part, Thought):
            message["thought"] = f"{message['thought']}{part.text}"
        elif isinstance(part, Called):
            calls.append([part.name, ""])
        else:
            calls[-1][1] += part.text
    return {**message, "calls": [tuple(call) for call in calls]}


def parse(name: str, *pieces: str) -> dict[str, Any]:
    parser = find_dialect(name, {}).parser(TOOLS)
    found = [part for piece in pieces for part in parser.push(piece)]
    return told([*found, *parser.finish()])


def said(text: str) -> dict[str, Any]:
    return {"said": text, "thought": "", "calls": []}


def called(*calls: tuple[str, str], text: str = "", thought: str = "") -> dict[str, Any]:
    return {"said": text, "thought": thought, "calls": list(calls)}


TAG, END = "<tool_call>", "</tool_call>"
PYTHON = "<|python_tag|>"
BROKEN = '{"name": "add", "arguments": {"a": }}'
CUT = '{"name": "add", "arguments": {"a": 1'
TO = "<|channel|>commentary to=functions."
JSON = " <|constrain|>json<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"

CASES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "hermes": [
        (f"{TAG}\n{one('weather')}\n{END}", called(("weather", HARD))),
        (
            f"I look.\n{TAG}{one('weather')}{END}\n{TAG}\n{one('add', '{}')}\n{END}\n",
            called(("weather", HARD), ("add", "{}"), text="I look."),
        ),
        (f'{TAG}{{"arguments": {{}}, "name": "größe"}}{END}', called(("größe", "{}"))),
        (f"{TAG}{one('add', '{}')}", called(("add", "{}"))),  # cut before its mark
        (f"{TAG}{one('add', '{}')}</tool_", called(("add", "{}"))),
        (f"{TAG}\n{BROKEN}\n{END}", said(f"{TAG}\n{BROKEN}\n{END}")),
        (f"{TAG}{one('unknown')}{END} b ", said(f"{TAG}{one('unknown')}{END} b ")),
        (f"{TAG}{one('add', '[1]')}{END}", said(f"{TAG}{one('add', '[1]')}{END}")),
        (
            f"{TAG} not JSON {TAG}{one('add', '{}')}{END}",
            called(("add", "{}"), text=f"{TAG} not JSON"),
        ),
        (f"{TAG}{one('add', '{}')} more{END}", said(f"{TAG}{one('add', '{}')} more{END}")),
        (TAG + CUT, said(TAG + CUT)),
        ("a < b <tool <tool_cal", said("a < b <tool <tool_cal")),
        (f"{TAG}{one('add', json.dumps('{}'))}{END}", called(("add", "{}"))),  # as a string
        (TAG + one("add", '{"a": NaN}') + END, said(TAG + one("add", '{"a": NaN}') + END)),
    ],
    "llama3_json": [
        (one("weather", key="parameters"), called(("weather", HARD))),
        (f"{PYTHON}{one('weather', key='parameters')}", called(("weather", HARD))),
        (
            f"{one('add', '{}', 'parameters')}; {one('weather', key='parameters')}",
            called(("add", "{}"), ("weather", HARD)),
        ),
        (f"I look. {PYTHON}{one('add', '{}')}", called(("add", "{}"), text="I look.")),
        (f" \n{one('add', '{}')}\n{PYTHON}{one('add', '{}')}", called(*[("add", "{}")] * 2)),
        ('{"type": "function", ' + one("add", "{}")[1:], called(("add", "{}"))),
        (f"Like this: {one('add')}", said(f"Like this: {one('add')}")),
        ('{"answer": 42}', said('{"answer": 42}')),
        (one("unknown"), said(one("unknown"))),
        (f"{PYTHON}print(1)", said(f"{PYTHON}print(1)")),
        ("<|python_t", said("<|python_t")),
        (" \n", said(" \n")),
    ],
    "json": [
        (one("weather"), called(("weather", HARD))),
        (f"[{one('weather')}, {one('add', '{}')}]", called(("weather", HARD), ("add", "{}"))),
        (f"[{one('weather')}, {one('unknown')}]", said(f"[{one('weather')}, {one('unknown')}]")),
        ("[1, 2]", said("[1, 2]")),
        ("{", said("{")),
        ("", said("")),
    ],
    "harmony": [
        (
            f"{ANALYSIS}Hm.<|end|><|start|>assistant{TO}weather{JSON}{CHANNELLED}<|call|>",
            called(("weather", CHANNELLED), thought="Hm."),
        ),
        (
            " to=functions.add<|channel|>commentary json<|message|>{}",
            called(("add", "{}")),
        ),
        (
            f"<|channel|>commentary<|message|>I look.<|end|>{TO}add{JSON}{{}}<|call|>"
            f"<|start|>assistant{TO}größe{JSON}{{}}",
            called(("add", "{}"), ("größe", "{}"), text="I look."),
        ),
        (
            f"{ANALYSIS}a<|end|><|start|>assistant<|channel|>final<|message|>1 <| 2<|return|>",
            called(text="1 <| 2", thought="a"),
        ),
        (f"{TO}unknown{JSON}{{}}<|call|>", said(f"{TO}unknown{JSON}{{}}<|call|>")),
        (TO + "add" + JSON + '{"a": <|call|>', said(TO + "add" + JSON + '{"a": <|call|>')),
        ("no marks at all", said("no marks at all")),
        ("x" * 300 + "<|end|>", said("x" * 300 + "<|end|>")),
        (ANALYSIS[:15], said(ANALYSIS[:15])),
        ("<|channel|>" * 40 + "a" * 300, said("<|channel|>" * 40 + "a" * 300)),
    ],
    "raw": [
        (f"{ANALYSIS}Hm.<|end|>{TO}add{JSON}{{}}", said(f"{ANALYSIS}Hm.<|end|>{TO}add{JSON}{{}}")),
    ],
}
EVERY = [(name, *case) for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("name", "text", "want"), EVERY)
def test_a_text_is_read_the_same_wherever_it_is_cut(
    name: str, text: str, want: dict[str, Any]
) -> None:
    assert parse(name, text) == want
    assert parse(name, *text) == want
    for cut in range(1, len(text)):
        assert parse(name, text[:cut], text[cut:]) == want, (text[:cut], text[cut:])


WORDS = st.sampled_from(
    [
        TAG,
        END,
        PYTHON,
        TO,
        JSON,
        ANALYSIS,
        "<|end|>",
        "<|call|>",
        "<|start|>",
        "<|message|>",
        BROKEN,
    ]
    + [
        one("add", "{}"),
        one("weather"),
        "add",
        "{}",
        '{"',
        '"',
        "\\",
        "}",
        "[",
        "]",
        ";",
        " ",
        "\n",
    ]
    + ["<", "tool_call", "|>", "ä", "🏔", "x" * 90, '"name": ']
)


@given(st.sampled_from(NAMES), st.lists(WORDS, max_size=12), st.randoms(use_true_random=False))
def test_made_up_texts_are_read_the_same_in_any_chunks(
    name: str, words: list[str], random: Random
) -> None:
    text = "".join(words)
    cuts = sorted(random.sample(range(len(text) + 1), min(len(text), 5)))
    edges = [0, *cuts, len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    whole = parse(name, text)
    assert parse(name, *pieces) == whole == parse(name, *text)
    for _, arguments in whole["calls"]:
        assert isinstance(json.loads(arguments), dict)


def test_what_is_said_waits_for_no_more_than_it_must() -> None:
    parser = find_dialect("hermes", {}).parser(TOOLS)
    assert parser.push("a <tool") == [Said("a")]
    assert parser.push("s> b") == [Said(" <tools> b")]
    assert parser.push(TAG) == [] and parser.push(one("add", '{"a": 1')[:-1]) == []
    assert parser.push("}}") == []
    assert parser.push(END) == [Called("add"), Argued('{"a": 1}')]
    # An object that is no call is not held until it ends.
    assert find_dialect("json", {}).parser(TOOLS).push('{"answer": [') == [Said('{"answer": [')]


def test_deep_nesting_is_no_call_and_no_crash() -> None:
    deep = one("add", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    for name in ("json", "llama3_json"):
        assert parse(name, deep) == said(deep)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ '<|start|>assistant<|channel|>final' }}", "harmony"),
        ("return json within <tool_call></tool_call>", "hermes"),
        ("<|start_header_id|>system<|end_header_id|>", "llama3_json"),
        ("[TOOL] {{ tools }}", "json"),
    ],
)
def test_a_template_shows_its_dialect(source: str, name: str) -> None:
    assert find_dialect("auto", {"default": source}).name == name
    assert find_dialect("json", {"default": source}).name == "json"


def test_an_unknown_parser_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="auto, harmony, hermes, llama3_json, json, raw"):
        find_dialect("xml", {})
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
