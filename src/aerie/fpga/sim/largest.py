"""The largest calls within the blocks' bounds: latency and intervals at real sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from aerie.fpga.sim.vectors import Inputs, Rng, descending, state_call


def largest_layer(rng: Rng, batch: int) -> Inputs:
    """64 candidates, eight rows of 8 KB to gather."""
    return {
        "topk_probas": rng.random((batch, 64)).astype(np.float32),
        "topk_tokens": rng.integers(0, 32000, (batch, 64)),
        "last_layer_scores": rng.random((batch, 8)).astype(np.float32),
        "input_hidden": rng.integers(0, 1 << 16, (batch * 8, 4096)).astype(np.uint16),
        "cumu_count": 1,
    }


def largest_state(rng: Rng, batch: int) -> Inputs:
    """128 kept scores meet 64 new ones."""
    kept, new = (descending(rng.random((batch, size))).astype(np.float32) for size in (128, 64))
    return state_call(kept, new, 8, 300)


def largest_work(rng: Rng, batch: int) -> Inputs:
    """All 138 scores, ten of them new."""
    runs = [descending(rng.random((batch, size))) for size in (128, 10)]
    return {
        "work_scores": np.concatenate(runs, axis=1).astype(np.float32),
        "node_top_k": 10,
        "verify_num": 128,
    }


def largest_mask(rng: Rng, batch: int) -> Inputs:
    """128 rows over 1024 columns of prefix."""
    rows, prefix = 128, 1024
    bits = np.zeros((batch * rows, 4), np.uint32)
    bits[:] = 0xFFFFFFFF
    keep = np.tril(np.ones((rows, rows), np.uint8))
    packed = np.packbits(keep, axis=1, bitorder="little").view(np.uint32)
    bits[:] = np.tile(packed, (batch, 1))
    columns = prefix + rows
    return {
        "req_to_token": rng.integers(0, 1 << 31, (batch, columns)).astype(np.int32),
        "req_pool_indices": np.arange(batch),
        "seq_len": np.full(batch, prefix, np.int64),
        "qo_indptr": (np.arange(batch + 1) * rows).astype(np.int32),
        "ancestor_bits": bits,
        "kv_capacity": batch * columns,
        "mask_capacity": batch * rows * columns // 8,
    }


def largest_commit(rng: Rng, batch: int) -> Inputs:
    """128 rows a request, sixteen of them accepted."""
    rows, depth = 128, 16
    path = np.concatenate([[0], np.arange(1, 2 * depth, 2)])
    return {
        "accept_index": np.tile(path, (batch, 1)),
        "accept_count": np.full(batch, depth, np.int64),
        "bonus_token": np.full(batch, 5, np.int64),
        "draft_tokens": np.arange(batch * rows, dtype=np.int64) + 100,
        "qo_indptr": (np.arange(batch + 1) * rows).astype(np.int32),
        "seq_len": np.full(batch, 1000, np.int64),
        "length_limit": np.full(batch, 4000, np.int64),
        "stop_tokens": np.full((batch, 4), 3, np.int64),
        "req_to_token": rng.integers(0, 1 << 31, (batch, 1200)).astype(np.int32),
        "req_pool_indices": np.arange(batch),
    }


def largest_moves(rng: Rng, batch: int) -> Inputs:
    """Eight rows of 8 KB a request."""
    n = 8 * batch
    return {
        "moves": np.stack([rng.integers(0, n, n), rng.permutation(n)], axis=1),
        "source_rows": rng.integers(0, 256, (n, 8192)).astype(np.uint8),
        "target_rows": np.zeros((n, 8192), np.uint8),
    }


LARGEST: Mapping[str, Callable[[Rng, int], Inputs]] = {
    "layer": largest_layer,
    "merge": largest_state,
    "deltas": largest_work,
    "mask": largest_mask,
    "commit": largest_commit,
    "gather": largest_moves,
}
