"""Runs a target, and a head on it, once over some tokens and keeps every stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from aerie.attention import pytorch, reference
from aerie.attention.contract import PrepareAttention
from aerie.errors import UsageError
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.probe_text import whole_texts
from aerie.parity.stage_dump import StageDump

TOKEN_SEED = 5
N_TOKENS = 160  # longer than the windows of public models with one


@dataclass(frozen=True)
class Subject:
    """What is compared: a target, perhaps with a head."""

    model: Path
    draft: Path | None
    dtype: torch.dtype
    device: str = "cpu"
    taps: tuple[int, ...] | None = None  # boundaries the head reads; None: as it says


@dataclass(frozen=True, eq=False)
class LoadedPair:
    """A subject in memory."""

    target: Decoder
    head: Eagle3Head | None


def load_pair(subject: Subject) -> LoadedPair:
    """The pair as the engine runs it."""
    return _load(subject, pytorch.prepare)


def load_exact_pair(subject: Subject) -> LoadedPair:
    """The same weights in float64, attention by the NumPy definition: our own best arithmetic."""
    exact = replace(subject, dtype=torch.float64, device="cpu")
    return _load(exact, reference.prepare)


def _load(subject: Subject, prepare: PrepareAttention) -> LoadedPair:
    options = LoadOptions(dtype=subject.dtype, device=subject.device)
    target = load_decoder(subject.model, prepare, options)
    if subject.draft is None:
        return LoadedPair(target, None)
    return LoadedPair(target, load_head(subject.draft, target, prepare, HeadOptions(subject.taps)))


def draw_tokens(vocab_size: int, n_tokens: int) -> Tensor:
    """Fixed pseudo-random ids: [n_tokens] i64."""
    generator = torch.Generator().manual_seed(TOKEN_SEED)
    return torch.randint(0, vocab_size, (n_tokens,), generator=generator)


def run_stages(pair: LoadedPair, tokens: Tensor, features: Tensor | None = None) -> StageDump:
    """Every stage of one pass over `tokens` [n].

    The head runs over the n - 1 pairs (state of i, token i + 1), from `features` if given and
    else from the states of this very target.
    """
    target, head = pair.target, pair.head
    n_layers, n_tokens = target.geometry.n_layers, tokens.shape[0]
    if int(tokens.min()) < 0 or int(tokens.max()) >= target.geometry.vocab_size:
        raise UsageError(f"token ids must lie in 0..{target.geometry.vocab_size - 1}")
    device = target.embedding.device
    rows = whole_texts((tokens.to(device),))
    taps = tuple(range(n_layers + 1))
    out = target.forward(rows, target.allocate_pool(n_tokens + 1), None, taps)
    stages = {"target.embedding": out.taps[:, 0]}
    for layer_idx in range(n_layers):
        stages[f"target.layers.{layer_idx}"] = out.taps[:, layer_idx + 1]
    stages["target.logits"] = out.logits
    if head is None:
        return StageDump(tokens, None, stages)
    if features is None:
        features = out.taps[:-1, list(head.taps)]
    head.extend(
        whole_texts((tokens[1:].to(device),)),
        features.to(device=device, dtype=target.embedding.dtype),
        head.allocate_pool(n_tokens),
        observe=lambda name, stage: stages.update({f"draft.{name}": stage}),
    )
    return StageDump(tokens, features, stages)
