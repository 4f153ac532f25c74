"""PyTorch text paths: R13 what followed a text's ending before, R14 as nodes of the tree."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_text import FoundPath, MergedPath


@takes_call
def find_text_path(call: FoundPath) -> dict[str, Tensor]:
    """R13: the longest known suffix, its latest earlier occurrence, what followed it."""
    searched = call.searched
    device, searched = call.text.device, min(searched, call.text.shape[1])
    table_row, length = call.req_pool_indices[:, None], call.text_len[:, None]
    start = (length - searched).clamp_min(0)

    def tokens(position: Tensor) -> Tensor:
        return call.text[table_row, position.clamp(0, call.text.shape[1] - 1)]

    # An occurrence that ends before position `end`: how many tokens up to there are the suffix's.
    end = start + 1 + torch.arange(searched, device=device)  # [B, searched]
    is_equal = end < length
    matched = torch.zeros_like(end)
    for back in range(1, call.longest + 1):
        is_equal = is_equal & (end - back >= start)
        is_equal = is_equal & (tokens(end - back) == tokens(length - back))
        matched += is_equal
    # The longest, of several the latest: both are in one number.
    best = (matched * searched + torch.arange(searched, device=device)).argmax(1, keepdim=True)
    match_len = matched.gather(1, best)
    step = torch.arange(call.path_length, device=device)
    position = end.gather(1, best) + step
    is_path = (position < length) & (match_len > 0)
    return {
        "path_tokens": torch.where(is_path, tokens(position).long(), -1),
        "path_len": is_path.sum(dim=1),
        "match_len": match_len[:, 0],
    }


@takes_call
def merge_text_path(call: MergedPath) -> dict[str, Tensor]:
    """R14: walk what is there, append the rest."""
    longest, device = call.path_tokens.shape[1], call.path_tokens.device
    node_at = _walked(call)
    n_walked = (node_at > 0).sum(dim=1, keepdim=True)
    depth = torch.arange(longest + 1, device=device)  # of the path's nodes, the root's first
    is_new = (depth > n_walked) & (depth <= call.path_len[:, None])
    scores = call.cumu_scores.gather(1, node_at) * (depth <= n_walked)
    is_scored = (scores > 0) | (depth == 0)
    base = torch.where(is_scored, depth, 0).cummax(dim=1).values
    each = call.confidence.double()[:, None].expand(-1, longest)
    powers = pad(each, (1, 0), value=1.0).cumprod(1)
    worth = scores.gather(1, base).double() * powers.gather(1, depth - base)
    # Nodes that keep their score write it again; the root stands in for what is not walked.
    worth = torch.where(is_scored, scores, worth.float())
    walked = torch.where(depth <= n_walked, worth, call.cumu_scores[:, :1])
    call.cumu_scores.scatter_(1, node_at, walked)

    # New nodes: those of the path that were not walked over, moved to the front. [B, T]
    own = (n_walked + 1 + depth[:-1]).clamp_max(longest)
    is_used = is_new.gather(1, own) & (depth[:-1] < longest - n_walked)
    left = node_at.gather(1, n_walked)
    above = torch.where(depth[:-1] > 0, call.node_count - 1 + depth[:-1], left)
    new = slice(call.node_count, call.node_count + longest)
    call.cumu_tokens[:, new] = call.path_tokens.gather(1, own - 1) * is_used
    call.cumu_scores[:, new] = worth.gather(1, own) * is_used
    call.cumu_deltas[:, new] = own * is_used
    call.prev_indexs[:, new] = torch.where(is_used, above, -1)
    return {"n_added": is_used.sum(dim=1)}


def _walked(call: MergedPath) -> Tensor:
    """The node that the path walks over at each depth, 0 where it has left the tree. [B, T+1]"""
    old, path_tokens = slice(0, call.node_count), call.path_tokens
    tokens, depths = call.cumu_tokens[:, old], call.cumu_deltas[:, old]
    parents = call.prev_indexs[:, old]
    (batch, n_nodes), longest = tokens.shape, path_tokens.shape[1]
    ids = torch.arange(n_nodes, device=tokens.device)
    above = parents.clamp_min(0)
    expected = path_tokens.gather(1, (depths - 1).clamp(0, longest - 1))
    is_good = (tokens == expected) & (depths > 0) & (depths <= call.path_len[:, None])
    is_good &= (depths == depths.gather(1, above) + 1) & (parents >= 0)
    # Of several such children of one node the first.
    first = torch.full_like(tokens, n_nodes)
    first.scatter_reduce_(1, above, torch.where(is_good, ids, n_nodes), "amin")
    is_good &= ids == first.gather(1, above)
    is_good[:, 0] = True
    # Pointer doubling: after n rounds a node knows of 2^n - 1 of its ancestors.
    for _ in range(longest.bit_length()):
        is_good = is_good & is_good.gather(1, above)
        above = above.gather(1, above)
    # What is not on the path goes to a column that is cut off.
    at = torch.where(is_good, depths.clamp(0, longest), longest + 1)
    node_at = tokens.new_zeros((batch, longest + 2)).scatter_(1, at, ids.expand(batch, -1))
    return node_at[:, :-1]
