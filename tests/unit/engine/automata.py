"""Grammars of a small vocabulary without any library: what follows is drawn from the tokens before.

Shared, not a test itself. An automaton is a constraint and its own compiled form.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aerie.engine.engine import EngineCore
from aerie.requests.params import SamplingParams
from aerie.text.grammar import Constraint
from tests.unit.engine.cores import LIMITS

(END,) = LIMITS.eos_ids
PIECES = (1, 2, 6, 20, 40)  # tokens that may follow


@cache
def following(seed: str, last: tuple[int, ...], place: int) -> frozenset[int]:
    """The tokens after a text that ends so; some texts are complete, some can only end."""
    if END in last:
        return frozenset({END})
    rng = random.Random(f"{seed}/{last}/{place}")
    others = [token for token in range(LIMITS.vocabulary) if token != END]
    found = set(rng.sample(others, rng.choice(PIECES)))
    if place and rng.random() < 0.15:
        found = {END} if rng.random() < 0.3 else found | {END}
    return frozenset(found)


@dataclass(frozen=True)
class Automaton(Constraint):
    """Allows what its seed says."""

    kind: ClassVar[str] = "the automaton"

    def after(self, tokens: Sequence[int]) -> frozenset[int]:
        """What may follow."""
        return following(self.text, tuple(tokens[-2:]), min(len(tokens), 1))

    def matcher(self, tokens: Sequence[int] = ()) -> Any:
        """Follows a text, as those of the library do."""
        found = AutomatonMatcher(self)
        found.advance(tokens)
        return found

    renewed = matcher


class AutomatonMatcher:
    """Keeps the whole text, so that nothing can go wrong with steps back."""

    def __init__(self, own: Automaton) -> None:
        self.error: str | None = None
        self.tokens: list[int] = []
        self._own = own

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.error is None and not self.step(token):
                self.error = f"the automaton stopped at token {token}"

    def step(self, token: int) -> bool:
        is_allowed = token in self._own.after(self.tokens)
        if is_allowed:
            self.tokens.append(token)
        return is_allowed

    def back(self, n_tokens: int) -> None:
        assert n_tokens <= len(self.tokens)
        del self.tokens[len(self.tokens) - n_tokens :]

    def fill(self, bits_out: NDArray[np.int32], row: int) -> None:
        words = np.zeros(bits_out.shape[1] * 32, dtype=np.uint8)
        words[list(self._own.after(self.tokens))] = 1
        bits_out[row] = np.packbits(words, bitorder="little").view(np.int32)


def submit(engine: EngineCore, prompt: list[int], params: SamplingParams) -> int:
    """With the grammar of the parameters, which is compiled by nature."""
    grammar: Any = params.grammar
    return engine.submit(prompt, params, grammar=grammar)
