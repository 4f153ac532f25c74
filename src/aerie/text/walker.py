"""Looking ahead in a grammar: the tokens allowed after paths below the text that was decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aerie.text.matcher import STOPPED, Compiled

ALL = -1  # a word of bits that forbids nothing
_Bits = NDArray[np.int32]  # [rows, words]
Path = tuple[int, ...]  # tokens below the last one that was decided
_Found = TypeVar("_Found")


class Walker:
    """Follows a text as its matcher does, and walks trees below it, down and back again."""

    def __init__(
        self, grammar: Compiled, text: Sequence[int], floor: int, ends: Sequence[int]
    ) -> None:
        self._grammar, self._text = grammar, list(text)
        self._floor = floor  # tokens before which it shall not end
        self._ends = np.array(ends, dtype=np.int64)
        self._width = 0  # words of a mask
        self._known: dict[Path, _Bits] = {}  # masks below the text
        self._failed: dict[Path, str] = {}  # where a mask was an error, and which
        self._matcher, self._path = grammar.matcher(self._text), list[int]()
        self._asked = -1  # tokens before the last mask asked for
        if self._matcher.error is not None:
            self._begin_at(())
        self.error = self._matcher.error  # why the text cannot go on, once it cannot

    def advance(self, tokens: Sequence[int]) -> None:
        """Take in tokens that were decided; where there is no mask the text cannot go on."""
        given = tuple(tokens)
        n_taken = next((n for n in range(len(given)) if given[:n] in self._failed), len(given))
        n_there = self._stand(given[:n_taken])
        errors = (self._failed.get(given[:n]) for n in range(len(given) + 1))
        self.error = self.error or next(filter(None, errors), None)
        if self.error is None and n_there < len(given):
            self.error = f"{STOPPED} at token {given[n_there]}"
        self._text += given
        del self._path[: len(given)]
        self._known, self._failed = _below(self._known, given), _below(self._failed, given)

    def fill(self, paths: Sequence[Path], bits_out: _Bits) -> None:
        """The mask after every path; all may come after one that is forbidden, and in more rows."""
        bits_out.fill(ALL)
        self._width = bits_out.shape[1]
        refused: Path | None = None
        # What begins alike together, the longest first: what is above a fork was asked for by then.
        for row in sorted(range(len(paths)), key=paths.__getitem__, reverse=True):
            path = paths[row]
            if refused is not None and path[: len(refused)] == refused:
                continue
            if path not in self._known:
                n_there = self._stand(path)
                if n_there < len(path):
                    refused = path[: n_there + 1]
                    continue
                self._ask()
            bits_out[row] = self._known.get(path, ALL)

    def _ask(self) -> bool:
        """Make the mask of this place; False: that is an error, and the matcher is a new one."""
        path, bits = tuple(self._path), np.empty((1, self._width), dtype=np.int32)
        self._matcher.fill(bits, 0)
        if self._matcher.error is not None:
            # What others and looks ahead have seen counts against a lexer's limits.
            self._begin_at(path)
            self._matcher.fill(bits, 0)
        self._asked = len(self._text) + len(path)
        if self._matcher.error is not None:
            self._failed[path] = self._matcher.error
            if not path:
                self.error = self._matcher.error
            self._begin_at(())
            return False
        self._known[path] = self._with_no_end(bits[0]) if self._asked < self._floor else bits[0]
        return True

    def _with_no_end(self, bits: _Bits) -> _Bits:
        """A mask without end tokens, unless there is nothing else in it."""
        longer = bits.copy()
        ends = ~np.left_shift(1, self._ends % 32).astype(np.int32)
        np.bitwise_and.at(longer, self._ends // 32, ends)
        return longer if longer.any() else bits

    def _stand(self, path: Path) -> int:
        """Move to a path; how far that is possible."""
        n_same = 0
        while n_same < min(len(path), len(self._path)) and path[n_same] == self._path[n_same]:
            n_same += 1
        if n_same < len(self._path):
            self._matcher.back(len(self._path) - n_same)
            del self._path[n_same:]
        for token in path[n_same:]:
            # See `Matcher.back`.
            is_late = self._asked > len(self._text) + len(self._path)
            if (is_late and not self._ask()) or not self._takes(token):
                break
            self._path.append(token)
        return len(self._path)

    def _takes(self, token: int) -> bool:
        """Whether a token may come next, which is then taken in."""
        if self._matcher.step(token):
            return True
        path = tuple(self._path)
        # A lexer that has no states left refuses all tokens, and says why of masks alone.
        if path not in self._known and not (self._width and self._ask()):
            return False
        if not self._known[path][token // 32] >> (token % 32) & 1:
            return False
        self._begin_at(path)
        return self._matcher.step(token)

    def _begin_at(self, path: Path) -> None:
        """Follow the text, and a path, from the beginning: this lexer may be spent."""
        self._matcher = self._grammar.renewed([*self._text, *path])
        self._path, self._asked = list(path), -1


def _below(found: dict[Path, _Found], taken: Path) -> dict[Path, _Found]:
    """What was found behind some tokens, as it is found once they are decided."""
    n = len(taken)
    return {path[n:]: own for path, own in found.items() if path[:n] == taken}


def tree_paths(tokens: Sequence[int], parents: Sequence[int]) -> list[Path]:
    """The path to every node of a tree; the root is first, and parents come before children."""
    found: list[Path] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        found.append((*found[parent], token))
    return found


def climb(node: int, tokens: NDArray[np.int64], parents: NDArray[np.int64]) -> Path:
    """The path to one node."""
    path = list[int]()
    while node > 0:
        path.append(int(tokens[node]))
        node = int(parents[node])
    return tuple(reversed(path))
