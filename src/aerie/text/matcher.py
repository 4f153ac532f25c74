"""Matchers: a grammar that was compiled follows one text and says which tokens may come next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What ends a text that goes on in a grammar no more: it is what was asked for, not a fault.
STOPPED = "the grammar stopped"
# A lexer is replaced if that takes no longer, between two rounds, than one mask may take, and if it
# lasted for so many masks: one that is spent at once would be again.
_RENEWAL_SECONDS, _LEAST_MASKS = 0.05, 256


@dataclass(eq=False)
class _Lexer:
    """What all matchers of a grammar share, whose states add up."""

    pristine: Any  # an LLMatcher that has seen nothing
    n_masks: int = 0  # made with it


class Matcher:
    """Follows one text, with steps back. `error` says why it cannot go on, once it cannot."""

    def __init__(self, lexer: _Lexer, end_ids: frozenset[int]) -> None:
        self.error: str | None = None
        self._lexer = lexer
        self._inner = lexer.pristine.deep_copy()
        self._end_ids = end_ids
        self._n_ends = 0  # taken in after the end, which llguidance does not count

    def advance(self, tokens: Sequence[int]) -> None:
        """Take in tokens that were decided; what the grammar refuses is an error of its own."""
        for token in tokens:
            if self.error is None and not self.step(token):
                self.error = f"{STOPPED} at token {token}: {_first_line(self._inner)}"

    def step(self, token: int) -> bool:
        """Take in one token if it may come next; False changes nothing."""
        if self._inner.is_stopped():
            is_end = token in self._end_ids and not self._inner.is_error()
            self._n_ends += is_end
            return is_end
        n_taken: int = self._inner.try_consume_tokens([token])
        return n_taken == 1

    def back(self, n_tokens: int) -> None:
        """Undo so many steps.

        llguidance 1.9 keeps the last mask beyond them, and recognises its place by the lexer's
        state and the number of lexemes: a text that goes on otherwise may get the mask of what was
        undone. Asked here, before another step, it keeps the mask of this place instead, which is
        right for whatever follows.
        """
        n_ends = min(n_tokens, self._n_ends)
        self._n_ends -= n_ends
        if n_tokens > n_ends:
            self._inner.rollback(n_tokens - n_ends)

    def fill(self, bits_out: NDArray[np.int32], row: int) -> None:
        """Write which tokens may come next, a bit each; everything once there is an error.

        End tokens are among them exactly where the text so far is complete.
        """
        mask = bits_out[row]
        if mask.dtype != np.int32 or not mask.flags.c_contiguous:
            raise ValueError("a mask is written as adjacent words of 32 bits")
        self._lexer.n_masks += 1
        # The library's own way in, `fill_next_token_bitmask`, takes 5 µs around it.
        self._inner.unsafe_compute_mask_ptr(mask.__array_interface__["data"][0], mask.nbytes)
        if self._inner.is_error():
            self.error = f"{STOPPED}: {_first_line(self._inner)}"
            bits_out[row] = -1


class Compiled:
    """A grammar of one tokenizer.

    One text may ask for so many states of a lexer, and hours of texts ask for more: a lexer that
    has none left refuses every text.
    """

    def __init__(self, build: Callable[[], Any], end_ids: frozenset[int]) -> None:
        began = time.perf_counter()
        self._build = build
        self._lexer = _Lexer(build())
        self._is_quick = time.perf_counter() - began < _RENEWAL_SECONDS
        self._end_ids = end_ids

    def matcher(self, tokens: Sequence[int] = ()) -> Matcher:
        """Follows a text that has these tokens so far."""
        found = Matcher(self._lexer, self._end_ids)
        found.advance(tokens)
        return found

    def renewed(self, tokens: Sequence[int]) -> Matcher:
        """The same where a lexer is spent: with another one, for all matchers from here on."""
        if self._is_quick and self._lexer.n_masks >= _LEAST_MASKS:
            self._lexer = _Lexer(self._build())
        return self.matcher(tokens)


def _first_line(inner: Any) -> str:
    return str(inner.get_error()).partition("\n")[0][:200]
