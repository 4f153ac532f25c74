"""Hot ids: beside the draft vocabulary that all requests share, the ids of each one's prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HotIds:
    """Rows of the LM head for ids of the prompts, by seat; they are gathered when seats change.

    Columns of a seat's logits are the shared ids and then its own, in a buffer of a fixed size:
    what a seat does not fill is impossible there.
    """

    weight: Tensor  # [draft vocab, hidden], every row of the LM head
    scale: float  # of its logits
    row_of: Ids  # [vocab] row of a target id; -1: the head does not know it, or all share it
    rows: Tensor  # [seats, most, hidden]
    floor: Tensor  # [seats, 1, most] 0, or -inf where a seat has no id
    token_map: Tensor  # [seats, shared + most] i64, target id of every column

    @classmethod
    def over(
        cls, weight: Tensor, scale: float, row_of: Ids, shared: Tensor, sizes: tuple[int, int]
    ) -> HotIds:
        """No prompt seated yet; `sizes` are seats and the most ids of a prompt."""
        n_seats, most = sizes
        return cls(
            weight,
            scale,
            row_of,
            weight.new_zeros((n_seats, most, weight.shape[1])),
            weight.new_full((n_seats, 1, most), -torch.inf),
            torch.cat((shared, shared.new_zeros(most))).repeat(n_seats, 1),
        )

    def choose(self, prompt: Sequence[int]) -> Ids:
        """The ids that a prompt adds: the most frequent of it, of equals the lowest."""
        counts = np.bincount(np.fromiter(prompt, np.int64, len(prompt)))[: len(self.row_of)]
        own = np.flatnonzero((counts > 0) & (self.row_of[: len(counts)] >= 0))
        # A vocabulary is a hundred times as long as what there is to sort.
        return own[np.argsort(-counts[own], kind="stable")][: self.rows.shape[1]]

    def seat(self, chosen: Sequence[Ids]) -> None:
        """Bring the first seats in line with the requests that have them."""
        n, most = len(chosen), self.rows.shape[1]
        ids, n_own = np.zeros((n, most), np.int64), np.array([len(own) for own in chosen])
        for seat, own in enumerate(chosen):
            ids[seat, : len(own)] = own
        is_own = torch.from_numpy(np.arange(most) < n_own[:, None]).to(self.rows.device)
        rows = torch.from_numpy(np.maximum(self.row_of[ids], 0)).to(self.rows.device)
        self.rows[:n] = self.weight[rows]
        self.floor[:n, 0] = torch.where(is_own, 0.0, -torch.inf).to(self.floor.dtype)
        self.token_map[:n, self.token_map.shape[1] - most :] = torch.from_numpy(ids)

    def logits(self, shared: Tensor, normed: Tensor, batch: int) -> Tensor:
        """Logits [B * W, shared] and what the LM head read of them, [B * W, shared + most]."""
        by_seat = normed.view(batch, -1, normed.shape[-1])
        own = torch.bmm(by_seat, self.rows[:batch].transpose(1, 2)).to(shared.dtype)
        own = own * self.scale + self.floor[:batch].to(shared.dtype)
        return torch.cat((shared, own.flatten(0, 1)), dim=1)
