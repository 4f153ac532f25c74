"""Masks: which tokens a grammar allows after each verified node, and after each drafted one.

A request's matcher stands at the root of its tree. Walking the tree it steps down and back again,
so it is where it was when the verdict comes, and then follows the tokens of the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.engine.report import PARENTS, TOKENS
from aerie.engine.seat import Seat
from aerie.models.decoder import DecoderOutput
from aerie.speculation.draft import Allow
from aerie.text.grammar import Matcher

ALL = -1  # a word of bits that forbids nothing
Bits = NDArray[np.int32]  # [rows, words]


class Masks:
    """Masks of a round, a bit for every token: the host's copy, and the one that rounds read.

    Row 0 allows everything: it is for padding and for requests without a grammar. Nothing is
    allocated before somebody has one.
    """

    def __init__(self, n_seats: int, vocabulary: int, device: str) -> None:
        self.vocabulary = vocabulary
        self.said: DecoderOutput | None = None  # by the target, where it waits for its masks
        self.drafted: Tensor | None = None  # the host's copy of the noted trees
        self._is_cuda = device.startswith("cuda")
        # Of each seat, its first row; 0: it has no grammar. One more, for padding.
        self._first = torch.zeros(n_seats + 1, dtype=torch.int64, device=device)
        self._first_here = torch.zeros_like(self._first, device="cpu", pin_memory=self._is_cuda)
        self._bits = self._bits_here = torch.empty((0, -(-vocabulary // 32)), dtype=torch.int32)

    def hold(self, n_rows: int) -> bool:
        """Make room for the masks of so many rows; True if the buffers are new ones."""
        if self._bits.shape[0] > n_rows:
            return False
        shape, device = (1 + n_rows, self._bits.shape[1]), self._first.device
        self._bits_here = torch.full(shape, ALL, dtype=torch.int32, pin_memory=self._is_cuda)
        self._bits = self._bits_here.to(device)  # on a CPU the same buffer
        return True

    def hold_said(self, n_rows: int, taps: Tensor) -> bool:
        """The same, with room for what the target says of them; `taps` [.., captures, hidden]."""
        if not self.hold(n_rows):
            return False
        logits = torch.empty((n_rows, self.vocabulary), device=taps.device)
        self.said = DecoderOutput(logits, taps.new_empty((n_rows, *taps.shape[-2:])))
        return True

    def fetch(self, noted: Tensor) -> None:
        """Send the trees that wait to the host: read once what was launched before has ended."""
        if self.drafted is None:
            self.drafted = torch.empty(noted.shape, dtype=noted.dtype, pin_memory=self._is_cuda)
        self.drafted.copy_(noted, non_blocking=True)

    def write(self, seats: Sequence[Seat], noted: Tensor) -> None:
        """Make the masks of these seats' trees, and send them."""
        rows, trees = self._bits_here.numpy(), noted.numpy()
        self._first_here.zero_()
        end = 1
        for index, seat in enumerate(seats):
            if seat.matcher is not None and not seat.has_left:
                own = rows[end : end + seat.n_rows]
                _walk(seat, trees[:, index, : seat.n_rows], own)
                self._first_here[index] = end
                end += seat.n_rows
        self._first.copy_(self._first_here, non_blocking=True)
        if self._bits is not self._bits_here:
            self._bits[1:end].copy_(self._bits_here[1:end], non_blocking=True)

    def masked(self, logits: Tensor, qo_indptr: Tensor) -> Tensor:
        """Logits [rows, vocab] without what may not come next; no host values."""
        rows = torch.arange(logits.shape[0], dtype=qo_indptr.dtype, device=logits.device)
        seat = torch.searchsorted(qo_indptr, rows, right=True) - 1
        first = self._first[seat]
        index = torch.where(first > 0, first + rows - qo_indptr[seat], 0)
        return torch.where(unpacked(self._bits[index], self.vocabulary), logits, -torch.inf)


def unpacked(bits: Tensor, vocabulary: int) -> Tensor:
    """Bits [rows, words] i32 as truths [rows, vocabulary]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    spread = (bits.view(torch.uint8)[:, :, None] >> shifts) & 1
    return spread.flatten(1)[:, :vocabulary].bool()


def _walk(seat: Seat, tree: NDArray[np.int32], out: Bits) -> None:
    """The mask after every node of a tree, the root first; any for what is forbidden itself."""
    matcher, tokens = seat.matcher, tree[TOKENS].tolist()
    assert matcher is not None
    out.fill(ALL)
    children: list[list[int]] = [[] for _ in tokens]
    for row, parent in enumerate(tree[PARENTS].tolist()[1:], 1):
        children[parent].append(row)
    _write(seat, out, 0, 0)
    waiting, depth = [(row, 1) for row in children[0]], 0  # depth: steps taken from the root
    while waiting:
        row, below = waiting.pop()
        matcher.back(depth - below + 1)
        depth = below - 1
        if matcher.step(tokens[row]):
            depth = below
            _write(seat, out, row, depth)
            waiting += [(child, depth + 1) for child in children[row]]
    matcher.back(depth)


def _write(seat: Seat, out: Bits, row: int, depth: int) -> None:
    """One mask. Before `min_tokens` no end is in it, unless there is nothing else."""
    job = seat.request.job
    assert seat.matcher is not None
    seat.matcher.fill(out, row)
    if seat.seq_len + 1 - len(job.prompt) + depth < job.params.min_tokens:
        stops = np.array(job.stop_ids)
        longer = out[row].copy()
        np.bitwise_and.at(longer, stops // 32, ~np.left_shift(1, stops % 32).astype(np.int32))
        if longer.any():
            out[row] = longer


def draft_masks(
    seats: Sequence[Seat], arrays: Mapping[str, Tensor], vocabulary: int, token_map: Tensor | None
) -> Allow:
    """Masks the draft's own logits, where the host may look between its levels.

    `arrays` are those of the node store, `token_map` names the target's id of every draft token.
    """

    def allow(nodes: Tensor, logits: Tensor) -> Tensor:
        bits: Bits = np.full((nodes.numel(), -(-vocabulary // 32)), ALL, dtype=np.int32)
        tokens, parents = (arrays[name].cpu().numpy() for name in ("cumu_tokens", "prev_indexs"))
        width = nodes.shape[1]
        for row, node in enumerate(nodes.flatten().tolist()):
            index, path = row // width, list[int]()
            matcher = seats[index].matcher
            while matcher is not None and node > 0:
                path.append(int(tokens[index, node]))
                node = int(parents[index, node])
            if matcher is not None:
                _look(matcher, path[::-1], bits, row)
        allowed = unpacked(torch.from_numpy(bits).to(logits.device), vocabulary)
        if token_map is not None:
            allowed = allowed[:, token_map]
        return logits.masked_fill(~allowed, -torch.inf)

    return allow


def _look(matcher: Matcher, path: Sequence[int], out: Bits, row: int) -> None:
    """The mask after a path below the root; what is forbidden itself has no score to give."""
    n_taken = next((i for i, token in enumerate(path) if not matcher.step(token)), len(path))
    if n_taken == len(path):
        matcher.fill(out, row)
    matcher.back(n_taken)
