"""Random numbers of the cases: probabilities, logits, hidden rows, and values repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aerie.kernels.cases.table import Array, Inputs, Rng


def draw_probas(rng: Rng, shape: tuple[int, int, int], kind: str) -> Array:
    """Draft probabilities [B, W, K], descending inside a slot where the kind allows it."""
    usual = np.sort(rng.random(shape) ** 2 + 1e-3, axis=2)[:, :, ::-1]
    usual = usual / (1.1 * usual.sum(2, keepdims=True))
    special = rng.random(shape) < 0.3
    special[:1, :, :1] = True
    kinds: dict[str, Callable[[], Array]] = {
        "usual": lambda: usual,
        "ties": lambda: np.sort(rng.choice([0.5, 0.25, 0.125], shape), 2)[:, :, ::-1],
        "equal": lambda: np.full(shape, 0.0625),
        "ones": lambda: np.arange(shape[2]) == np.zeros((*shape[:2], 1)),
        "zero": lambda: np.zeros(shape),
        "nan": lambda: np.where(special, np.nan, usual),
        "all_nan": lambda: np.full(shape, np.nan),
        "over": lambda: np.where(special, 1.0 + 2.0 * usual, usual),
        "negative": lambda: np.where(special, -0.5, usual),
        "infinite": lambda: np.where(special, np.where(usual > 0.1, np.inf, -np.inf), usual),
        # Path scores of a few such layers are subnormal float32.
        "tiny": lambda: usual * 1e-22,
    }
    return np.asarray(kinds[kind](), np.float32)


def draw_logits(rng: Rng, shape: tuple[int, int], kind: str) -> Array:
    """Target logits [R, V] of a kind; no row is masked altogether."""
    made = rng.standard_normal(shape) * 3
    if kind == "ties":
        made = rng.integers(-2, 3, shape).astype(np.float64)
    elif kind == "equal":
        made = np.full(shape, 1.5)
    elif kind == "masked":
        made[:, 1:][rng.random((shape[0], shape[1] - 1)) < 0.7] = -np.inf
    elif kind == "one_left":
        made[:, 1:] = -np.inf
    elif kind == "subnormal":
        made = -rng.uniform(88, 103, shape)
        made[:, -1] = 0.0
    elif kind == "far_apart":
        made *= 1e4
    elif kind == "huge":
        made = np.sign(made) * 3e38
    return made.astype(np.float32)


def cycle(values: Any, n_entries: int, dtype: str) -> Array:
    """`values` repeated from the front to the length asked for; a scalar counts as one value."""
    return np.resize(np.asarray(values, dtype), n_entries)


def rows_of_hidden(rng: Rng, shape: tuple[int, ...], dtype: str) -> Array:
    """Hidden rows in a dtype."""
    return in_dtype(rng.standard_normal(shape, dtype=np.float32), dtype)


def in_dtype(rows: Array, dtype: str) -> Array:
    """float32 in a dtype; `bfloat16` comes as the upper 16 bits of each, in uint16."""
    if dtype == "bfloat16":
        return (rows.view(np.uint32) >> 16).astype(np.uint16)
    return rows.astype(dtype)


def bounds_of(counts: Array) -> Array:
    """Where the entries of each request begin, and those of the last end."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def in_table(rng: Rng, n_requests: int, width: int, n_rows: int | None = None) -> Inputs:
    """A request-to-slot table of slots that all differ, and the row of each request."""
    n_table = n_requests + 2 if n_rows is None else n_rows
    slots = rng.permutation(n_table * width).astype(np.int32)
    rows = rng.permutation(max(n_table, n_requests))[:n_requests]
    return {"req_to_token": slots.reshape(n_table, width), "req_pool_indices": rows}
