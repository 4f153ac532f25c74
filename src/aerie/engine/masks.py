"""Masks: which tokens grammars allow after each verified node, and after each drafted one.

The host makes them while a model thinks: it is sent the nodes before the model's pass, and what it
made is read after it. So whatever uses masks is cut twice, where it is recorded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.engine.graphs import Graphs
from aerie.engine.report import PARENTS, TOKENS, has_ended
from aerie.engine.seat import Seat
from aerie.kernels.registry import Kernels
from aerie.kernels.report import N_CHOSEN
from aerie.speculation.store import even_ends
from aerie.text.walker import Path, climb, tree_paths

# Of a seat, its index and what was sent: the paths below its root after which it wants masks.
Read = Callable[..., list[Path]]
# What the host may do for a level while a head of 8B thinks: of the best nodes, 25 to 45 µs each.
MOST_HIDDEN, HIDDEN_SECONDS = 8, 180e-6
# Levels that the host looks at: every look cuts a graph, and few paths are accepted so far.
MOST_LEVELS = 6


class Masks:
    """Masks of rows, a bit for every token: the host's copy, and the one that rounds read.

    Mask 0 stands for none: padding and requests without a grammar have it. Nothing is allocated
    before a request has one.
    """

    def __init__(self, n_seats: int, vocabulary: int, device: str) -> None:
        self.graphs = Graphs("cpu")  # the launcher's, and its seats
        self.seats: Callable[[], Sequence[Seat]] = tuple
        self._n_words = -(-vocabulary // 32)
        self._device = device
        self._is_sent = torch.cuda.Event() if device.startswith("cuda") else None
        self._sent = torch.empty(0, dtype=torch.int64)  # the host's copy of nodes
        # What the host made lies in one piece, for one copy: the first mask of each seat, and the
        # masks. Their place is a multiple of 16 bytes from the beginning.
        self._n_seats, self._begin = n_seats, -(-n_seats // 4) * 4
        self._made = self._made_here = torch.empty(0, dtype=torch.int32)
        self._first, self._bits = self._made, self._made[:0].view(0, 1)

    def hold(self, n_rows: int, n_sent: int) -> None:
        """Make room for the masks of so many rows and for so many integers to be sent, once."""
        if not self._sent.numel():
            is_pinned, size = self._is_sent is not None, self._begin + (1 + n_rows) * self._n_words
            self._sent = torch.empty(n_sent, dtype=torch.int64, pin_memory=is_pinned)
            self._made_here = torch.zeros(size, dtype=torch.int32, pin_memory=is_pinned)
            self._made = self._made_here.to(self._device)  # on a CPU the same buffer
            self._first = self._made[: self._n_seats]
            self._bits = self._made[self._begin :].view(-1, self._n_words)

    def send(self, *parts: Tensor) -> None:
        """Let the host have integers, in one copy."""
        packed = torch.cat([part.flatten().long() for part in parts])
        self._sent[: len(packed)].copy_(packed, non_blocking=True)
        if self._is_sent is not None:
            self.graphs.cut(self._is_sent.record)

    def make(self, read: Read, shapes: Sequence[Sequence[int]], most: int | None = None) -> None:
        """Have the host make the masks of what was sent in these shapes, and send them.

        With `most`, of the first rows of each seat only: so many in all, or one each, in time.
        """
        self.graphs.cut(partial(self._make, read, shapes, most))

    def _make(self, read: Read, shapes: Sequence[Sequence[int]], most: int | None) -> None:
        # A look between two graphs: what it takes beyond the model's pass delays the whole batch.
        if self._is_sent is not None:
            self._is_sent.synchronize()
        late = time.perf_counter() + HIDDEN_SECONDS
        numbers, sent, end = self._sent.numpy(), [], 0
        for shape in shapes:
            begin, end = end, end + math.prod(shape)
            sent.append(numbers[begin:end].reshape(shape))
        made, end = self._made_here.numpy(), 1
        first, rows = made[: self._n_seats], made[self._begin :].reshape(-1, self._n_words)
        first.fill(0)
        bound = [(i, s) for i, s in enumerate(self.seats()) if s.walker and not s.has_left]
        n_each = None if most is None else max(1, most // max(1, len(bound)))
        # Where time does not suffice, others come first in the next round.
        turn = sum(seat.seq_len for _, seat in bound) % max(1, len(bound))
        for index, seat in bound[turn:] + bound[:turn]:
            if most is not None and time.perf_counter() > late:
                break
            paths = read(seat, index, *sent)
            if seat.walker is not None and paths:
                seat.walker.fill(paths[:n_each], rows[end : end + len(paths)])
                first[index] = end
                end += len(paths)
        if self._made is not self._made_here:
            n_made = self._begin + end * self._n_words
            self._made[:n_made].copy_(self._made_here[:n_made], non_blocking=True)

    def masked(
        self, kernels: Kernels, logits: Tensor, ends: Tensor, token_ids: Tensor | None = None
    ) -> Tensor:
        """Logits [rows, columns] without what may not come next (R26); no host values.

        `ends` [B+1] are those of each seat's rows, `token_ids` [1 or B, columns] name the ids.
        """
        ids = {} if token_ids is None else {"token_ids": token_ids}
        first = self._first[: len(ends) - 1]
        found = kernels["forbid_tokens"](
            logits=logits, ends=ends, first=first, bits=self._bits, **ids
        )
        left: Tensor = found.masked
        return left


def of_trees(
    seat: Seat, index: int, trees: NDArray[np.int64], lines: NDArray[np.int64]
) -> list[Path]:
    """The nodes of a noted tree; the report before it may not have been followed yet."""
    line = lines[index].tolist()
    if has_ended(line):
        return []
    news, chosen = seat.news(line), trees[[TOKENS, PARENTS], index, : line[N_CHOSEN]]
    return [(*news, *path) for path in tree_paths(*chosen.tolist())]


@dataclass(eq=False)
class Levels:
    """Masks of a draft, level by level. Below the deepest that has any, drafts are free."""

    masks: Masks
    kernels: Kernels
    known: Sequence[Tensor]  # tokens and parents of all nodes, and the report's lines: [B, ..]
    token_ids: Tensor | None  # the target's id of every draft token [1 or B, draft vocabulary]
    most: int | None  # masks of a level; None: of all nodes, however long it takes
    deepest: int  # levels with masks
    n_levels: int = 0  # so far

    def send(self, nodes: Tensor) -> None:
        """Let the host know the nodes [B, W] that are about to be fed."""
        self.n_levels += 1
        if self.n_levels <= self.deepest:
            self.masks.send(nodes, *self.known)

    def masked(self, nodes: Tensor, logits: Tensor) -> Tensor:
        """The draft's logits without what may not follow the nodes.

        A head that knows none of the allowed tokens has nothing to propose: R6 gives its children
        no probability, and they are never verified.
        """
        if self.n_levels > self.deepest:
            return logits
        shapes = [(len(nodes), part.shape[1]) for part in (nodes, *self.known)]
        self.masks.make(_of_level, shapes, self.most)
        ends = even_ends(*nodes.shape, nodes.device)
        return self.masks.masked(self.kernels, logits, ends, self.token_ids)


def _of_level(seat: Seat, index: int, *known: NDArray[np.int64]) -> list[Path]:
    """Nodes that are fed; what was decided just now, and is not followed yet, is above them."""
    nodes, tokens, parents, lines = (part[index] for part in known)
    line = lines.tolist()
    if has_ended(line):
        return []
    return [(*seat.news(line), *climb(node, tokens, parents)) for node in nodes.tolist()]
