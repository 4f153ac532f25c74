"""Trees of one request that are chains, and verdicts on them; shared, not a test itself."""

from __future__ import annotations

import torch

from aerie.speculation.tree import DraftTree, Verdict


def chain(scores: list[float], deepest: int = 100) -> DraftTree:
    """A chain with these path scores, the root's first."""
    n = len(scores)
    return DraftTree(
        tokens=torch.arange(n)[None],
        scores=torch.tensor([scores]),
        depths=torch.arange(n)[None].clamp(max=deepest),
        parents=torch.arange(-1, n - 1)[None],
        node_count=torch.tensor([n]),
    )


def accepting(n_accepted: int, n_rows: int) -> Verdict:
    """The first so many rows behind the root are accepted."""
    path = [row if row <= n_accepted else -1 for row in range(n_rows)]
    return Verdict(
        accept_index=torch.tensor([path]),
        accept_count=torch.tensor([n_accepted]),
        bonus_token=torch.tensor([0]),
        status=torch.tensor([0], dtype=torch.int32),
    )
