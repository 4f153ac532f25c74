"""What each lever of a draft costs in accepted tokens: the fused region drafts for an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.api import Engine
from aerie.bench.bed import PromptBook
from aerie.engine.launch import Direct
from aerie.fpga.draft_round import DraftRound, FusedChoice
from aerie.fpga.draft_weights import DraftWeights, weights_of
from aerie.fpga.hls_draft import DraftCard, HlsDraft
from aerie.fpga.quantise import Array
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.linear import DenseLinear
from aerie.requests.params import SamplingParams

CONTEXT = 512
# Texts whose hidden states shape the sketch; none of them is among those that are measured.
SHAPING = slice(64, 112)
RANK_SHARE = 3 / 8  # of the hidden size
N_RESAMPLES = 10_000


@dataclass(frozen=True)
class Study:
    """A run over held-out prompts."""

    n_prompts: int = 48
    n_tokens: int = 96
    batch: int = 8
    top_k: int = 8
    depth: int = 5
    verify: int = 32


@dataclass(frozen=True)
class Accepted:
    """Drafts and accepted tokens of every prompt."""

    drafts: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def length(self) -> float:
        """Mean acceptance length, the bonus token included."""
        return 1 + sum(self.accepted) / sum(self.drafts)

    def against(self, other: Accepted, seed: int = 0) -> tuple[float, float, float]:
        """Ratio of lengths to another run of the same prompts, with its 90 % interval."""
        rng = np.random.default_rng(seed)
        n = len(self.drafts)
        picks = rng.integers(0, n, (N_RESAMPLES, n))
        own, rival = self._lengths(picks), other._lengths(picks)
        low, high = np.quantile(own / rival, [0.05, 0.95])
        return self.length / other.length, float(low), float(high)

    def _lengths(self, picks: Array) -> Array:
        drafts, accepted = np.array(self.drafts), np.array(self.accepted)
        lengths: Array = 1 + accepted[picks].sum(1) / drafts[picks].sum(1)
        return lengths


def load_engine(study: Study, **settings: Any) -> Engine:
    """The built-in pair with a fixed tree, and just enough cache for the batch."""
    return Engine.load(
        speculation={"top_k": study.top_k, "depth": study.depth, "nodes": study.verify},
        scheduler={"max_batch": study.batch},
        cache={"n_pages": 60 * study.batch + 2},
        **settings,
    )


def head_of(engine: Engine) -> Eagle3Head:
    """The draft head an engine was loaded with."""
    draft = engine.core.parts.draft
    assert draft is not None and isinstance(draft.head, Eagle3Head)
    return draft.head


def hidden_covariance(study: Study) -> Array:
    """Second moments of the rows that the head's LM head is fed, over texts set apart."""
    engine = load_engine(study)
    head = head_of(engine)
    moments = torch.zeros((head.summary.geometry.hidden_size,) * 2, dtype=torch.float64)
    output = head.output
    n_rows = 0

    def watched(x: Tensor) -> Tensor:
        nonlocal n_rows
        wide = x.double()
        moments.addmm_(wide.T, wide)
        n_rows += len(x)
        return output(x)

    object.__setattr__(head, "output", watched)
    prompts = PromptBook().choose(CONTEXT, SHAPING.stop)[SHAPING]
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=48, ignore_eos=True)
    engine.generate([prompt.tokens for prompt in prompts], params)
    found: Array = (moments / n_rows).numpy()
    return found


def card_weights(study: Study, covariance: Array, fold: bool = False) -> DraftWeights:
    """The built-in head in the card's formats."""
    head = head_of(load_engine(study))
    rank = int(head.summary.geometry.hidden_size * RANK_SHARE)
    return weights_of(head, covariance, rank, n_positions=4096, fold=fold)


@dataclass(frozen=True, eq=False)
class LeverRun:
    """One way of drafting: what was accepted, and some of its rounds."""

    accepted: Accepted
    rounds: tuple[DraftRound, ...]


def run_fused_lever(
    study: Study, weights: DraftWeights, choice: FusedChoice, keep: int = 0
) -> LeverRun:
    """Decode with drafts from C-simulation."""
    engine = load_engine(study)
    card = put_card(engine, weights, choice, keep)
    return LeverRun(decode(engine, study), tuple(card.rounds))


def put_card(engine: Engine, weights: DraftWeights, choice: FusedChoice, keep: int) -> DraftCard:
    """Let a simulated card draft for an engine; it keeps so many rounds."""
    launcher = engine.core.launcher
    assert isinstance(launcher, Direct) and launcher.parts.draft is not None
    draft = launcher.parts.draft
    card = DraftCard.loaded(weights, choice, draft.pool.n_slots, most_kept=keep)
    launcher.parts = replace(launcher.parts, draft=HlsDraft.instead_of(draft, card))
    return card


def run_whole_head(study: Study, live_ids: int | None = None) -> Accepted:
    """The head as it was trained, in float32; or one that may propose its likeliest ids only."""
    engine = load_engine(study)
    if live_ids is not None:
        _cut_vocabulary(head_of(engine), live_ids)
    return decode(engine, study)


def _cut_vocabulary(head: Eagle3Head, n_live: int) -> None:
    """Ids beyond the first `n_live` by frequency are never proposed; a BPE's ids fall by rank."""
    linear = head.output
    assert isinstance(linear, DenseLinear)
    weight = linear.weight

    def cut(x: Tensor) -> Tensor:
        logits = x @ weight.T
        logits[:, n_live:] = -1e4
        return logits

    object.__setattr__(head, "output", cut)


def decode(engine: Engine, study: Study) -> Accepted:
    """Every prompt, `batch` at a time."""
    prompts = PromptBook().choose(CONTEXT, study.n_prompts)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=study.n_tokens, ignore_eos=True)
    made = engine.generate([prompt.tokens for prompt in prompts], params)
    statistics = [completion.statistics for completion in made]
    return Accepted(
        tuple(one.num_drafts for one in statistics),
        tuple(one.num_accepted_tokens for one in statistics),
    )


def lever_choices() -> Sequence[tuple[str, FusedChoice]]:
    """Fusion alone first, then one lever more in each."""
    fused = FusedChoice(head="half")
    return (
        ("fused, 16-bit fc and head", fused),
        ("fc in 4 bits", replace(fused, is_fc_q4=True)),
        ("head in 4 bits", replace(fused, is_fc_q4=True, head="q4")),
        ("head in two stages", replace(fused, is_fc_q4=True, head="sketch")),
    )
