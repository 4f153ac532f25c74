"""PyTorch preview: R20 to R23 blocks of the KV and their copy, R24 the run it leaves."""

from __future__ import annotations

import torch
from torch import Tensor

BEHIND = -3e38  # bound of a block behind the text


def weigh_kv_blocks(
    *,
    queries: Tensor,
    keys: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_len: Tensor,
    block_size: int,
    n_blocks: int,
) -> dict[str, Tensor]:
    """R20: softmax of every query head, summed by block."""
    slots, is_real = _slots(req_to_token, req_pool_indices, seq_len, n_blocks * block_size)
    n_kv = keys.shape[2]
    found = queries.new_zeros((*queries.shape[:2], n_kv, n_blocks), dtype=torch.float32)
    for layer, own in enumerate(queries.unflatten(2, (n_kv, queries.shape[2] // n_kv))):
        seen = keys[layer][slots].permute(0, 2, 3, 1).float()  # [B, G, D, positions]
        scores = torch.matmul(own.float(), seen)
        scores = scores.masked_fill(~is_real[:, None, None], -torch.inf)
        # A text without tokens has no mass, and softmax of nothing is not a number.
        mass = torch.softmax(scores, dim=-1).nan_to_num(0.0).sum(dim=2)
        found[layer] = mass.unflatten(-1, (n_blocks, block_size)).sum(dim=-1)
    return {"block_scores": found}


def bound_kv_blocks(
    *,
    queries: Tensor,
    keys: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_len: Tensor,
    block_size: int,
    n_blocks: int,
) -> dict[str, Tensor]:
    """R21: a query's products with the extremes of every block."""
    slots, is_real = _slots(req_to_token, req_pool_indices, seq_len, n_blocks * block_size)
    is_block = is_real[:, ::block_size]
    n_kv = keys.shape[2]
    found = queries.new_zeros((*queries.shape[:2], n_kv, n_blocks), dtype=torch.float32)
    for layer, own in enumerate(queries.unflatten(2, (n_kv, queries.shape[2] // n_kv))):
        seen = keys[layer][slots].float().unflatten(1, (n_blocks, block_size))
        hidden = ~is_real.unflatten(1, (n_blocks, block_size))[..., None, None]
        products = [
            torch.matmul(own.float(), extreme.permute(0, 2, 3, 1))  # [B, G, Q, blocks]
            for extreme in (
                seen.masked_fill(hidden, -torch.inf).amax(dim=2),
                seen.masked_fill(hidden, torch.inf).amin(dim=2),
            )
        ]
        bound = torch.maximum(*products).mean(dim=2)
        found[layer] = torch.where(is_block[:, None], bound, BEHIND)
    return {"block_scores": found}


def _slots(table: Tensor, rows: Tensor, seq_len: Tensor, n_positions: int) -> tuple[Tensor, Tensor]:
    """Slots of so many positions of each request [B, positions] i64, and which are of the text."""
    position = torch.arange(n_positions, device=table.device)
    is_real = position < seq_len[:, None]
    listed = table[rows[:, None], position.clamp_max(table.shape[1] - 1)].long()
    # Any slot will do behind the text; what the table lists there may be none.
    return torch.where(is_real, listed, 0), is_real


def choose_kv_blocks(
    *,
    block_scores: Tensor,
    seq_len: Tensor,
    block_size: int,
    n_sink: int,
    n_retrieval: int,
    n_window: int,
) -> dict[str, Tensor]:
    """R22: sinks, the best between, and the window."""
    n_chosen, n_blocks = n_sink + n_retrieval + n_window, block_scores.shape[-1]
    block = torch.arange(n_blocks, device=block_scores.device)
    seq_len = seq_len.clamp(0, n_blocks * block_size)
    n_own = (seq_len + block_size - 1) // block_size
    is_own = block < n_own[:, None]
    is_fixed = (block < n_sink) | (block >= (n_own - n_window)[:, None])
    scores = block_scores.masked_fill(is_fixed[None, :, None], torch.inf)
    scores = scores.masked_fill(~is_own[None, :, None], -torch.inf)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :n_chosen]
    best = torch.where(is_own[None, :, None].expand_as(scores).gather(-1, best), best, n_blocks)
    best = best.sort(dim=-1).values
    found = best.new_full((*best.shape[:3], n_chosen), -1, dtype=torch.int32)
    found[..., : best.shape[-1]] = torch.where(best < n_blocks, best, -1)
    near_len = seq_len - (n_own - n_chosen).clamp_min(0) * block_size
    return {"blocks": found, "near_len": near_len}


def gather_kv_blocks(
    *,
    near_keys: Tensor,
    near_values: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_len: Tensor,
    near_table: Tensor,
    block_size: int,
) -> dict[str, Tensor]:
    """R23: every chosen block into the slots listed for it."""
    n_layers, batch, n_heads, n_chosen = blocks.shape
    own = torch.arange(block_size, device=blocks.device)
    position = (blocks.long()[..., None] * block_size + own).flatten(3)  # [Y, B, G, positions]
    is_real = (blocks >= 0)[..., None].expand(*blocks.shape, block_size).flatten(3)
    is_real = is_real & (position < seq_len[None, :, None, None])
    position = position.clamp(0, req_to_token.shape[1] - 1)
    source = req_to_token[req_pool_indices[None, :, None, None], position].long()
    target = near_table[:batch, : n_chosen * block_size].long()[None, :, None].expand_as(source)
    layer = torch.arange(n_layers, device=blocks.device)[:, None, None, None]
    head = torch.arange(n_heads, device=blocks.device)[:, None]
    source = torch.where(is_real, source, 0)
    for near, stored in ((near_keys, keys), (near_values, values)):
        # What is not copied is written as it was: masks of indices would need a host read.
        kept = near[layer, target, head]
        near[layer, target, head] = torch.where(
            is_real[..., None], stored[layer, source, head], kept
        )
    return {}


def splice_drafted_run(
    *,
    cumu_tokens: Tensor,
    cumu_scores: Tensor,
    cumu_deltas: Tensor,
    prev_indexs: Tensor,
    selected: Tensor,
    n_chosen: Tensor,
    root_tokens: Tensor,
    run_tokens: Tensor,
    run_count: Tensor,
    node_count: int,
) -> dict[str, Tensor]:
    """R24: the tree moves behind the run."""
    longest, count = run_tokens.shape[1], run_count[:, None]
    run, old = slice(1, 1 + longest), slice(1, node_count)
    new = slice(1 + longest, node_count + longest)
    noted = torch.zeros_like(cumu_deltas)
    noted[:, new] = cumu_deltas[:, old]
    parents = prev_indexs[:, old].clone()
    prev_indexs[:, new] = torch.where(parents > 0, parents + longest, count)
    cumu_deltas[:, new] = cumu_deltas[:, old] + count
    for array in (cumu_tokens, cumu_scores, selected):
        array[:, new] = array[:, old].clone()
    step = torch.arange(longest, device=run_tokens.device)
    is_run = step < count
    cumu_tokens[:, 0] = root_tokens
    cumu_tokens[:, run] = run_tokens
    cumu_deltas[:, run] = step + 1
    prev_indexs[:, run] = step
    cumu_scores[:, run] = is_run.float()
    selected[:, run] = is_run
    n_chosen += run_count.int()
    return {"noted_depths": noted}
