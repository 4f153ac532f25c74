"""Grammars: what a text must be like, compiled for a tokenizer; the one door to llguidance.

A grammar is a value that any caller may make. `Grammars` compiles it, off the caller's thread and
within limits.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from aerie.errors import UsageError
from aerie.text.matcher import Compiled as Compiled
from aerie.text.tokenizer import Tokenizer

MOST_CHARACTERS = 256 * 1024  # of a grammar
MOST_DEPTH = 64  # of a schema's own nesting; what it describes may be as deep as it likes
COMPILE_SECONDS = 30.0  # to wait for; 500 properties take 25 ms, a vocabulary at first 4 s
MOST_KEPT = 64  # compiled grammars, the last ones used
# States of a grammar's lexer, some 2 kB each, and work for one mask, some 50 ms at the most: what
# asks for more ends with an error instead of other requests' memory and time.
MOST_STATES, MOST_FUEL = 20_000, 500_000
# Between JSON's tokens at most one blank: a grammar that allows more allows endless ones, and small
# models fall into them. A schema may say otherwise: {"x-guidance": {"whitespace_pattern": "…"}}.
BLANKS = r"\x20?"


@dataclass(frozen=True)
class Constraint:
    """What a text must be like: a value, the same for the same text."""

    text: str
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        text: object = self.text
        if not text or not isinstance(text, str):
            raise UsageError(f"{self.kind} is {text!r:.60}, must be a text")
        if len(self.text) > MOST_CHARACTERS:
            n = len(self.text)
            raise UsageError(f"{self.kind} has {n} characters, the limit is {MOST_CHARACTERS}")


@dataclass(frozen=True, init=False)
class JsonSchema(Constraint):
    """JSON that a schema describes; `JsonSchema({"type": "object"})` is any object."""

    kind: ClassVar[str] = "the JSON schema"

    def __init__(self, schema: Mapping[str, Any] | str | bool) -> None:
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            _check_depth(parsed)
            text = json.dumps(parsed, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"{self.kind} is not JSON: {error}") from error
        if not isinstance(parsed, Mapping | bool):
            raise UsageError(f"{self.kind} is {text:.60}, must be an object")
        object.__setattr__(self, "text", text)
        self.__post_init__()


@dataclass(frozen=True)
class Regex(Constraint):
    """A text that a regular expression matches as a whole, in the syntax of Rust's regex."""

    kind: ClassVar[str] = "the regular expression"


@dataclass(frozen=True)
class Grammar(Constraint):
    """A text that a context-free grammar describes: Lark's syntax, or GBNF's (`root ::= …`)."""

    kind: ClassVar[str] = "the grammar"

    @classmethod
    def of_choices(cls, choices: Sequence[str]) -> Grammar:
        """One of these texts."""
        if isinstance(choices, str) or not choices or not all(choices):
            raise UsageError(f"choices are {choices!r:.60}, must be texts that are not empty")
        quoted = (json.dumps(entry, ensure_ascii=False) for entry in choices)
        return cls("start: " + " | ".join(quoted))


