"""The trees of a batch side by side, and the two acceptance rules of K6 on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.kernels.pytorch.ragged import Spans, at_least_one, repeated_sibling
from aerie.kernels.pytorch.refusals import Refusals, first_true
from aerie.kernels.status import Status


@dataclass(frozen=True)
class Forest:
    """One tree per request, padded to Q rows; rows that do not exist have no parent."""

    spans: Spans
    tokens: Tensor  # [B, Q]
    parent: Tensor  # [B, Q] row within the request, -1 for none

    def path_by_match(self, target_tokens: Tensor, tree_depth: int) -> Tensor:
        """Follow the target's own tokens. [B, tree_depth + 2] rows, Q past the end"""
        batch, n_slots = self.tokens.shape
        wanted = self._of_rows(target_tokens)
        parent = self.parent.clamp_min(0)
        is_wanted = (self.parent >= 0) & (self.tokens == wanted.gather(1, parent))
        # The row after each row; column Q is the end, the one behind it is cut off.
        after = torch.full((batch, n_slots + 2), n_slots, device=parent.device)
        rows = self.spans.slots.expand(batch, n_slots)
        after.scatter_(1, torch.where(is_wanted, parent, n_slots + 1), rows)
        path = [torch.zeros(batch, 1, dtype=torch.int64, device=parent.device)]
        for _ in range(tree_depth + 1):
            path.append(after.gather(1, path[-1]))
        return torch.cat(path, dim=1)

    def path_by_coins(self, probas: Tensor, coins: Tensor, tree_depth: int) -> Tensor:
        """Accept a child where the coin falls. [B, tree_depth + 2] rows, Q past the end"""
        batch, vocab = self.tokens.shape[0], probas.shape[1]
        parent_row = self.spans.flat.gather(1, self.parent.clamp_min(0))
        entry = parent_row * vocab + self.tokens.clamp(0, vocab - 1)
        mass = at_least_one(probas).take(entry).double()  # [B, Q] of each row below its parent
        coin = coins[:, :-1].double().t().contiguous()[:, :, None]  # [tree_depth + 1, B, 1]
        path = [torch.zeros(batch, 1, dtype=torch.int64, device=probas.device)]
        for depth in range(tree_depth + 1):
            # Only children of the current node add mass, so the first sum above the coin is the
            # child that is taken; Q if there is none, and then nothing has that parent.
            running = (mass * (self.parent == path[-1])).cumsum(dim=1)
            path.append(torch.searchsorted(running, coin[depth], right=True))
        return torch.cat(path, dim=1)

    def bonus_by_match(self, target_tokens: Tensor, node: Tensor) -> Tensor:
        """The target's own token at each request's last node `node[B, 1]`. [B]"""
        return self._of_rows(target_tokens).gather(1, node)[:, 0]

    def bonus_by_coins(self, probas: Tensor, coin: Tensor, node: Tensor) -> Tensor:
        """A token of the last node's distribution without its children's tokens. [B]"""
        last = at_least_one(probas).index_select(0, self.spans.flat.gather(1, node)[:, 0])
        best = last.argmax(dim=1)
        # A minimum with 0 removes a child's token, one with infinity leaves any other as it is.
        is_child = self.parent == node
        keep = torch.zeros_like(is_child, dtype=last.dtype).masked_fill_(~is_child, torch.inf)
        last.scatter_reduce_(1, self.tokens.clamp(0, probas.shape[1] - 1), keep, "amin")
        running = last.cumsum(dim=1, dtype=torch.float64)  # [B, V]
        total = running[:, -1:]
        drawn = torch.searchsorted(running, coin[:, None] * total, right=True)[:, 0]
        return torch.where(total[:, 0] == 0, best, drawn.clamp_max_(probas.shape[1] - 1))

    def _of_rows(self, values: Tensor) -> Tensor:
        """`values[R]` of each request's rows. [B, Q]"""
        return at_least_one(values).take(self.spans.flat)


def plant(
    refusals: Refusals, spans: Spans, draft_tokens: Tensor, first_child: Tensor, sibling: Tensor
) -> Forest:
    """Trees of all requests from their links; refuses broken trees and equal siblings."""
    n_slots = spans.slots.shape[0]
    batch = spans.first.shape[0]
    rows = torch.cat([spans.slots, spans.slots])  # [2Q] of first children, then of siblings
    both = torch.stack([at_least_one(first_child), at_least_one(sibling)])
    links = both.index_select(1, spans.flat.view(-1)).view(2, batch, n_slots)
    links = links.masked_fill_(~spans.is_row, -1).transpose(0, 1).reshape(batch, 2 * n_slots)
    is_forward = (links > rows) & (links < spans.count[:, None])
    _check_links(refusals, spans, links, is_forward)

    # A row points at its previous sibling, or at Q + parent if it is a first child; entries from Q
    # on point at themselves, the last but one stands for no parent, the last is cut off.
    none = 2 * n_slots
    up = torch.arange(none + 2, device=links.device).repeat(batch, 1)
    up[:, :n_slots] = none
    above = torch.cat([spans.slots + n_slots, spans.slots]).expand(batch, none)
    up.scatter_(1, torch.where(is_forward, links, none + 1), above)
    # Pointer doubling: a round passes twice as many siblings.
    for _ in range((n_slots - 1).bit_length()):
        up = up.gather(1, up)
    parent = up[:, :n_slots] - n_slots
    parent.masked_fill_(parent == n_slots, -1)
    tokens = at_least_one(draft_tokens).take(spans.flat)
    found = repeated_sibling(parent, tokens, parent >= 0)
    refusals.add(Status.DUPLICATE_SIBLING, *found)
    return Forest(spans, tokens, parent)


def _check_links(refusals: Refusals, spans: Spans, links: Tensor, is_forward: Tensor) -> None:
    """Refuse links that point back or out, and rows that not exactly one link points at."""
    batch, n_slots = spans.is_row.shape
    is_bad = ((links != -1) & ~is_forward).view(batch, 2, n_slots).any(dim=1)
    pointed = torch.zeros(batch, n_slots + 1, dtype=torch.int64, device=links.device)
    pointed.scatter_add_(1, torch.where(is_forward, links, n_slots), is_forward.long())
    # Every row but the root has one link to it, and the root has no sibling.
    is_bad |= (pointed[:, :n_slots] != (spans.slots > 0)) & spans.is_row
    is_bad[:, 0] |= links[:, n_slots] != -1
    refusals.add(Status.BROKEN_TREE, is_bad.any(dim=1), first_true(is_bad))
