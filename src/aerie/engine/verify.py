"""Verification: what the target says at every row, and which path that accepts (K5, K6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.engine.batch import sampling_options
from aerie.engine.request import Request
from aerie.kernels.registry import Kernels
from aerie.speculation.tree import Layout, Verdict

Verify = Callable[[Kernels, Sequence[Request], Layout, Tensor, int], Verdict]


def match(
    kernels: Kernels, requests: Sequence[Request], layout: Layout, logits: Tensor, depth: int
) -> Verdict:
    """Same seed, same tokens: follow the target's own token from the root."""
    sampled = kernels["sample_target_tokens"](
        logits=logits,
        positions=layout.positions,
        qo_indptr=layout.qo_indptr,
        **sampling_options(requests, layout, logits.shape[1]),
    )
    walked = kernels["draft_tree_reject_sample"](
        qo_indptr=layout.qo_indptr,
        draft_tokens=layout.draft_tokens,
        first_child_row=layout.first_child_row,
        next_sibling_row=layout.next_sibling_row,
        target_tokens=sampled.target_tokens,
        tree_depth=depth,
    )
    return _verdict(walked, sampled.status)


def coins(
    kernels: Kernels, requests: Sequence[Request], layout: Layout, logits: Tensor, depth: int
) -> Verdict:
    """Same distribution: accept a child where a coin falls, the bonus from what is left."""
    heat = torch.tensor([r.params.temperature for r in requests], device=logits.device)
    converted = kernels["convert_logits_to_probas"](
        logits=logits, temperature=heat, qo_indptr=layout.qo_indptr
    )
    walked = kernels["draft_tree_reject_sample"](
        qo_indptr=layout.qo_indptr,
        draft_tokens=layout.draft_tokens,
        first_child_row=layout.first_child_row,
        next_sibling_row=layout.next_sibling_row,
        target_probas=converted.target_probas,
        coins=_tosses(requests, depth, logits.device),
        tree_depth=depth,
    )
    return _verdict(walked, converted.status)


RULES: dict[str, Verify] = {"match": match, "coins": coins}


def _tosses(requests: Sequence[Request], depth: int, device: torch.device) -> Tensor:
    """Uniforms keyed by (seed, sample, position), never by call order. [B, depth + 2] f32"""
    rows = []
    for request in requests:
        # A seed sequence takes no negative numbers.
        seed = request.job.seed & 0xFFFFFFFFFFFFFFFF
        key = (seed, request.job.sample_index, len(request.tokens))
        rows.append(np.random.default_rng(key).random(depth + 2, np.float32))
    stacked = np.stack(rows) if rows else np.zeros((0, depth + 2), np.float32)
    return torch.from_numpy(stacked).to(device)


def _verdict(walked: Any, status: Tensor) -> Verdict:
    return Verdict(
        accept_index=walked.accept_index,
        accept_count=walked.accept_count,
        bonus_token=walked.bonus_token,
        status=torch.where(status != 0, status, walked.status),
    )


def path_logprobs(logits: Tensor, rows: Tensor, tokens: Tensor) -> list[float]:
    """Log-probabilities the target gave the emitted tokens: row i decided token i."""
    # One row at a time, in float64: the bits then do not depend on how many were accepted.
    return [
        float(torch.log_softmax(logits[row].double(), dim=0)[token])
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)
    ]
