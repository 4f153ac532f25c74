"""Masks: which tokens grammars allow after each verified node, and after each drafted one.

The host makes them while a model thinks: it is sent the nodes before the model's pass, and what it
made is read after it. So whatever uses masks is cut twice, where it is recorded.
"""

from __future__ import annotations

import math
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
from aerie.speculation.store import even_ends
from aerie.text.walker import ALL, Path, climb, tree_paths

# Of a seat, its index and what was sent: the paths below its root after which it wants masks.
Read = Callable[..., list[Path]]
# Masks of a level that the host makes while a head of 8B thinks, some 200 µs; of the best nodes.
MOST_HIDDEN = 16


class Masks:
    """Masks of rows, a bit for every token: the host's copy, and the one that rounds read.

    Row 0 allows everything: it is for padding and for requests without a grammar. Nothing is
    allocated before somebody has one.
    """

    def __init__(self, n_seats: int, vocabulary: int, device: str) -> None:
        self.graphs = Graphs("cpu")  # the launcher's, and its seats
        self.seats: Callable[[], Sequence[Seat]] = tuple
        self._vocabulary = vocabulary
        self._is_cuda = device.startswith("cuda")
        self._is_sent = torch.cuda.Event() if self._is_cuda else None
        self._sent = torch.empty(0, dtype=torch.int64)  # the host's copy of nodes
        # Of each seat, its first row; 0: it has no grammar. One more, for padding.
        self._first = torch.zeros(n_seats + 1, dtype=torch.int64, device=device)
        self._first_here = torch.zeros_like(self._first, device="cpu", pin_memory=self._is_cuda)
        self._bits = self._bits_here = torch.empty((0, -(-vocabulary // 32)), dtype=torch.int32)

    def hold(self, n_rows: int, n_sent: int) -> None:
        """Make room for the masks of so many rows and for so many integers to be sent, once."""
        if not self._sent.numel():
            self._sent = torch.empty(n_sent, dtype=torch.int64, pin_memory=self._is_cuda)
            shape, device = (1 + n_rows, self._bits.shape[1]), self._first.device
            self._bits_here = torch.full(shape, ALL, dtype=torch.int32, pin_memory=self._is_cuda)
            self._bits = self._bits_here.to(device)  # on a CPU the same buffer

    def send(self, *parts: Tensor) -> None:
        """Let the host have integers, in one copy."""
        packed = torch.cat([part.flatten().long() for part in parts])
        self._sent[: len(packed)].copy_(packed, non_blocking=True)
        if self._is_sent is not None:
            self.graphs.cut(self._is_sent.record)

    def make(self, read: Read, shapes: Sequence[Sequence[int]], most: int | None = None) -> None:
        """Have the host make the masks of what was sent in these shapes, and send them.

        With `most`, of the first rows of each seat only: so many in all, or one each.
        """
        self.graphs.cut(partial(self._make, read, shapes, most))

    def _make(self, read: Read, shapes: Sequence[Sequence[int]], most: int | None) -> None:
        if self._is_sent is not None:
            self._is_sent.synchronize()
        sizes = [math.prod(shape) for shape in shapes]
        parts = self._sent[: sum(sizes)].split(sizes)
        sent = [part.view(*shape).numpy() for part, shape in zip(parts, shapes, strict=True)]
        rows, end = self._bits_here.numpy(), 1
        self._first_here.zero_()
        bound = [(i, s) for i, s in enumerate(self.seats()) if s.walker and not s.has_left]
        n_each = None if most is None else max(1, most // max(1, len(bound)))
        for index, seat in bound:
            paths = read(seat, index, *sent)
            if seat.walker is not None and paths:
                seat.walker.fill(paths[:n_each], rows[end : end + len(paths)])
                self._first_here[index] = end
                end += len(paths)
        self._first.copy_(self._first_here, non_blocking=True)
        if self._bits is not self._bits_here:
            self._bits[1:end].copy_(self._bits_here[1:end], non_blocking=True)

    def masked(self, logits: Tensor, ends: Tensor, token_map: Tensor | None = None) -> Tensor:
        """Logits [rows, vocab] without what may not come next; no host values.

        `ends` [B+1] are those of each seat's rows, `token_map` names the id of every column, for
        all seats or by seat.
        """
        rows = torch.arange(logits.shape[0], dtype=ends.dtype, device=logits.device)
        seat = torch.searchsorted(ends, rows, right=True) - 1
        first = self._first[seat]
        index = torch.where(first > 0, first + rows - ends[seat], 0)
        shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
        spread = (self._bits[index].view(torch.uint8)[:, :, None] >> shifts) & 1
        allowed = spread.flatten(1)[:, : self._vocabulary].bool()
        if token_map is not None:
            is_shared = token_map.dim() == 1
            allowed = allowed[:, token_map] if is_shared else allowed.gather(1, token_map[seat])
        return torch.where(allowed, logits, -torch.inf)


def of_trees(seat: Seat, index: int, trees: NDArray[np.int64]) -> list[Path]:
    """The nodes of a noted tree."""
    return tree_paths(*trees[[TOKENS, PARENTS], index, : seat.n_rows].tolist())


@dataclass(frozen=True, eq=False)
class Levels:
    """Masks of a draft, level by level."""

    masks: Masks
    known: Sequence[Tensor]  # tokens and parents of all nodes, and the report's lines: [B, ..]
    token_map: Tensor | None  # the target's id of every draft token, for all seats or by seat
    most: int | None

    def send(self, nodes: Tensor) -> None:
        """Let the host know the nodes [B, W] that are about to be fed."""
        self.masks.send(nodes, *self.known)

    def masked(self, nodes: Tensor, logits: Tensor) -> Tensor:
        """The draft's logits without what may not follow the nodes."""
        shapes = [(len(nodes), part.shape[1]) for part in (nodes, *self.known)]
        self.masks.make(_of_level, shapes, self.most)
        masked = self.masks.masked(logits, even_ends(*nodes.shape, nodes.device), self.token_map)
        # A head that knows none of the allowed tokens proposes what it likes.
        return torch.where(masked.isneginf().all(dim=1, keepdim=True), logits, masked)


def _of_level(seat: Seat, index: int, *known: NDArray[np.int64]) -> list[Path]:
    """Nodes that are fed; what was decided just now, and is not followed yet, is above them."""
    nodes, tokens, parents, lines = (part[index] for part in known)
    line = lines.tolist()
    if has_ended(line):
        return []
    return [(*seat.news(line), *climb(node, tokens, parents)) for node in nodes.tolist()]
