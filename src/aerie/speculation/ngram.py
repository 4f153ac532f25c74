"""Copied paths: what followed the last time the text ended like this, as nodes of the same tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.kernels.registry import Kernels
from aerie.speculation.store import NodeStore

SEARCHED = 4096  # tokens of the text that are looked through, newest first
# A copied token starts at so much of its parent's worth, as if it had been seen so often; from
# then on it is worth what copies after a match of the same length turned out to be.
FIRST_CONFIDENCE, PRIOR = 0.6, 8.0
FORGET = 0.999  # a round


@dataclass(frozen=True, eq=False)
class CopiedPaths:
    """Adds a path from each request's own text to its tree, and learns what such paths are worth.

    Everything lies on the device of the texts: a captured round looks paths up by itself.
    """

    text: Tensor  # [table rows, positions] i32
    longest: int  # suffix that is looked up
    depth: int  # tokens copied
    tokens: Tensor  # [B, depth] i64, the paths of the last draft
    match: Tensor  # [B] i64, how long a suffix each of them followed
    seen: Tensor  # [longest + 1, 2] f32, copied tokens that were right, and that were judged

    @classmethod
    def over(cls, text: Tensor, n_seats: int, longest: int, depth: int) -> CopiedPaths:
        """Nothing learnt yet."""
        device = text.device
        seen = torch.tensor([[FIRST_CONFIDENCE * PRIOR, PRIOR]] * (longest + 1))
        return cls(
            text,
            longest,
            depth,
            torch.full((n_seats, depth), -1, dtype=torch.int64, device=device),
            torch.zeros(n_seats, dtype=torch.int64, device=device),
            seen.to(device),
        )

    def merge(
        self, kernels: Kernels, store: NodeStore, n_nodes: int, rows: Tensor, seq_len: Tensor
    ) -> int:
        """Add a path below every root; nodes stored for each request come back."""
        n = rows.shape[0]
        found = kernels["find_text_path"](
            text=self.text,
            req_pool_indices=rows,
            text_len=seq_len + 1,  # the root is committed, too
            longest=self.longest,
            path_length=self.depth,
            searched=SEARCHED,
        )
        self.tokens[:n] = found.path_tokens
        self.match[:n] = found.match_len
        worth = self.seen[:, 0] / self.seen[:, 1]
        kernels["merge_text_path"](
            cumu_tokens=store.arrays["cumu_tokens"],
            cumu_scores=store.arrays["cumu_scores"],
            cumu_deltas=store.arrays["cumu_deltas"],
            prev_indexs=store.arrays["prev_indexs"],
            path_tokens=found.path_tokens,
            path_len=found.path_len,
            confidence=worth[found.match_len],
            node_count=n_nodes,
        )
        return n_nodes + self.depth

    def learn(self, emitted: Tensor, n_emitted: Tensor) -> None:
        """Hold the paths against what was emitted, [B, run] and [B]: right until a miss."""
        n, run = emitted.shape
        width = min(run, self.depth)
        paths = self.tokens[:n, :width]
        is_known = (paths >= 0) & (torch.arange(width, device=paths.device) < n_emitted[:, None])
        is_right = ((paths == emitted[:, :width]) & is_known).cumprod(dim=1)
        # A token is judged where all before it were right.
        before = torch.cat((torch.ones_like(is_right[:, :1]), is_right[:, :-1]), dim=1)
        judged = (before * is_known).sum(dim=1).float()
        right = is_right.sum(dim=1).float()
        self.seen.mul_(FORGET).add_((1 - FORGET) * PRIOR * _first(self.seen))
        self.seen[:, 0].index_add_(0, self.match[:n], right)
        self.seen[:, 1].index_add_(0, self.match[:n], judged)


def _first(seen: Tensor) -> Tensor:
    """What a count is drawn back to while nothing is seen."""
    return torch.stack(
        (torch.full_like(seen[:, 0], FIRST_CONFIDENCE), torch.ones_like(seen[:, 1])), dim=1
    )
