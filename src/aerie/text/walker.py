"""Looking ahead in a grammar: the tokens allowed after paths below the text that was decided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aerie.text.grammar import Compiled

ALL = -1  # a word of bits that forbids nothing
Bits = NDArray[np.int32]  # [rows, words]
Path = tuple[int, ...]  # tokens below the last one that was decided


class Walker:
    """Follows a text as its matcher does, and looks at trees below it."""

    def __init__(
        self, grammar: Compiled, text: Sequence[int], floor: int, ends: Sequence[int]
    ) -> None:
        self._line = [grammar.matcher(text)]  # after the text, and after each token of the path
        self._path: list[int] = []
        self._failed: list[tuple[Path, str]] = []  # where looks ahead met an error, and which
        self._n_tokens = len(text)
        self._floor = floor  # tokens before which it shall not end
        self._ends = np.array(ends, dtype=np.int64)

    @property
    def error(self) -> str | None:
        """Why the text cannot go on, once it cannot."""
        return self._line[0].error

    def advance(self, tokens: Sequence[int]) -> None:
        """Take in tokens that were decided."""
        self._stand(())
        given = tuple(tokens)
        failed = [own for own in self._failed if given[: len(own[0])] == own[0]]
        n_taken, error = min(((len(path), why) for path, why in failed), default=(len(given), None))
        self._line[0].advance(given[:n_taken])
        if self.error is None:
            self._line[0].error = error
        self._n_tokens += len(given)
        self._failed.clear()

    def fill(self, paths: Sequence[Path], bits_out: Bits) -> None:
        """The mask after every path; all may come after one that is forbidden, and in more rows."""
        bits_out.fill(ALL)
        refused: Path = ()
        for row in sorted(range(len(paths)), key=paths.__getitem__):  # what begins alike together
            if refused and paths[row][: len(refused)] == refused:
                continue
            if self._stand(paths[row]):
                self._fill(bits_out, row)
            else:
                refused = paths[row][: len(self._path) + 1]

    def _fill(self, bits_out: Bits, row: int) -> None:
        """One mask. Before `floor` no end is in it, unless there is nothing else."""
        matcher = self._line[-1]
        matcher.fill(bits_out, row)
        if matcher.error is not None and self._path:
            self._failed.append((tuple(self._path), matcher.error))
        if self._n_tokens + len(self._path) < self._floor:
            longer = bits_out[row].copy()
            ends = ~np.left_shift(1, self._ends % 32).astype(np.int32)
            np.bitwise_and.at(longer, self._ends // 32, ends)
            if longer.any():
                bits_out[row] = longer

    def _stand(self, path: Path) -> bool:
        """Move to a path; False, somewhere on it: it is forbidden."""
        n_same = 0
        while n_same < min(len(path), len(self._path)) and path[n_same] == self._path[n_same]:
            n_same += 1
        del self._path[n_same:], self._line[n_same + 1 :]
        for token in path[n_same:]:
            ahead = self._line[-1].copy()
            if not ahead.step(token):
                return False
            self._line.append(ahead)
            self._path.append(token)
        return True


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
