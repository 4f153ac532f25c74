"""PyTorch preview: R20 to R23 blocks of the KV and their copy, R24 the run it leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards import partial_kv as cards


@takes_call
def weigh_kv_blocks(call: cards.WeighedBlocks) -> dict[str, Tensor]:
    """R20: softmax of every query head, summed by block."""
    slots, is_real = _slots(call)
    by_head, found = _room(call)
    for layer, own in enumerate(by_head):
        seen = call.keys[layer][slots].permute(0, 2, 3, 1).float()  # [B, G, D, positions]
        scores = torch.matmul(own.float(), seen)
        scores = scores.masked_fill(~is_real[:, None, None], -torch.inf)
        # A text without tokens has no mass, and softmax of nothing is not a number.
        mass = torch.softmax(scores, dim=-1).nan_to_num(0.0).sum(dim=2)
        found[layer] = mass.unflatten(-1, (call.n_blocks, call.block_size)).sum(dim=-1)
    return {"block_scores": found}


@takes_call
def bound_kv_blocks(call: cards.BoundedBlocks) -> dict[str, Tensor]:
    """R21: a query's products with the extremes of every block."""
    slots, is_real = _slots(call)
    is_block = is_real[:, :: call.block_size]
    by_head, found = _room(call)
    for layer, own in enumerate(by_head):
        seen = call.keys[layer][slots].float().unflatten(1, (call.n_blocks, call.block_size))
        hidden = ~is_real.unflatten(1, (call.n_blocks, call.block_size))[..., None, None]
        products = [
            torch.matmul(own.float(), extreme.permute(0, 2, 3, 1))  # [B, G, Q, blocks]
            for extreme in (
                seen.masked_fill(hidden, -torch.inf).amax(dim=2),
                seen.masked_fill(hidden, torch.inf).amin(dim=2),
            )
        ]
        bound = torch.maximum(*products).mean(dim=2)
        found[layer] = torch.where(is_block[:, None], bound, cards.BEHIND)
    return {"block_scores": found}


def _room(call: cards.ScoredBlocks) -> tuple[Tensor, Tensor]:
    """Queries by KV head [Y, B, G, Q, D], and room for a score of every block."""
    n_kv, shape = call.keys.shape[2], call.queries.shape
    found = call.queries.new_zeros((*shape[:2], n_kv, call.n_blocks), dtype=torch.float32)
    return call.queries.unflatten(2, (n_kv, shape[2] // n_kv)), found


def _slots(call: cards.ScoredBlocks) -> tuple[Tensor, Tensor]:
    """Slots of the blocks of each request [B, positions] i64, and which are of the text."""
    table, rows = call.req_to_token, call.req_pool_indices
    position = torch.arange(call.n_blocks * call.block_size, device=table.device)
    is_real = position < call.seq_len[:, None]
    listed = table[rows[:, None], position.clamp_max(table.shape[1] - 1)].long()
    # Any slot will do behind the text; what the table lists there may be none.
    return torch.where(is_real, listed, 0), is_real


@takes_call
def choose_kv_blocks(call: cards.ChosenBlocks) -> dict[str, Tensor]:
    """R22: sinks, the best between, and the window."""
    n_chosen, n_blocks = call.n_sink + call.n_retrieval + call.n_window, call.block_scores.shape[-1]
    block = torch.arange(n_blocks, device=call.block_scores.device)
    seq_len = call.seq_len.clamp(0, n_blocks * call.block_size)
    n_own = (seq_len + call.block_size - 1) // call.block_size
    is_own = block < n_own[:, None]
    is_fixed = (block < call.n_sink) | (block >= (n_own - call.n_window)[:, None])
    scores = call.block_scores.masked_fill(is_fixed[None, :, None], torch.inf)
    scores = scores.masked_fill(~is_own[None, :, None], -torch.inf)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :n_chosen]
    best = torch.where(is_own[None, :, None].expand_as(scores).gather(-1, best), best, n_blocks)
    best = best.sort(dim=-1).values
    found = best.new_full((*best.shape[:3], n_chosen), -1, dtype=torch.int32)
    found[..., : best.shape[-1]] = torch.where(best < n_blocks, best, -1)
    near_len = seq_len - (n_own - n_chosen).clamp_min(0) * call.block_size
    return {"blocks": found, "near_len": near_len}


@takes_call
def gather_kv_blocks(call: cards.GatheredBlocks) -> dict[str, Tensor]:
    """R23: every chosen block into the slots listed for it."""
    n_layers, batch, n_heads, n_chosen = call.blocks.shape
    own = torch.arange(call.block_size, device=call.blocks.device)
    # [Y, B, G, positions]
    position = (call.blocks.long()[..., None] * call.block_size + own).flatten(3)
    is_real = (call.blocks >= 0)[..., None].expand(*call.blocks.shape, call.block_size).flatten(3)
    is_real = is_real & (position < call.seq_len[None, :, None, None])
    position = position.clamp(0, call.req_to_token.shape[1] - 1)
    source = call.req_to_token[call.req_pool_indices[None, :, None, None], position].long()
    target = call.near_table[:batch, : n_chosen * call.block_size].long()
    target = target[None, :, None].expand_as(source)
    layer = torch.arange(n_layers, device=call.blocks.device)[:, None, None, None]
    head = torch.arange(n_heads, device=call.blocks.device)[:, None]
    source = torch.where(is_real, source, 0)
    for near, stored in ((call.near_keys, call.keys), (call.near_values, call.values)):
        # What is not copied is written as it was: masks of indices would need a host read.
        kept = near[layer, target, head]
        near[layer, target, head] = torch.where(
            is_real[..., None], stored[layer, source, head], kept
        )
    return {}


@takes_call
def splice_drafted_run(call: cards.SplicedRun) -> dict[str, Tensor]:
    """R24: the tree moves behind the run."""
    longest, count = call.run_tokens.shape[1], call.run_count[:, None]
    run, old = slice(1, 1 + longest), slice(1, call.node_count)
    new = slice(1 + longest, call.node_count + longest)
    noted = torch.zeros_like(call.cumu_deltas)
    noted[:, new] = call.cumu_deltas[:, old]
    parents = call.prev_indexs[:, old].clone()
    call.prev_indexs[:, new] = torch.where(parents > 0, parents + longest, count)
    call.cumu_deltas[:, new] = call.cumu_deltas[:, old] + count
    for array in (call.cumu_tokens, call.cumu_scores, call.selected):
        array[:, new] = array[:, old].clone()
    step = torch.arange(longest, device=call.run_tokens.device)
    is_run = step < count
    call.cumu_tokens[:, 0] = call.root_tokens
    call.cumu_tokens[:, run] = call.run_tokens
    call.cumu_deltas[:, run] = step + 1
    call.prev_indexs[:, run] = step
    call.cumu_scores[:, run] = is_run.float()
    call.selected[:, run] = is_run
    call.n_chosen += call.run_count.int()
    return {"noted_depths": noted}
