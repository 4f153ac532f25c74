"""Random calls for each block, ties, subnormals, certainties and refusals among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Inputs = dict[str, Any]
Rng = np.random.Generator
BATCHES = (1, 7, 32, 128)


def probabilities(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Between 0 and 1, with everything that is awkward about that."""
    kind = rng.integers(0, 8, shape)
    plain = rng.random(shape)
    tiny = 10.0 ** rng.uniform(-45, -36, shape)
    choices = [plain, plain**4, np.round(plain * 4) / 4, tiny, np.zeros(shape), np.ones(shape),
               plain * 2 - 0.5, np.where(plain < 0.3, np.nan, plain)]  # fmt: skip
    return np.choose(kind, choices).astype(np.float32)


def _batch(rng: Rng) -> int:
    return int(rng.choice(BATCHES))


def descending(scores: Array) -> Array:
    """Scores as a running order holds them."""
    return -np.sort(-np.clip(np.nan_to_num(scores), 0, 1), axis=1)


def layers(rng: Rng) -> Inputs:
    """K1: any width, any number of children, rows of one beat."""
    width, top_k = (int(n) for n in rng.integers(1, 9, 2))
    n, batch = width * top_k, _batch(rng)
    return {
        "topk_probas": probabilities(rng, (batch, n)),
        "topk_tokens": rng.integers(0, 1 << 40, (batch, n)),
        "last_layer_scores": np.clip(np.nan_to_num(probabilities(rng, (batch, width))), 0, 1),
        "input_hidden": rng.integers(0, 1 << 16, (batch * width, 8)).astype(np.uint16),
        "cumu_count": int(rng.integers(1, 4000)),
    }


def states(rng: Rng) -> Inputs:
    """K2: what its merge reads; the rest is as small as the card allows."""
    width, top_k = (int(n) for n in rng.integers(1, 9, 2))
    n, verify = width * top_k, int(rng.integers(1, 129))
    count, batch = int(rng.integers(max(width, 1), 300)), _batch(rng)
    kept, new = (descending(probabilities(rng, (batch, size))) for size in (verify, n))
    return state_call(kept, new, width, count)


