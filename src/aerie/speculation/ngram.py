"""Copied paths: what followed where the text read like its ending, as nodes of the same tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.kernels.registry import Kernels
from aerie.speculation.store import NodeStore

# Two lookups, by the tokens looked through, newest first, and the longest suffix looked up; None:
# as long as configured. The longest match may lie anywhere in a prompt; beside it the newest place
# that reads like the last tokens, for what the text itself has begun to do differently.
LOOKUPS: tuple[tuple[int, int | None], ...] = ((1 << 16, None), (1 << 12, 2))
# A copied token starts at so much of its parent's worth, as if it had been seen so often; from
# then on it is worth what copies after a match of the same length turned out to be.
FIRST_CONFIDENCE, PRIOR = 0.6, 8.0
FORGET = 0.999  # a round


@dataclass(frozen=True, eq=False)
class CopiedPaths:
    """Adds paths from each request's own text to its tree, and learns what such paths are worth.

    Everything lies on the device of the texts: a captured round looks paths up by itself.
    """

    text: Tensor  # [table rows, positions] i32
    longest: int  # suffix that is looked up
    depth: int  # tokens copied
    tokens: Tensor  # [lookups, B, depth] i64, the paths of the last draft
    match: Tensor  # [lookups, B] i64, how long a suffix each of them followed
    # [lookups, longest + 1, 2] f32, copied tokens that were right, and that were judged
    seen: Tensor

    @classmethod
    def over(cls, text: Tensor, n_seats: int, longest: int, depth: int) -> CopiedPaths:
        """Nothing learnt yet."""
        device, n = text.device, len(LOOKUPS)
        seen = torch.tensor([FIRST_CONFIDENCE * PRIOR, PRIOR])
        return cls(
            text,
            longest,
            depth,
            torch.full((n, n_seats, depth), -1, dtype=torch.int64, device=device),
            torch.zeros((n, n_seats), dtype=torch.int64, device=device),
            seen.repeat(n, longest + 1, 1).to(device),
        )

    def merge(
        self, kernels: Kernels, store: NodeStore, n_nodes: int, rows: Tensor, seq_len: Tensor
    ) -> int:
        """Add paths below every root; nodes stored for each request come back."""
        n = rows.shape[0]
        for lookup, (searched, longest) in enumerate(LOOKUPS):
            found = kernels["find_text_path"](
                text=self.text,
                req_pool_indices=rows,
                text_len=seq_len + 1,  # the root is committed, too
                longest=min(longest or self.longest, self.longest),
                path_length=self.depth,
                searched=searched,
            )
            self.tokens[lookup, :n] = found.path_tokens
            self.match[lookup, :n] = found.match_len
            seen = self.seen[lookup]
            kernels["merge_text_path"](
                cumu_tokens=store.arrays["cumu_tokens"],
                cumu_scores=store.arrays["cumu_scores"],
                cumu_deltas=store.arrays["cumu_deltas"],
                prev_indexs=store.arrays["prev_indexs"],
                path_tokens=found.path_tokens,
                path_len=found.path_len,
                confidence=(seen[:, 0] / seen[:, 1])[found.match_len],
                node_count=n_nodes,
            )
            n_nodes += self.depth
        return n_nodes

    def learn(self, emitted: Tensor, n_emitted: Tensor) -> None:
        """Hold the paths against what was emitted, [B, run] and [B]: right until a miss."""
        n, run = emitted.shape
        width = min(run, self.depth)
        paths = self.tokens[:, :n, :width]
        is_known = (paths >= 0) & (torch.arange(width, device=paths.device) < n_emitted[:, None])
        is_right = ((paths == emitted[:, :width]) & is_known).cumprod(dim=2)
        # A token is judged where all before it were right.
        before = torch.cat((torch.ones_like(is_right[..., :1]), is_right[..., :-1]), dim=2)
        judged = (before * is_known).sum(dim=2).float()
        found = torch.stack((is_right.sum(dim=2).float(), judged), dim=2)
        # Drawn back to what a count is while nothing is seen.
        for part, first in ((0, FIRST_CONFIDENCE), (1, 1.0)):
            self.seen[..., part].mul_(FORGET).add_((1 - FORGET) * PRIOR * first)
        for seen, match, own in zip(self.seen, self.match, found, strict=True):
            seen.index_add_(0, match[:n], own)


def n_copied(depth: int) -> int:
    """Nodes that copied paths add to a tree at most."""
    return len(LOOKUPS) * depth
