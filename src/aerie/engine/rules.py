"""Rules of verification: what the target says at each row, and the path it accepts (K5, K6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aerie.engine.buckets import Bucket
from aerie.engine.masks import of_trees
from aerie.engine.parts import Parts, Rule, Verdict
from aerie.engine.rows import owners


def match(parts: Parts, bucket: Bucket, layout: Any, logits: Tensor) -> Verdict:
    """Same seed, same tokens: follow the target's own token from the root."""
    state, n = parts.state, bucket.seats
    stops = state.seats("stop_tokens", n)
    if bucket.options.grammar:
        masks = state.columns.masks
        masks.make(of_trees, [state.noted.shape, state.report.lines[:n].shape])
        logits = masks.masked(parts.kernels, logits, layout.qo_indptr)
    given = {
        "logits": logits,
        "positions": layout.positions,
        "qo_indptr": layout.qo_indptr,
        **state.columns.arguments(bucket.options, n, layout, stops),
    }
    sampled = parts.kernels["sample_target_tokens"](**given)
    tokens = _trusted(parts, layout, sampled.target_tokens)
    verdict = _walk(parts, layout, sampled.status, target_tokens=tokens)
    return replace(verdict, sampled=given)


def _trusted(parts: Parts, layout: Any, tokens: Tensor) -> Tensor:
    """The target's tokens; where previews are lossy, what they accepted is not asked again."""
    own = parts.previews
    if own is None or parts.is_preview or own.config.specpv != "lossy":
        return tokens
    row = torch.arange(tokens.shape[0], device=tokens.device)
    request = owners(layout.qo_indptr, tokens.shape[0])
    is_run = row - layout.qo_indptr[request] < own.count[request]
    return torch.where(is_run, layout.draft_tokens.roll(-1), tokens)


def coins(parts: Parts, bucket: Bucket, layout: Any, logits: Tensor) -> Verdict:
    """Same distribution: accept a child where a coin falls, the bonus from what is left."""
    state, n = parts.state, bucket.seats
    numbers = state.columns.numbers
    converted = parts.kernels["convert_logits_to_probas"](
        logits=logits, temperature=numbers["temperature"][:n], qo_indptr=layout.qo_indptr
    )
    tossed = parts.kernels["toss_coins"](
        seed=numbers["seed"][:n],
        sample_index=numbers["sample_index"][:n],
        position=state.seq_len[:n],
        tree_depth=parts.longest_path - 1,
    )
    return _walk(
        parts,
        layout,
        converted.status,
        target_probas=converted.target_probas,
        coins=tossed.coins,
    )


RULES: Mapping[str, Rule] = {"match": match, "coins": coins}


def _walk(parts: Parts, layout: Any, sample_status: Tensor, **said: Tensor) -> Verdict:
    walked = parts.kernels["draft_tree_reject_sample"](
        qo_indptr=layout.qo_indptr,
        draft_tokens=layout.draft_tokens,
        first_child_row=layout.first_child_row,
        next_sibling_row=layout.next_sibling_row,
        tree_depth=parts.longest_path - 1,
        **said,
    )
    return Verdict(
        walked.accept_index,
        walked.accept_count,
        walked.bonus_token,
        sample_status,
        walked.status,
    )