class Grammars:
    """Compiles grammars for one tokenizer and keeps the last ones. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary  # the model's, which may be padded
        self._trie: Any = None  # LLTokenizer, made for the first grammar
        self._known: OrderedDict[Constraint, Future[Compiled]] = OrderedDict()
        self._late: WeakKeyDictionary[Future[Compiled], float] = WeakKeyDictionary()
        self._lock, self._trie_lock = threading.Lock(), threading.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")

    def start(self, constraint: Constraint) -> Future[Compiled]:
        """Compile in a thread unless it is known; a grammar that failed once fails again."""
        with self._lock:
            known = self._known.pop(constraint, None)
            if known is None:
                known = self._threads.submit(self._compile, constraint)
                self._late[known] = time.monotonic() + COMPILE_SECONDS
            self._known[constraint] = known
            while len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
            return known

    def is_late(self, future: Future[Compiled]) -> bool:
        """Whether what was started is waited for no longer."""
        return time.monotonic() > self._late[future]

    def compiled(self, constraint: Constraint) -> Compiled:
        """Waits for it, or UsageError that says what is wrong with it."""
        future = self.start(constraint)
        try:
            return future.result(max(self._late[future] - time.monotonic(), 0))
        except TimeoutError as error:
            raise UsageError(
                f"{constraint.kind} was not compiled within {COMPILE_SECONDS:.0f} s: simplify it"
            ) from error
        except UsageError as error:
            raise UsageError(str(error)) from error  # its own trace: several may wait

    def _compile(self, constraint: Constraint) -> Compiled:
        try:
            return self._build(constraint)
        except UsageError:
            raise
        except BaseException as error:  # converters raise what they like, and Rust panics
            raise UsageError(f"{constraint.kind} cannot be used: {error}") from error

    def _build(self, constraint: Constraint) -> Compiled:
        llguidance = _llguidance()
        limits = llguidance.LLParserLimits(
            max_lexer_states=MOST_STATES, step_lexer_fuel=MOST_FUEL, verbose_errors=False
        )
        source, trie = _WRITERS[type(constraint)](constraint.text), self._tokens(llguidance)

        def build() -> Any:
            found = llguidance.LLMatcher(trie, source, log_level=0, limits=limits)
            if found.is_error():
                raise UsageError(f"{constraint.kind} cannot be used: {found.get_error():.1000}")
            return found

        compiled = Compiled(build, frozenset(self._tokenizer.eos_ids))
        first = compiled.matcher()
        first.fill(np.empty((1, -(-self._vocabulary // 32)), dtype=np.int32), 0)
        if first.error is not None:
            raise UsageError(f"{constraint.kind} cannot be used, no text begins so: {first.error}")
        return compiled

    def _tokens(self, llguidance: Any) -> Any:
        """The vocabulary as llguidance wants it: made once, for the first grammar."""
        with self._trie_lock:
            if self._trie is None:
                own = self._tokenizer
                if not own.eos_ids:
                    raise UsageError(
                        "no file of this model names an end token: a text of a grammar could not"
                        " end; name one in generation_config.json"
                    )
                # Ids that the tokenizer does not know are padding, which no grammar allows.
                self._trie = llguidance.LLTokenizer(
                    own.backend.to_str(), n_vocab=self._vocabulary, eos_token=list(own.eos_ids)
                )
            return self._trie


def is_available() -> bool:
    """Whether any grammar can be compiled here."""
    return find_spec("llguidance") is not None


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UsageError("grammars need llguidance: pip install 'aerie[grammar]'") from error
    return llguidance


def _check_depth(schema: Any) -> None:
    """Refuse nesting that would exhaust a recursive walk."""
    level, depth = [schema], 0
    while level := [part for entry in level for part in _parts(entry)]:
        depth += 1
        if depth > MOST_DEPTH:
            raise UsageError(f"the JSON schema is nested deeper than {MOST_DEPTH}: use $ref")


def _parts(entry: Any) -> list[Any]:
    if isinstance(entry, Mapping):
        return list(entry.values())
    return list(entry) if isinstance(entry, list | tuple) else []


def _from_schema(text: str) -> str:
    return str(
        _llguidance().LLMatcher.grammar_from_json_schema(
            text, defaults={"whitespace_pattern": BLANKS}
        )
    )


def _from_regex(text: str) -> str:
    return str(_llguidance().LLMatcher.grammar_from_regex(text))


def _from_grammar(text: str) -> str:
    if "::=" in text:
        from llguidance.gbnf_to_lark import gbnf_to_lark

        text = gbnf_to_lark(text)
    return str(_llguidance().LLMatcher.grammar_from_lark(text))


_WRITERS = {JsonSchema: _from_schema, Regex: _from_regex, Grammar: _from_grammar}
