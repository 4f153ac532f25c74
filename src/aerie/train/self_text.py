"""Text for the head: the corpus with stretches that the target wrote itself.

Acceptance is measured on what the target writes, so the head must see such text: greedy text is
more regular than what people write. Every second stretch of the stream is replaced by the
target's continuation of the one before it, and both are left out where that runs in a circle. The
order of files stays, so long windows still hold related text.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aerie.train.progress import Progress
from aerie.train.target_model import TargetRunner
from aerie.train.tokenizer import END_ID
from aerie.train.writing import Writer, WritingSize, repeated_share


@dataclass(frozen=True)
class SelfTextPlan:
    """Sizes of the stretches, and how long to write."""

    seconds: float
    n_prompt: int = 256
    n_new: int = 256
    batch: int = 3072
    sampled_share: float = 0.4  # rows written at `temperature`, the others greedily
    temperature: float = 0.6  # near greedy, and it seldom loops
    most_repeated: float = 0.5  # share of repeated 8-grams from which a stretch is a loop
    seed: int = 7


def write_self_text(
    runner: TargetRunner, tokens: NDArray[np.uint16], plan: SelfTextPlan, progress: Progress
) -> NDArray[np.uint16]:
    """The stream of stretches, as many as the budget allows, from places all over the corpus."""
    device = runner.model.embed_tokens.device
    span = plan.n_prompt + plan.n_new
    size = WritingSize(plan.batch, span, plan.n_new)
    writer = Writer(runner, size)
    writer.capture(progress)
    stream = torch.from_numpy(tokens.astype(np.int16)).to(device)
    runs = _runs(tokens.shape[0], span, plan)
    pieces: list[Tensor] = []
    begun, n_looping = time.monotonic(), 0
    for starts in runs:
        index = torch.from_numpy(starts).to(device)[:, None] + torch.arange(span, device=device)
        text = stream[index].long()
        prompts = text[:, : plan.n_prompt].clone()
        prompts[:, 0] = END_ID
        lengths = torch.full((plan.batch,), plan.n_prompt, device=device)
        temperature = torch.zeros(plan.batch, device=device)
        temperature[: int(plan.batch * plan.sampled_share)] = plan.temperature
        # Rows change places, so that sampled ones are not always neighbours in the stream.
        temperature = temperature[torch.randperm(plan.batch, device=device)]
        written = writer.write(prompts, lengths, temperature)
        is_loop = repeated_share(written) > plan.most_repeated
        n_looping += int(is_loop.sum())
        text[:, plan.n_prompt :] = written
        pieces.append(text[~is_loop].to(torch.int16).flatten().cpu())
        if time.monotonic() - begun > plan.seconds:
            break
    seconds = time.monotonic() - begun
    n_written = len(pieces) * plan.batch * plan.n_new
    progress.say(
        f"self-written text: {n_written / 1e6:.1f} M tokens at {n_written / seconds / 1e3:.0f} k/s,"
        f" {n_looping} of {len(pieces) * plan.batch} stretches looped and are left out"
    )
    return torch.cat(pieces).numpy().astype(np.uint16)


def _runs(n_tokens: int, span: int, plan: SelfTextPlan) -> list[NDArray[np.int64]]:
    """Starts of each batch: long runs of neighbouring stretches, in random order.

    Neighbours stay neighbours, so that a window of 32K of the result reads like the corpus.
    """
    random = np.random.default_rng(plan.seed)
    neighbours = 64
    length = neighbours * span
    begins = np.arange(0, n_tokens - length, length)
    if not begins.size:
        starts = np.arange(0, n_tokens - span, span)
        return [np.resize(starts, plan.batch)]
    random.shuffle(begins)
    per_batch = max(1, plan.batch // neighbours)
    batches = []
    for first in range(0, begins.size, per_batch):
        some = np.resize(begins[first : first + per_batch], per_batch)
        starts = (some[:, None] + np.arange(neighbours) * span).flatten()
        batches.append(np.resize(starts, plan.batch).astype(np.int64))
    return batches
