"""Admission: everything about a request is checked here, before anything of it is queued."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from aerie.config import EngineConfig
from aerie.config.values import read_integers, require
from aerie.errors import UsageError
from aerie.requests.params import MAX_STOPS, SamplingParams


@dataclass(frozen=True)
class Limits:
    """What a model and its memory allow one request."""

    context: int
    vocabulary: int
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """A request that can be run; nothing about it can fail any more but its numbers."""

    tokens: tuple[int, ...]
    params: SamplingParams
    seed: int
    length_limit: int  # most tokens, prompt included
    stop_ids: tuple[int, ...]

    def another(self, prompt: Any, params: SamplingParams) -> Asked | None:
        """One more sample of this, if these are its very prompt and parameters."""
        is_same = prompt is self.tokens and params is self.params
        return replace(self, seed=_seed(params)) if is_same else None


def _read_prompt(prompt: Any) -> tuple[int, ...]:
    """Token ids in any container; bytes and booleans are refused, for they look like ids."""
    if isinstance(prompt, str | bytes | bytearray | memoryview):
        raise UsageError(f"the prompt is {prompt!r:.60}, must be token ids: encode the text first")
    # One call for a whole array: reading a tensor id by id takes a second for a long one.
    listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    return read_integers("the prompt", listed)


def _seed(params: SamplingParams) -> int:
    return secrets.randbits(63) if params.seed is None else params.seed


def check_request(
    prompt: Any, params: SamplingParams, config: EngineConfig, limits: Limits, room: Room
) -> Asked:
    """What is to be run, or UsageError with the value, the limit and what to do."""
    tokens = _read_prompt(prompt)
    require(bool(tokens), "the prompt is empty: give at least one token")
    require(
        len(tokens) < limits.context,
        f"the prompt has {len(tokens)} tokens, the context holds {limits.context}:"
        " shorten it or use a model with a longer context",
    )
    _check_ids((*tokens, *params.stop_token_ids, *params.logit_bias), limits.vocabulary)
    length_limit = min(len(tokens) + params.max_tokens, limits.context)
    room.check(length_limit)
    filters = params.top_k or params.top_p < 1 or params.min_p or params.has_penalties
    is_shaped = bool(filters or params.logit_bias or params.min_tokens or params.grammar)
    require(
        config.speculation.rule != "coins" or not is_shaped,
        "rule coins takes temperature and seed only; use rule match for the other options",
    )
    require(
        params.grammar is None or not params.ignore_eos,
        "ignore_eos does not go with a grammar: its text ends where it is complete",
    )
    stops = params.stop_token_ids + (() if params.ignore_eos else limits.eos_ids)
    require(
        not params.min_tokens or len(stops) <= MAX_STOPS,
        f"min_tokens knows {MAX_STOPS} stop ids at most, this request has {len(stops)}",
    )
    return Asked(
        tokens=tokens,
        params=params,
        seed=_seed(params),
        length_limit=length_limit,
        stop_ids=tuple(dict.fromkeys(stops)),
    )


class Pages(Protocol):
    """Memory as far as one request is held against it."""

    @property
    def n_pages(self) -> int:
        """Pages in all, the inert one included."""
        ...

    @property
    def page_size(self) -> int:
        """Positions of a page."""
        ...


@dataclass(frozen=True, eq=False)
class Room:
    """The KV memory one request can have at the most."""

    ledger: Pages
    scratch: int  # positions a round may use beyond the text

    def check(self, length_limit: int) -> None:
        """Refuse a text that would not fit if it had the whole memory to itself."""
        needed = length_limit + self.scratch
        available = (self.ledger.n_pages - 1) * self.ledger.page_size
        require(
            needed <= available,
            f"this request may need {needed} KV slots, the pool has {available}:"
            " raise cache.n_pages or lower max_tokens",
        )


def _check_ids(ids: Iterable[int], vocabulary: int) -> None:
    wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise UsageError(f"token id {wrong} is outside the vocabulary of {vocabulary}")
