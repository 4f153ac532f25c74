"""Dialects: how the templates of model families write calls of tools, one record each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from aerie.errors import UsageError
from aerie.text.call_parsers import JsonCalls, JsonForm
from aerie.text.calls import CallParser
from aerie.text.channels import CHANNEL, MARKS, ChannelCalls, Unread

AUTO = "auto"
HARMONY, RAW = "harmony", "raw"


@dataclass(frozen=True)
class Dialect:
    """How calls are written, and by what a template shows that they are written so."""

    name: str
    parser: Callable[[Collection[str]], CallParser]  # of the names that may be called
    signs: tuple[str, ...] = ()  # a template with one of these writes it
    marks: tuple[str, ...] = ()  # tokens that its parser reads, special ones too
    is_always_read: bool = False  # texts have marks of its own even where no tool is offered


_TAGGED = JsonForm(begin="<tool_call>", end="</tool_call>")
_HEADED = JsonForm(begin="<|python_tag|>", is_bare=True)
_BARE = JsonForm(is_bare=True)

# The first whose sign a template has; the first that has none is every other template's.
DIALECTS = (
    Dialect(
        name=HARMONY,  # gpt-oss
        parser=ChannelCalls,
        signs=(CHANNEL,),
        marks=MARKS,
        is_always_read=True,
    ),
    Dialect(
        name="hermes",  # Hermes, Qwen
        parser=partial(JsonCalls, _TAGGED),
        signs=(_TAGGED.begin,),
        marks=(_TAGGED.begin, _TAGGED.end),
    ),
    Dialect(
        name="llama3_json",  # Llama 3.1 and later
        parser=partial(JsonCalls, _HEADED),
        signs=(_HEADED.begin, "<|start_header_id|>"),
        marks=(_HEADED.begin,),
    ),
    Dialect(name="json", parser=partial(JsonCalls, _BARE)),
    # Asked for by name: nothing is read, and what a model wrote comes with its marks.
    Dialect(name=RAW, parser=Unread, marks=MARKS, is_always_read=True),
)
NAMES = tuple(dialect.name for dialect in DIALECTS)


def find_dialect(name: str, sources: Mapping[str, str]) -> Dialect:
    """The one of that name; `auto`: the one that a model's templates write."""
    for dialect in DIALECTS:
        is_written = any(sign in source for sign in dialect.signs for source in sources.values())
        if dialect.name == name or (name == AUTO and (is_written or not dialect.signs)):
            return dialect
    raise UsageError(f"there is no tool parser {name!r:.60}: give {', '.join((AUTO, *NAMES))}")
