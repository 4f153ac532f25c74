"""Made-up rounds: levels of a draft with ties and certain tokens, and a target's answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aerie.fpga.tree_round import DraftLevel, Serving, TreeRound


@dataclass(frozen=True)
class Recipe:
    """Sizes and temper of a made-up round."""

    batch: int = 2
    top_k: int = 4
    widths: tuple[int, ...] = (1, 3, 4)
    verify_num: int = 9
    vocab: int = 50
    hidden: int = 8
    context: int = 20
    temperature: float = 1.0
    kind: str = "ordinary"  # ties, ones, zero, tiny
    has_coins: bool = True
    stops: int = 2


def make_round(recipe: Recipe, seed: int) -> TreeRound:
    """The same recipe and seed make the same round."""
    rng = np.random.default_rng(seed)
    batch, top_k = recipe.batch, recipe.top_k
    levels = tuple(_level(recipe, width, rng) for width in recipe.widths)
    seq_len = rng.integers(0, recipe.context + 1, batch)
    longest = recipe.context + recipe.verify_num + 3
    table = rng.permutation((batch + 2) * longest).reshape(batch + 2, longest).astype(np.int32)
    serving = Serving(
        root_tokens=rng.integers(0, recipe.vocab, batch),
        seq_len=seq_len,
        length_limit=seq_len + rng.integers(1, 12, batch),
        stop_tokens=rng.integers(-1, recipe.vocab, (batch, recipe.stops)),
        req_to_token=table,
        req_pool_indices=rng.permutation(batch + 2)[:batch].astype(np.int64),
    )
    n_nodes = 1 + sum(level.probas.shape[1] for level in levels)
    n_rows = batch * min(recipe.verify_num, n_nodes)
    logits = rng.normal(0, 3, (n_rows, recipe.vocab)).astype(np.float32)
    if recipe.kind == "ties":
        logits = np.round(logits)
    depth = len(recipe.widths)
    coins = rng.random((batch, depth + 2), np.float32) if recipe.has_coins else None
    heat = np.full(batch, recipe.temperature, np.float32)
    return TreeRound(top_k, recipe.verify_num, levels, serving, logits, heat, coins)


def _level(recipe: Recipe, width: int, rng: np.random.Generator) -> DraftLevel:
    batch, top_k = recipe.batch, recipe.top_k
    n = width * top_k
    probas = np.sort(rng.random((batch, width, top_k)) ** 3, axis=2)[:, :, ::-1].reshape(batch, n)
    if recipe.kind == "ties":
        probas = np.ceil(probas * 4) / 4
    elif recipe.kind == "ones":
        probas = np.where(rng.random(probas.shape) < 0.5, 1.0, probas)
    elif recipe.kind == "zero":
        probas = np.where(rng.random(probas.shape) < 0.6, 0.0, probas)
    elif recipe.kind == "tiny":
        probas = probas * 1e-20
    tokens = np.stack(
        [rng.permutation(recipe.vocab)[:top_k] for _ in range(batch * width)]
    ).reshape(batch, n)
    hidden = rng.integers(0, 1 << 15, (batch * width, recipe.hidden)).astype(np.uint16)
    return DraftLevel(probas.astype(np.float32), tokens.astype(np.int64), hidden.view(np.float16))