def state_call(kept: Array, new: Array, width: int, count: int) -> Inputs:
    """K2 where running scores [B, M] meet those of a layer [B, n], behind so many nodes."""
    (batch, verify), n = kept.shape, new.shape[1]
    names = ("cumu_tokens", "cumu_deltas", "prev_indexs", "next_indexs", "side_indexs")
    places = np.tile(np.arange(n), (batch, 1))
    return {
        **{name: np.zeros((batch, count + n), np.int64) for name in names},
        "cumu_scores": np.zeros((batch, count + n), np.float32),
        "sort_scores": kept,
        "curr_layer_scores": np.zeros((batch, n), np.float32),
        "topk_tokens": places,
        "sort_layer_scores": new,
        "sort_layer_indices": places.copy(),
        "frontier_indexs": places[:, :width].copy(),
        "input_tree_mask": np.zeros((batch, width, n // width), np.bool_),
        "cumu_count": count,
        "verify_num": verify,
        "fed_count": 0,
    }


def works(rng: Rng) -> Inputs:
    """K3: two descending runs for each request, few requests so that means differ."""
    batch = int(rng.integers(1, 9))
    top_k, old = int(rng.integers(1, 11)), int(rng.integers(0, 65))
    runs = [descending(probabilities(rng, (batch, size))) for size in (old, top_k)]
    return {
        "work_scores": np.concatenate(runs, axis=1).astype(np.float32),
        "node_top_k": top_k,
        "verify_num": int(rng.integers(max(old, 1), 129)),
    }


def _trees(rng: Rng, batch: int, most: int) -> tuple[Array, Array]:
    """Rows of each request, and ancestor bits of random trees."""
    counts = rng.integers(0, most + 1, batch)
    bits = np.zeros((int(counts.sum()), 4), np.uint32)
    flat = 0
    for count in counts.tolist():
        for row in range(count):
            if row:
                bits[flat + row] = bits[flat + int(rng.integers(0, row))]
            bits[flat + row, row // 32] |= np.uint32(1 << (row % 32))
        flat += count
    return counts, bits


def _layout(rng: Rng, counts: Array) -> Array:
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    if rng.random() < 0.2:
        indptr[int(rng.integers(0, len(indptr)))] += int(rng.integers(-3, 200))
    return indptr


def masks(rng: Rng) -> Inputs:
    """K4: short and long prefixes, trees of up to 40 rows, now and then something broken."""
    batch, most = int(rng.choice([1, 8, 32])), int(rng.choice([3, 12, 40]))
    counts, bits = _trees(rng, batch, most)
    width = int(rng.choice([60, 150, 300]))
    length = rng.integers(0, width - most + (5 if rng.random() < 0.1 else 1), batch)
    pool = rng.permutation(batch + 3)[:batch].astype(np.int64)
    if rng.random() < 0.2:
        pool[int(rng.integers(0, batch))] = int(rng.choice([-1, batch + 3]))
        length[int(rng.integers(0, batch))] = -1
    columns = np.maximum(length, 0) + counts
    share = 1.0 if rng.random() < 0.7 else rng.random()
    return {
        "req_to_token": rng.integers(0, 1 << 31, (batch + 3, width)).astype(np.int32),
        "req_pool_indices": pool,
        "seq_len": length.astype(np.int64),
        "qo_indptr": _layout(rng, counts),
        "ancestor_bits": bits,
        "kv_capacity": int(columns.sum() * share) + int(rng.integers(0, 9)),
        "mask_capacity": int(((counts * columns + 7) // 8).sum() * share) + int(rng.integers(0, 9)),
    }


def commits(rng: Rng) -> Inputs:
    """K7: paths of every length, stops, limits, now and then something broken."""
    batch, depth, stops = _batch(rng), int(rng.integers(0, 9)), int(rng.integers(0, 4))
    counts = rng.integers(0, 20, batch)
    n_rows = int(counts.sum())
    path = np.full((batch, depth + 1), -1, np.int64)
    accepted = np.zeros(batch, np.int64)
    for b, count in enumerate(counts.tolist()):
        n = int(rng.integers(0, min(depth, max(count - 1, 0)) + 1))
        chosen = np.sort(rng.permutation(max(count - 1, 0))[:n]) + 1
        path[b, : n + 1] = [0, *chosen.tolist()]
        accepted[b] = n
    if rng.random() < 0.3:
        victim = int(rng.integers(0, batch))
        accepted[victim] = int(rng.choice([-1, depth + 1, depth]))
        path[victim, int(rng.integers(0, depth + 1))] = int(rng.integers(-2, 30))
    width = 90
    length = rng.integers(0, width - 19, batch)
    pool = rng.permutation(batch + 2)[:batch].astype(np.int64)
    if rng.random() < 0.2:
        pool[int(rng.integers(0, batch))] = -1
        length[int(rng.integers(0, batch))] = int(rng.choice([-5, width]))
    tokens = rng.integers(0, 12, n_rows)
    return {
        "accept_index": path,
        "accept_count": accepted,
        "bonus_token": rng.integers(0, 12, batch),
        "draft_tokens": tokens.astype(np.int64),
        "qo_indptr": _layout(rng, counts),
        "seq_len": length.astype(np.int64),
        "length_limit": (length + rng.integers(-2, 14, batch)).astype(np.int64),
        "stop_tokens": rng.integers(-1, 12, (batch, stops)),
        "req_to_token": rng.integers(0, 1 << 31, (batch + 2, width)).astype(np.int32),
        "req_pool_indices": pool,
    }


def moves(rng: Rng) -> Inputs:
    """The gather: rows of one to six beats, any source, every target once."""
    n, n_sources = _batch(rng), int(rng.integers(1, 40))
    n_bytes = int(rng.integers(1, 192))
    return {
        "moves": np.stack([rng.integers(0, n_sources, n), rng.permutation(n)], axis=1),
        "source_rows": rng.integers(0, 256, (n_sources, n_bytes)).astype(np.uint8),
        "target_rows": np.zeros((n, n_bytes), np.uint8),
    }


VECTORS: Mapping[str, Callable[[Rng], Inputs]] = {
    "layer": layers,
    "merge": states,
    "deltas": works,
    "mask": masks,
    "commit": commits,
    "gather": moves,
}


def n_vectors(block: str, inputs: Inputs) -> int:
    """Vectors of one call: requests, rows moved, or, for K3, the call itself."""
    if block == "deltas":
        return 1
    key = {"gather": "moves", "layer": "topk_probas", "merge": "sort_scores"}.get(block, "seq_len")
    return len(inputs[key])
