"""Measures the pair: the target's greedy text, the head's ranks along it, one row per prompt."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.train.acceptance import DRAFTS, Ranks, Walked, bootstrap_interval, mean_length, walk
from aerie.train.head_model import HeadRunner
from aerie.train.target_model import TargetRunner
from aerie.train.tokenizer import END_ID
from aerie.train.writing import PREFILL_ROWS, Writer, WritingSize, repeated_share

N_NEW = 256
N_STEPS = 7
MOST_REPEATED = 0.5
LOOP_RULE = (
    f"excluded: prompts whose {N_NEW}-token greedy continuation repeats itself, that is, more "
    f"than {MOST_REPEATED:.0%} of its 8-grams stood in it before"
)
PROMPTS_AT_ONCE = 32  # per pass of the head: bounds the memory of its logits


@dataclass(frozen=True, eq=False)
class Continuations:
    """Prompts with what the target wrote behind them, padded on the right."""

    tokens: Tensor  # [prompts, longest] i64
    lengths: Tensor  # [prompts] i64, of the prompts alone
    repeated: NDArray[np.float64]  # [prompts] share of repeated 8-grams in the continuation


@dataclass(frozen=True)
class PromptResult:
    """One row of the table."""

    name: str
    bucket: int
    n_prompt: int
    repeated_share: float
    walks: dict[str, Walked]

    @classmethod
    def of(
        cls, name: str, bucket: int, n_prompt: int, repeated: float, ranks: Ranks
    ) -> PromptResult:
        """With every draft walked along the ranks [N_NEW, N_STEPS] of a continuation."""
        walks = {draft.name: walk(ranks, draft) for draft in DRAFTS}
        return cls(name, bucket, n_prompt, round(repeated, 4), walks)

    @property
    def is_loop(self) -> bool:
        """Whether the stated rule excludes it."""
        return self.repeated_share > MOST_REPEATED


def evaluate(
    target: TargetRunner, head: HeadRunner, prompts: Sequence[tuple[str, list[int]]], bucket: int
) -> list[PromptResult]:
    """Walk every draft over the greedy continuation of named prompts of one bucket."""
    texts = continue_prompts(target, [tokens for _, tokens in prompts])
    ranks = true_ranks(target, head, texts)
    shares = texts.repeated.tolist()
    return [
        PromptResult.of(name, bucket, len(tokens), shares[i], ranks[i])
        for i, (name, tokens) in enumerate(prompts)
    ]


@torch.inference_mode()
def continue_prompts(target: TargetRunner, prompts: Sequence[list[int]]) -> Continuations:
    """Greedy continuations of N_NEW tokens."""
    device = target.model.embed_tokens.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = max(map(len, prompts))
    tokens = torch.full((len(prompts), longest + N_NEW), END_ID, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        tokens[i, : len(prompt)] = torch.tensor(prompt)
    tokens = tokens.to(device)
    writer = Writer(target, WritingSize(len(prompts), longest + N_NEW, N_NEW))
    greedy = torch.zeros(len(prompts), device=device)
    written = writer.write(tokens[:, :longest], lengths, greedy)
    index = lengths[:, None] + torch.arange(N_NEW, device=device)
    tokens.scatter_(1, index, written)
    return Continuations(tokens, lengths, repeated_share(written).double().cpu().numpy())


@torch.inference_mode()
def true_ranks(target: TargetRunner, head: HeadRunner, texts: Continuations) -> NDArray[np.int64]:
    """Rank of the true token at every draft level, from every root: [prompts, N_NEW, N_STEPS]."""
    out = []
    at_once = max(1, min(PROMPTS_AT_ONCE, PREFILL_ROWS // texts.tokens.shape[1]))
    for first in range(0, texts.tokens.shape[0], at_once):
        part = slice(first, first + at_once)
        out.append(_ranks_of_part(target, head, texts.tokens[part], texts.lengths[part]))
    return torch.cat(out).cpu().numpy()


def _ranks_of_part(
    target: TargetRunner, head: HeadRunner, tokens: Tensor, lengths: Tensor
) -> Tensor:
    captured = target.hidden(tokens, head.model.shape.taps).taps
    taps = torch.cat(captured, dim=-1).view(*tokens.shape, -1)
    return ranks_along(head, tokens, lengths, taps)


@torch.inference_mode()
def ranks_along(head: HeadRunner, tokens: Tensor, lengths: Tensor, taps: Tensor) -> Tensor:
    """Ranks [prompts, N_NEW, N_STEPS] along texts [prompts, longest] whose states are known.

    The head sees the last rows only: its window reaches no further back.
    """
    batch, longest = tokens.shape
    window = head.model.shape.window
    span = -(-(N_NEW + window + N_STEPS) // window) * window
    start = (lengths + N_NEW - span).clamp(min=0)
    index = start[:, None] + torch.arange(span, device=tokens.device)
    index = index.clamp(max=longest - 1)  # padding behind the text; nothing looks there
    local_taps = taps.gather(1, index[..., None].expand(-1, -1, taps.shape[-1]))
    local_tokens = tokens.gather(1, index)
    # The row before the root reads the root's token: that is where a draft begins.
    written = torch.arange(N_NEW, device=tokens.device)
    rows = (lengths - 1 - start)[:, None] + written
    ranks = []
    for step, hidden in enumerate(head.unroll(local_taps.flatten(0, 1), local_tokens, N_STEPS)):
        chosen = hidden.view(batch, span, -1).gather(
            1, rows[..., None].expand(-1, -1, hidden.shape[-1])
        )
        logits = head.model.logits(chosen.flatten(0, 1)).float()
        true = tokens.gather(1, (lengths[:, None] + 1 + step + written).clamp(max=longest - 1))
        ranks.append(_rank(logits, true.flatten()).view(batch, N_NEW))
    return torch.stack(ranks, dim=-1)


def _rank(logits: Tensor, true: Tensor) -> Tensor:
    """How many tokens come before the true one; ties go to the smaller id, as argmax does."""
    own = logits.gather(-1, true[:, None])
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return ((logits > own) | ((logits == own) & (ids < true[:, None]))).sum(-1)


def summarise(results: Sequence[PromptResult]) -> dict[str, object]:
    """Means and intervals of the prompts of one bucket, and what was excluded."""
    kept = [result for result in results if not result.is_loop]
    summary: dict[str, object] = {
        "prompts": len(results),
        "looping_excluded": len(results) - len(kept),
        "used": len(kept),
        "repeated_8gram_share": round(_mean([r.repeated_share for r in kept]), 4),
        "repeated_8gram_share_with_loops": round(_mean([r.repeated_share for r in results]), 4),
    }
    if not kept:
        return summary
    for draft in DRAFTS:
        walks = [result.walks[draft.name] for result in kept]
        low, high = bootstrap_interval(walks)
        summary[draft.name] = {
            "mean": round(mean_length(walks), 4),
            "low": round(low, 4),
            "high": round(high, 4),
        }
    return summary


def summaries(results: Sequence[PromptResult]) -> dict[int, dict[str, object]]:
    """A summary per bucket, in the order the buckets were measured."""
    buckets = dict.fromkeys(result.bucket for result in results)
    return {b: summarise([r for r in results if r.bucket == b]) for b in buckets}


def write_table(results: Sequence[PromptResult], path: Path) -> None:
    """One line per prompt, looping ones included and marked."""
    names = [draft.name for draft in DRAFTS]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        counts = [f"{name}_{what}" for name in names for what in ("drafts", "accepted")]
        table.writerow(["prompt", "bucket", "n_prompt", "repeated_8gram_share", "is_loop", *counts])
        for r in results:
            numbers = [n for name in names for n in (r.walks[name].drafts, r.walks[name].accepted)]
            row = [r.name, r.bucket, r.n_prompt, r.repeated_share, int(r.is_loop), *numbers]
            table.writerow(row)


def read_table(path: Path) -> list[PromptResult]:
    """The rows `write_table` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            PromptResult(
                name=row["prompt"],
                bucket=int(row["bucket"]),
                n_prompt=int(row["n_prompt"]),
                repeated_share=float(row["repeated_8gram_share"]),
                walks={
                    d.name: Walked(int(row[f"{d.name}_drafts"]), int(row[f"{d.name}_accepted"]))
                    for d in DRAFTS
                },
            )
            for row in csv.DictReader(file)
        ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
