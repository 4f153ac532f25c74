"""The node store of a round while it grows, and the frontier that is being expanded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.kernels.registry import Kernels
from aerie.speculation.policy import TreeShape
from aerie.speculation.tree import DraftTree


@dataclass(eq=False)
class Level:
    """The frontier that is being expanded."""

    ids: Tensor  # [B, W] i64
    scores: Tensor  # [B, W] f32
    tokens: Tensor  # [B, W] i64
    hidden: Tensor  # [B*W, hidden]
    mask: Tensor  # [B, W, F] bool
    widths: tuple[int, ...]  # nodes fed to the draft at each level so far, this one included

    @property
    def width(self) -> int:
        """Nodes of this level, per request."""
        return self.ids.shape[1]

    @classmethod
    def first(cls, hidden: Tensor, shape: TreeShape) -> Level:
        batch, device = hidden.shape[0], hidden.device
        ids = torch.zeros((batch, 1), dtype=torch.int64, device=device)
        scores = torch.ones((batch, 1), device=device)
        columns = shape.depth * shape.top_k
        mask = torch.zeros((batch, 1, columns), dtype=torch.bool, device=device)
        return cls(ids, scores, ids, hidden, mask, ())

    def next(self, layer: Any, state: Any, width: int) -> Level:
        """The best children become the frontier."""
        hidden = layer.output_hidden[:, :width]
        return Level(
            ids=layer.cache_topk_indices[:, :width],
            scores=state.output_scores[:, :width],
            tokens=state.output_tokens[:, :width],
            hidden=hidden.reshape(-1, hidden.shape[-1]),
            mask=state.output_tree_mask[:, :width],
            widths=(*self.widths, width),
        )


@dataclass(eq=False)
class DraftStore:
    """The node store of a batch while it grows."""

    arrays: dict[str, Tensor]  # [B, N], by the names of K2's card
    sort_scores: Tensor  # [B, M] f32
    shape: TreeShape
    count: int

    @classmethod
    def rooted(cls, roots: Tensor, shape: TreeShape) -> DraftStore:
        size, device = (roots.shape[0], shape.capacity), roots.device
        links = ("prev_indexs", "next_indexs", "side_indexs")
        arrays = {name: torch.full(size, -1, dtype=torch.int64, device=device) for name in links}
        for name in ("cumu_tokens", "cumu_deltas"):
            arrays[name] = torch.zeros(size, dtype=torch.int64, device=device)
        arrays["cumu_scores"] = torch.zeros(size, device=device)
        arrays["cumu_tokens"][:, 0] = roots
        arrays["cumu_scores"][:, 0] = 1.0
        sort_scores = torch.zeros((size[0], shape.verify), device=device)
        sort_scores[:, 0] = 1.0
        return cls(arrays, sort_scores, shape, 1)

    def add(self, kernels: Kernels, layer: Any, level: Level) -> Any:
        """Store one layer with K2; the next frontier's candidates come back."""
        state = kernels["update_cumu_draft_state"](
            **self.arrays,
            sort_scores=self.sort_scores,
            curr_layer_scores=layer.curr_layer_scores,
            topk_tokens=layer.mapped_tokens,
            sort_layer_scores=layer.sort_layer_scores,
            sort_layer_indices=layer.sort_layer_indices,
            frontier_indexs=level.ids,
            input_tree_mask=level.mask,
            cumu_count=self.count,
            verify_num=self.shape.verify,
            fed_count=sum(level.widths),
        )
        self.count += layer.curr_layer_scores.shape[1]
        return state

    def gains(self, kernels: Kernels, state: Any) -> NDArray[np.float32]:
        """What verifying the best nodes of the last layer adds (K3)."""
        found = kernels["calculate_work_deltas"](
            work_scores=state.work_scores,
            node_top_k=self.shape.top_k,
            verify_num=self.shape.verify,
        )
        # The host decides layer by layer: on a GPU this is its read of the layer.
        gains: NDArray[np.float32] = torch.as_tensor(found.G).cpu().numpy()
        return gains

    def tree(self, count: int) -> DraftTree:
        """The first `count` nodes of every request, as a value."""
        batch, device = self.sort_scores.shape[0], self.sort_scores.device
        return DraftTree(
            tokens=self.arrays["cumu_tokens"][:, :count],
            scores=self.arrays["cumu_scores"][:, :count],
            depths=self.arrays["cumu_deltas"][:, :count],
            parents=self.arrays["prev_indexs"][:, :count],
            node_count=torch.full((batch,), count, dtype=torch.int64, device=device),
        )
