"""A seat of the batch, as the last report left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.report import N_CHOSEN, N_EMITTED, REPORT, SEQ_LEN
from aerie.requests.request import Request
from aerie.text.walker import Walker


@dataclass(eq=False)
class Seat:
    """A request in its seat, as the last report left it."""

    request: Request
    seq_len: int
    n_seen: int  # leading positions whose KV the draft has
    n_rows: int = 1  # of the tree that waits for its verification
    n_kept: int = 1  # rows that the next draft takes in
    is_behind: bool = False  # rounds without drafts left features that wait in the history
    lost_from: int | None = None  # from here on the draft's KV has a gap, for good
    has_ended: bool = False  # a report said so
    is_gone: bool = False  # its request left while a round was under way
    hot: NDArray[np.int64] | None = None  # ids its prompt adds to the draft vocabulary
    walker: Walker | None = None  # of its grammar: it has taken in the root and all before it

    def follow(self, line: list[int]) -> None:
        """Take in a line of a report."""
        if self.walker is not None:
            self.walker.advance(self.news(line))
        self.n_kept = line[SEQ_LEN] - self.seq_len
        self.seq_len, self.n_rows = line[SEQ_LEN], line[N_CHOSEN]

    def news(self, line: Sequence[int]) -> Sequence[int]:
        """Tokens of a line, unless it was told in the half before."""
        is_new = line[SEQ_LEN] > self.seq_len
        return line[len(REPORT) : len(REPORT) + line[N_EMITTED]] if is_new else ()

    @property
    def has_left(self) -> bool:
        """Whether nothing that is under way decides for it any more."""
        return self.has_ended or self.is_gone

    @property
    def seen(self) -> int:
        """Leading positions of the text that another request may reuse."""
        return self.n_seen if self.lost_from is None else min(self.n_seen, self.lost_from)
